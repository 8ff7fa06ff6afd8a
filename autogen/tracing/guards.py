"""Guards: the relations between sizes and strides under which a trace holds, as one compiled function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch

from autogen.names import unique
from autogen.tracing.recorder import Size

_LETTERS = ("N", "C")


class Guards:
    """Names for the sizes of a trace, and the check that a later call may use it.

    `symbols` maps every free size to where it is read: (tensor, dimension, "shape" or "stride").
    """

    def __init__(
        self,
        symbols: dict[sympy.Symbol, tuple[int, int, str]],
        relations: Sequence[sympy.Basic],
        renamed: dict[sympy.Symbol, sympy.Expr],
    ) -> None:
        self.symbols = symbols
        self.relations = list(relations)
        self._renamed = renamed
        # Sizes that the code or torch has compared with a number, such as a slice that turned out to have one element.
        pairs = [pair for r in self.relations if isinstance(r, sympy.Eq) for pair in (r.args, r.args[::-1])]
        self._settled = {left: right for left, right in pairs if right.is_Integer}
        self._read = _compile_reader(symbols, self.relations)

    @classmethod
    def of(
        cls, shapes: Any, tensors: Sequence[tuple[str, torch.Tensor]], floats: Sequence[tuple[str, Any]] = ()
    ) -> Guards:
        """Collect what a `ShapeEnv` learned while the `tensors` and symbolic `floats` (by name) were traced."""
        home: dict[sympy.Symbol, tuple[int, int, str]] = {}
        geometry: list[tuple[int, int, str, sympy.Expr]] = []
        for position, (_, tensor) in enumerate(tensors):
            for kind, values in (("shape", tensor.shape), ("stride", tensor.stride())):
                for dim, value in enumerate(values):
                    # Before replacement: a size that turned out to equal another still is read here.
                    expression = value.node._expr if isinstance(value, torch.SymInt) else sympy.sympify(value)
                    if kind == "shape" or tensor.shape[dim] != 1:  # a dimension of size 1 is never stepped
                        geometry.append((position, dim, kind, expression))
                    if expression.is_Symbol:
                        home.setdefault(expression, (position, dim, kind))
        solved = {old: shapes.replace(old) for old in home}
        names = _name_symbols(home, solved, tensors)
        renamed = {old: sympy.Symbol(name, integer=True, positive=True) for old, name in names.items()}
        for position, (name, number) in enumerate(floats):
            old = number.node._expr
            home[old], solved[old] = (position, 0, "float"), shapes.replace(old)
            renamed[old] = sympy.Symbol(
                unique(name.replace(".", "_"), {str(new) for new in renamed.values()}), real=True
            )
        free = {old: place for old, place in home.items() if solved[old] == old}
        known = set(free)
        relations = [
            sympy.Eq(renamed[old], expression.xreplace(renamed), evaluate=False)
            for old, expression in solved.items()
            if expression != old
        ]
        for guard in shapes.guards:
            relation = guard.expr.xreplace(renamed)
            if relation not in (sympy.true, *relations):
                relations.append(relation)
        mapping = {old: expression.xreplace(renamed) for old, expression in solved.items()}
        for position, dim, kind, expression in geometry:
            if expression not in known or home[expression] != (position, dim, kind):
                there = sympy.Symbol(f"{kind}_{position}_{dim}", integer=True, nonnegative=True)
                home[there] = (position, dim, kind)
                renamed[there] = there
                relations.append(sympy.Eq(there, shapes.replace(expression).xreplace(renamed), evaluate=False))
        return cls({renamed[old]: place for old, place in home.items()}, relations, mapping)

    def expression(self, value: Any) -> sympy.Expr:
        """A size (a number, a torch symbol or a recorded `Size`) as an expression over the named sizes."""
        expression = _sympy(value)
        for _ in range(8):  # a replacement may lead to another
            replaced = expression.xreplace(self._renamed)
            if replaced == expression:
                break
            expression = replaced
        return self._settled.get(expression, expression)

    def read(self, tensors: Sequence[torch.Tensor], floats: Sequence[float] = ()) -> dict[str, Any] | None:
        """The sizes and floats of a call by name, or None if the trace does not hold for it."""
        return self._read(tensors, floats)


def settle_factors(shapes: Any, fakes: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Where two products of sizes have turned out equal, as after `a.flatten(0, 1) + b.flatten()`, take their factors
    for equal, if in this call they are: the two then have the same axes.
    """
    hints = {
        _sympy(size): real
        for fake, tensor in zip(fakes, tensors, strict=True)
        for size, real in zip(fake.shape, tensor.shape, strict=True)
    }
    for guard in list(shapes.guards):
        if not isinstance(guard.expr, sympy.Eq):
            continue
        sides = [sympy.Mul.make_args(shapes.replace(side)) for side in guard.expr.args]
        if any(factor not in hints for side in sides for factor in side):
            continue
        (left, right) = ([factor for factor in side if factor not in other] for side, other in (sides, sides[::-1]))
        for factor in left:
            alike = next((each for each in right if hints[each] == hints[factor]), None)
            if alike is not None:
                right.remove(alike)
                shapes.evaluate_expr(sympy.Eq(factor, alike))


def _sympy(value: Any) -> sympy.Expr:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    if isinstance(value, Size):
        return value.expression
    return sympy.sympify(value)


def _name_symbols(
    home: dict[sympy.Symbol, tuple[int, int, str]],
    solved: dict[sympy.Symbol, sympy.Expr],
    tensors: Sequence[tuple[str, torch.Tensor]],
) -> dict[sympy.Symbol, str]:
    """N, C, D1, D2 … for the first tensor that has dimensions; `weight_size0`, `input_stride1` for the rest.

    Of sizes that are equal, the one that stands for all gets the letter.
    """
    leading = next((k for k, (_, tensor) in enumerate(tensors) if tensor.dim()), 0)
    names: dict[sympy.Symbol, str] = {}
    for symbol, (position, dim, kind) in home.items():
        if kind == "shape" and position == leading and solved[symbol].is_Symbol:
            names.setdefault(solved[symbol], _LETTERS[dim] if dim < len(_LETTERS) else f"D{dim - 1}")
    for symbol, (position, dim, kind) in home.items():
        names.setdefault(symbol, f"{tensors[position][0]}_{kind.replace('shape', 'size')}{dim}")
    return names


def _compile_reader(
    symbols: dict[sympy.Symbol, tuple[int, int, str]], relations: Iterable[sympy.Basic]
) -> Callable[[Sequence[torch.Tensor], Sequence[float]], dict[str, Any] | None]:
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):
        def _print_Float(self, expr: sympy.Float) -> str:
            return repr(float(expr))  # all digits, not sympy's fifteen

    printer = Printer()
    places = {
        "shape": "tensors[{position}].shape[{dim}]",
        "stride": "tensors[{position}].stride()[{dim}]",
        "float": "floats[{position}]",
    }
    lines = ["def read(tensors, floats):"]
    lines += [
        f"    {symbol} = {places[kind].format(position=position, dim=dim)}"
        for symbol, (position, dim, kind) in symbols.items()
    ]
    checks = " and ".join(f"({printer.doprint(relation)})" for relation in relations) or "True"
    lines.append(f"    if not ({checks}):")
    lines.append("        return None")
    lines.append(f"    return {{{', '.join(f'{str(s)!r}: {s}' for s in symbols)}}}")
    scope: dict[str, Any] = {"math": math, "torch": torch}
    exec(compile("\n".join(lines), "<guards>", "exec"), scope)
    return scope["read"]
