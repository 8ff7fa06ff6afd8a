"""The symbolic sizes of a joint graph: readable names, and where a call reads their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

from autogen import compat
from autogen.ir.names import NUMBER, identifier, unique

_LETTERS = ("N", "C")

Kind = Literal["shape", "stride", "number"]
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Size:
    """A symbolic size, or a number that varies, among the arguments of a node."""

    expression: sympy.Expr


@dataclass(frozen=True)
class Place:
    """Where a call reads a size: a dimension of the tensor at a position, or the number at a position."""

    kind: Kind
    position: int
    dim: int = 0


class Sizes:
    """Names for the symbols of a `ShapeEnv` that a joint graph depends on, and how a call reads them.

    Dynamo's guards have checked the relations between sizes before a graph is called, so that nothing is checked here.

    Args:
        shapes: the `ShapeEnv` of the capture.
        tensors: name and fake tensor of each input.
        numbers: name and symbol of each number that a call hands over, or that torch computes before the kernels.
    """

    def __init__(
        self, shapes: Any, tensors: Sequence[tuple[str, torch.Tensor]], numbers: Sequence[tuple[str, Any]] = ()
    ) -> None:
        self._shapes = shapes
        home: dict[sympy.Symbol, Place] = {}
        for position, (_, fake) in enumerate(tensors):
            for kind, values in (("shape", fake.shape), ("stride", fake.stride())):
                for dim, value in enumerate(values):
                    expression = self._replaced(value)
                    if expression.is_Symbol and (kind == "shape" or fake.shape[dim] != 1):
                        home.setdefault(expression, Place(kind, position, dim))  # type: ignore[arg-type]
        named = _named(home, tensors)
        self._renamed = {old: sympy.Symbol(name, integer=True, positive=True) for old, name in named.items()}
        for position, (name, value) in enumerate(numbers):
            expression = self._replaced(value)
            if not expression.is_Symbol or expression in home or compat.is_nested_int(value):
                continue
            home[expression] = Place("number", position)
            name = unique(identifier(name) + NUMBER, {str(new) for new in self._renamed.values()})
            is_size = isinstance(value, torch.SymInt)
            facts = {"integer": True} if is_size else {"real": True}
            self._renamed[expression] = sympy.Symbol(name, **facts)
        self.symbols = {self._renamed[old]: place for old, place in home.items()}
        # Sympy takes µs for each of these.
        self._places = [(str(symbol), bool(symbol.is_integer), place) for symbol, place in self.symbols.items()]
        # Sizes that the loss, or torch, has compared with a number, such as a slice that has one element.
        equalities = [guard.expr for guard in getattr(shapes, "guards", ()) if isinstance(guard.expr, sympy.Eq)]
        pairs = [pair for each in equalities for pair in (each.args, each.args[::-1])]
        self._settled = {left.xreplace(self._renamed): right for left, right in pairs if right.is_Integer}
        # Before they are named: a size that has a name is not 0, so that `max(size, 1)` is the size.
        self._fixed = {left: right for left, right in pairs if left.is_Symbol and right.is_Integer}

    def expression(self, value: Any) -> sympy.Expr:
        """A size (a number, a symbol of torch's or a `Size`) over the named sizes."""
        expression = self._replaced(value).xreplace(self._fixed).xreplace(self._renamed)
        return self._settled.get(expression, expression)

    def read(self, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> dict[str, Any]:
        """The values of a call by name."""
        found: dict[str, Any] = {}
        for name, is_integer, place in self._places:
            if place.kind == "number":
                value = numbers[place.position]
                found[name] = value if is_integer else float(value)
            else:
                tensor = tensors[place.position]
                found[name] = (tensor.shape if place.kind == "shape" else tensor.stride())[place.dim]
        return found

    def conditions(self) -> list[sympy.Basic]:
        """What the capture takes for granted of sizes: the least and the most of each, and Dynamo's guards.

        For whoever takes kernels to where Dynamo guards no call. What is true of the shapes in any case is left out.
        """
        found: dict[sympy.Basic, None] = {}
        for old, new in self._renamed.items():
            bounds = self._shapes.var_to_range.get(old)
            if bounds is not None and new.is_integer:
                found[sympy.Ge(new, bounds.lower, evaluate=False)] = None
                if bounds.upper.is_Integer:
                    found[sympy.Le(new, bounds.upper, evaluate=False)] = None
        for guard in getattr(self._shapes, "guards", ()):
            condition = self._shapes.replace(guard.expr).xreplace(self._renamed)
            if condition != sympy.true:
                found[condition] = None
        return list(found)

    def hints(self) -> dict[str, Any]:
        """The values in the call that was captured; of what only values know, a guess. Sizes may be made of floats."""
        known: Mapping[Any, Any] = compat.hints_of(self._shapes)
        return {str(new): (int if new.is_integer else float)(known.get(old, 64)) for old, new in self._renamed.items()}

    def _replaced(self, value: Any) -> sympy.Expr:
        if isinstance(value, SYMBOLIC):
            return self._shapes.replace(value.node.expr)
        expression = value.expression if isinstance(value, Size) else sympy.sympify(value)
        return self._shapes.replace(expression) if expression.free_symbols else expression


def settle_factors(shapes: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Where two products of sizes have turned out equal, as after `a.flatten(0, 1) + b.flatten()`, guard that their
    factors are equal, if in this call they are: the two then have the same axes.
    """
    hints: dict[sympy.Expr, sympy.Integer] = {}
    for fake in tensors:
        for size in fake.shape:
            if isinstance(size, torch.SymInt) and size.node.has_hint():
                hints[shapes.replace(size.node.expr)] = sympy.Integer(size.node.hint)
    for guard in list(shapes.guards):
        if not isinstance(guard.expr, sympy.Eq):
            continue
        sides = [sympy.Mul.make_args(shapes.replace(side)) for side in guard.expr.args]
        real = {factor: factor.xreplace(hints) for side in sides for factor in side if not factor.is_number}
        if any(number.free_symbols for number in real.values()):
            continue
        (left, right) = ([factor for factor in side if factor not in other] for side, other in (sides, sides[::-1]))
        for factor in filter(real.__contains__, left):
            alike = next((each for each in right if real.get(each) == real[factor]), None)
            if alike is not None:
                right.remove(alike)
                shapes.evaluate_expr(sympy.Eq(factor, alike))


def _named(home: Mapping[sympy.Symbol, Place], tensors: Sequence[tuple[str, torch.Tensor]]) -> dict[sympy.Symbol, str]:
    """N, C, D1, D2 … for the first tensor that has sizes which vary; `weight_size0`, `input_stride1` for the rest."""
    leading = next((place.position for place in home.values() if place.kind == "shape"), 0)
    names: dict[sympy.Symbol, str] = {}
    for symbol, place in home.items():
        if place.kind == "shape" and place.position == leading:
            names[symbol] = _LETTERS[place.dim] if place.dim < len(_LETTERS) else f"D{place.dim - 1}"
    for symbol, place in home.items():
        names.setdefault(symbol, f"{tensors[place.position][0]}_{place.kind.replace('shape', 'size')}{place.dim}")
    return names
