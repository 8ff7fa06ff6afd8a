"""Python's arithmetic on floats, as expressions of sympy that stay as they are written.

sympy's own sums and products are put in another order and cancel, as those of real numbers do. A float is rounded at
each step, may overflow, and may be nan: `(s + 1e16) - 1e16` is not `s`, nor is `s * 0` always 0. torch's `FloatPow` and
`FloatTrueDiv` are of this kind already.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import sympy


class Arithmetic(sympy.Function):  # type: ignore[misc]  # sympy is untyped
    """An operation on two floats: `python` is what computes it, `sign` how it is written.

    `_torch_handler_name` is what torch takes for its range; of `pow` it says nothing.
    """

    nargs = (2,)
    is_extended_real = True  # also infinite
    sign: ClassVar[str]
    python: ClassVar[Callable[[float, float], float]]
    _torch_handler_name = "pow"

    @classmethod
    def eval(cls, left: Any, right: Any) -> Any:
        """A number, of two numbers."""
        if left.is_Number and right.is_Number:
            return sympy.Float(cls.python(float(left), float(right)))
        return None

    def text(self, written: Callable[[sympy.Expr], str]) -> str:
        """The operation in Python, its operands as they are `written`."""
        left, right = map(written, self.args)
        return f"(({left}) {self.sign} ({right}))"


class FloatAdd(Arithmetic):
    """`left + right`."""

    sign, python, _torch_handler_name = "+", operator.add, "add"


class FloatMul(Arithmetic):
    """`left * right`."""

    sign, python, _torch_handler_name = "*", operator.mul, "mul"


class FloatMod(Arithmetic):
    """`left % right`."""

    sign, python = "%", operator.mod


class FloatFloorDiv(Arithmetic):
    """`left // right`."""

    sign, python = "//", operator.floordiv


class MathFunction(sympy.Function):  # type: ignore[misc]  # sympy is untyped
    """A function of Python's `math`, named `name`, of one number."""

    nargs = (1,)
    is_extended_real = True
    name: ClassVar[str]
    _torch_handler_name = "tan"  # of whose range torch says nothing

    @classmethod
    def eval(cls, argument: Any) -> Any:
        """A number, of a number."""
        return sympy.Float(getattr(math, cls.name)(float(argument))) if argument.is_Number else None

    def text(self, written: Callable[[sympy.Expr], str]) -> str:
        """The call in Python, its argument as it is `written`."""
        return f"math.{self.name}({written(self.args[0])})"


MATH_FUNCTIONS = frozenset(
    {
        *("sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "gamma", "lgamma"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("degrees", "radians", "fabs"),
    }
).intersection(vars(math))  # some are of Python 3.11

_PREFIX = "Math_"


@functools.cache
def math_function(name: str) -> type[MathFunction]:
    """The class of a function, made when it is first asked for: all of them take 5 ms."""
    return type(f"{_PREFIX}{name}", (MathFunction,), {"name": name, "__module__": __name__})


def __getattr__(name: str) -> Any:
    """The classes of functions, where `pickle` looks for them."""
    if name.startswith(_PREFIX):
        return math_function(name.removeprefix(_PREFIX))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
