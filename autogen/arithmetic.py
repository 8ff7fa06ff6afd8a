"""Python's arithmetic on floats, as expressions of sympy that stay as they are written.

sympy's own sums and products are put in another order and cancel, as those of real numbers do. A float is rounded at
each step, may overflow, and may be nan: `(s + 1e16) - 1e16` is not `s`, nor is `s * 0` always 0. torch's `FloatPow` and
`FloatTrueDiv` are of this kind already.
"""

from __future__ import annotations

import functools
import importlib
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


class PlainFunction(sympy.Function):  # type: ignore[misc]  # sympy is untyped
    """A function of Python's `math` or of NumPy, named `name`, of numbers."""

    nargs = (1, 2, 3)
    is_extended_real = True
    library: ClassVar[str]
    name: ClassVar[str]
    _torch_handler_name = "tan"  # of whose range torch says nothing

    @classmethod
    def eval(cls, *arguments: Any) -> Any:
        """A number, of numbers."""
        if not all(each.is_Number for each in arguments):
            return None
        numbers = (int(each) if each.is_Integer and cls.library == "numpy" else float(each) for each in arguments)
        return sympy.Float(float(getattr(importlib.import_module(cls.library), cls.name)(*numbers)))

    def text(self, written: Callable[[sympy.Expr], str]) -> str:
        """The call in Python, its arguments as they are `written`."""
        call = f"{self.library}.{self.name}({', '.join(map(written, self.args))})"
        return call if self.library == "math" else f"float({call})"


MATH_FUNCTIONS = frozenset(
    {
        *("sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "gamma", "lgamma"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("degrees", "radians", "fabs"),
    }
).intersection(vars(math))  # some are of Python 3.11

_UFUNCS = {
    "FloatTrueDiv": "true_divide",
    "FloatPow": "power",
    "FloatMod": "remainder",
    "FloatFloorDiv": "floor_divide",
}
"""What computes, of numbers of NumPy, the operations that raise of Python's: by the names of their classes."""


def ufunc_of(operation: sympy.Expr) -> str | None:
    """The function of NumPy that an operation is, if it is one on what NumPy has computed: of 0 it gives inf or nan."""
    name = _UFUNCS.get(type(operation).__name__)
    return name if name is not None and _is_numpys(operation) else None


def _is_numpys(expression: sympy.Expr) -> bool:
    if isinstance(expression, PlainFunction):
        return expression.library == "numpy"  # those of `math` give Python's floats
    return any(map(_is_numpys, expression.args))


_PREFIXES = {"math": "Math_", "numpy": "Numpy_"}


@functools.cache
def function_of(library: str, name: str) -> type[PlainFunction]:
    """The class of a function, made when it is first asked for: all of them take 5 ms."""
    members = {"library": library, "name": name, "__module__": __name__}
    return type(f"{_PREFIXES[library]}{name}", (PlainFunction,), members)


def __getattr__(name: str) -> Any:
    """The classes of functions, where `pickle` looks for them."""
    for library, prefix in _PREFIXES.items():
        if name.startswith(prefix):
            return function_of(library, name.removeprefix(prefix))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
