"""Evaluating size expressions at launch: a list of them becomes one compiled function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch


class Evaluator:
    """The values of size expressions for given sizes.

    >>> N, C = sympy.symbols("N C", integer=True, positive=True)
    >>> Evaluator([N * C, C])({"N": 3, "C": 4})
    (12, 4)
    """

    def __init__(self, expressions: Sequence[sympy.Expr]) -> None:
        from torch.utils._sympy.printers import PythonPrinter

        printer = PythonPrinter()
        symbols = sorted({symbol for e in expressions for symbol in sympy.sympify(e).free_symbols}, key=str)
        lines = ["def evaluate(sizes):"]
        lines += [f"    {symbol} = sizes[{str(symbol)!r}]" for symbol in symbols]
        values = "".join(f"{printer.doprint(sympy.sympify(e))}, " for e in expressions)
        lines.append(f"    return ({values})")
        scope: dict[str, object] = {"math": math, "torch": torch}
        exec(compile("\n".join(lines), "<sizes>", "exec"), scope)
        self._evaluate = scope["evaluate"]

    def __call__(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return self._evaluate(sizes)  # type: ignore[operator]


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
