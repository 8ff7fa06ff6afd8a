"""Compile size expressions into one function, which evaluates them at launch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from autogen import compat

SCOPE = {"math": math, "torch": torch}
"""What the names stand for that `python_printer` writes."""


class Script:
    """A generated function: `text` defines `run`, and is compiled when it is first run."""

    def __init__(self, text: str) -> None:
        self.text = text

    @functools.cached_property
    def run(self) -> Callable[..., Any]:
        """The function."""
        scope: dict[str, Any] = {**SCOPE}
        exec(compile(self.text, "<sizes>", "exec"), scope)
        run: Callable[..., Any] = scope["run"]
        return run


@functools.cache
def python_printer() -> Any:
    """What writes expressions over sizes and floats as Python, which then computes what the loss would have."""

    class Printer(compat.size_printer()):  # type: ignore[misc]
        def _print_Float(self, expr: sympy.Float) -> str:
            return repr(float(expr)).replace("inf", "math.inf")  # all digits, not sympy's fifteen

        def _print_Function(self, expr: sympy.Function) -> str:
            raise NotImplementedError(f"the size expression {expr}")

    return Printer()


class Evaluator(Script):
    """The values of size expressions for given sizes, and of expressions over floats that vary.

    >>> N, C = sympy.symbols("N C", integer=True, positive=True)
    >>> Evaluator([N * C, C])({"N": 3, "C": 4})
    (12, 4)
    """

    def __init__(self, expressions: Sequence[sympy.Expr]) -> None:
        self.expressions = tuple(expressions)
        printer = python_printer()
        symbols = sorted({symbol for e in expressions for symbol in sympy.sympify(e).free_symbols}, key=str)
        lines = ["def run(sizes):"]
        lines += [f"    {symbol} = sizes[{str(symbol)!r}]" for symbol in symbols]
        values = "".join(f"{printer.doprint(sympy.sympify(e))}, " for e in expressions)
        super().__init__("\n".join((*lines, f"    return ({values})")))

    def __call__(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        values: tuple[int, ...] = self.run(sizes)
        return values


@functools.lru_cache(4096)
def evaluator_of(*expressions: sympy.Expr) -> Evaluator:
    """The evaluator of some expressions, made once: while a loss is scheduled, the same are asked for very often."""
    return Evaluator(expressions)


def magnitude(expression: sympy.Expr) -> sympy.Expr:
    """What the absolute value of an integer expression over axes and sizes, and of all its parts, does not exceed."""
    if expression.is_Integer:
        return abs(expression)
    if expression.is_Symbol:
        return getattr(expression, "size", expression)  # an axis stays below its size
    parts = [magnitude(each) for each in expression.args]
    if expression.is_Mul:
        return sympy.Mul(*parts)
    return parts[0] ** expression.exp if expression.is_Pow else sympy.Add(*parts)


def hint(size: Any) -> Any:
    """The value of a size, or of a number, in this call, if it is a symbol of torch; None if that is not known."""
    return size.node.hint if isinstance(size, (torch.SymInt, torch.SymFloat)) else size


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n` and 1."""
    return 1 << max(n - 1, 0).bit_length()
