"""Find how often a program walks its rows, and which reductions share a walk.

A reduction that depends on another of the same row usually waits for it, and the row is walked again. Of those with a
*running form* none waits. With a running maximum m that grows to m', and s what is subtracted (m, or 0 in its place
where it is infinite, as in `logsumexp`),

- `sum(w * exp(x - s) * ...)` is corrected by the factor `exp(s - s')`, one for each exponential in it;
- `sum(w * L**k)`, where L is a sum and difference of such `x - s`, by the binomial theorem: L grows by a number, the
  same for all columns, and so the sum by those with lower powers of L. Of softmaxes, all `x - s` are at most 0, so that
  nothing cancels;
- what is reduced where `x == m`, as a maximum's place is, begins anew when m grows.

Softmaxes, their logarithms under any weights, entropies, divergences of several and accuracies thus take one walk.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType

import torch

from autogen import ir
from autogen.ir import Axis, Node, apply

Shift = Node
"""What is subtracted: a maximum, or `where(|m| == inf, 0, m)` of a maximum m."""


@dataclass(frozen=True)
class Running:
    """How a reduction follows the maxima of its own walk.

    `scales` are the shifts in its exponentials; `moves` by how much L grows with each shift, and `lower` the sums with
    the powers 0 to k - 1 of L (None is the number of columns). It `restarts` when that maximum grows.
    """

    scales: tuple[Shift, ...] = ()
    moves: tuple[tuple[Shift, float], ...] = ()
    lower: tuple[Node | None, ...] = ()
    restarts: Node | None = None

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """The shifts that it follows, each once."""
        return tuple(dict.fromkeys((*self.scales, *(shift for shift, _ in self.moves))))

    @property
    def followed(self) -> tuple[Node, ...]:
        """All that it follows."""
        return self.shifts if self.restarts is None else (self.restarts,)


@dataclass
class Walk:
    """The reductions of one walk over the columns, `running` the ones that follow a maximum of the same walk.

    `waits` tells of those that need another walk because of it which reduction they wait for.
    """

    reductions: list[Node] = field(default_factory=list)
    running: dict[Node, Running] = field(default_factory=dict)
    waits: dict[Node, Node] = field(default_factory=dict)

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """What is subtracted in this walk."""
        return tuple(dict.fromkeys(shift for each in self.running.values() for shift in each.shifts))


class Walks:
    """The walks over a row, as they are found for one reduction after the other, arguments first."""

    def __init__(self) -> None:
        self.found: list[Walk] = []
        self._number: dict[Node, int] = {}

    def number(self, node: Node) -> tuple[int, Running | None, Node | None]:
        """The walk of a reduction, how it follows maxima of that walk, and for what it waits if it is not the first."""
        below = [each for each in ir.topological(node.args) if each in self._number]
        last = max((self._number[each] for each in below), default=-1)
        latest = [each for each in below if self._number[each] == last]
        maxima = [each for each in latest if each.attrs[0] in ir.EXTREMES]
        form = running_form(node, maxima) if maxima and len(maxima) == len(latest) else None
        if form is not None:
            return last, form, self._before(below, last)
        return last + 1, None, latest[-1] if latest else None

    def _before(self, below: Sequence[Node], number: int) -> Node | None:
        return next((each for each in reversed(below) if self._number[each] == number - 1), None)

    def add(self, node: Node) -> int:
        """Finds the walk of a reduction, and adds what its form needs beside it."""
        if node in self._number:
            return self._number[node]
        number, form, waits = self.number(node)
        self._number[node] = number
        while len(self.found) <= number:
            self.found.append(Walk())
        walk = self.found[number]
        if waits is not None and number:
            walk.waits[node] = waits
        for each in form.lower if form else ():
            if each is not None and each not in self._number:
                self.add(each)
            if each is not None and each not in walk.running and self._number[each] == number:
                walk.running[each] = Running()
        walk.reductions.append(node)
        if form is not None:
            walk.running[node] = form
        return number


def walks_of(reductions: Iterable[Node]) -> list[Walk]:
    """The reductions of a row, arguments first, in as few walks over it as their dependencies allow."""
    walks = Walks()
    for node in reductions:
        walks.add(node)
    return walks.found


def largest_of(shift: Shift) -> Node:
    """The maximum that a shift is, or is but where that is infinite."""
    return shift.args[2] if is_finite_form(shift) else shift


def is_finite_form(node: Node) -> bool:
    """Whether a node is `where(|m| == inf, 0, m)`."""
    if node.op != "where" or node.args[0].op != "eq" or node.args[1].op != "const" or node.args[1].attrs[0] != 0:
        return False
    size, bound = node.args[0].args
    return size.op == "abs" and size.args[0] is node.args[2] and bound.op == "const" and bound.attrs[0] == math.inf


def is_shifted(node: Node, kept: Mapping[Node, Node] = MappingProxyType({})) -> bool:
    """Whether a node is `x - s`, s the maximum of x over some axes, or 0 in its place where that is infinite; it may be
    read from where it is `kept`.
    """
    if node.op != "sub":
        return False
    value, largest = node.args[0], largest_of(node.args[1])
    largest = kept.get(largest, largest)
    return largest.op == "reduce" and largest.attrs[0] == "max" and largest.args[0] is value


def running_form(node: Node, maxima: Collection[Node]) -> Running | None:
    """How a reduction follows running maxima, None if it waits for them."""
    kind, axes = node.attrs
    restarts = _restarts(node, maxima)
    if restarts is not None:
        return Running(restarts=restarts)
    product = _Product.of(node.args[0], frozenset(maxima)) if kind == "sum" else None
    if product is None or not (product.exponentials or product.power):
        return None
    scales = tuple(exponential.args[0].args[1] for exponential in product.exponentials)
    lower = tuple(product.sum(axes, power) for power in range(product.power))
    return Running(scales, tuple(product.moves.items()), lower)


def _restarts(node: Node, maxima: Collection[Node]) -> Node | None:
    """The extreme that decides of what there is to reduce, and of nothing else: of `where(x == m, v, nothing)`."""
    kind, (body,) = node.attrs[0], node.args
    number = ir.identity(kind, node.dtype)
    if body.op == "cast" and body.args[0].dtype == torch.bool:
        condition, value, nothing = body.args[0], ir.const(1, node.dtype), ir.const(0, node.dtype)
    elif body.op == "where":
        condition, value, nothing = body.args
    else:
        return None
    is_nothing = nothing.op == "const" and nothing.attrs[0] == number
    is_beyond = kind == "min" and not node.dtype.is_floating_point and not nothing.axes and not nothing.reduces
    if not (is_nothing or is_beyond) or not set(maxima).isdisjoint(ir.topological([value, nothing])):
        return None
    matches = condition.args if condition.op == "logical_or" else (condition,)
    equal = [each for each in matches if each.op == "eq" and each.args[1] in maxima]
    rest = [each for each in matches if each not in equal]
    if len(equal) != 1 or equal[0].args[1].args[0] is not equal[0].args[0]:
        return None
    x, largest = equal[0].args
    return largest if all(each.op == "isnan" and each.args[0] is x for each in rest) else None


@dataclass
class _Product:
    """A summand as a product: what is no function of the running maxima, exponentials, and a power of L; and the dtype
    in which it is added up.
    """

    weights: list[Node] = field(default_factory=list)
    exponentials: list[Node] = field(default_factory=list)
    linear: Node | None = None
    power: int = 0
    moves: Mapping[Shift, float] = field(default_factory=dict)
    conditions: list[Node] = field(default_factory=list)
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, node: Node, maxima: frozenset[Node]) -> _Product | None:
        found = cls(dtype=node.dtype)
        return found if found._take(node.args[0] if node.op == "cast" else node, maxima) else None

    def _take(self, node: Node, maxima: frozenset[Node]) -> bool:
        """Multiply by a node; returns whether that is possible."""
        if maxima.isdisjoint(ir.topological([node])):
            self.weights.append(node)
            return True
        if node.op == "mul":
            return all(self._take(arg, maxima) for arg in node.args)
        if node.op == "neg" and moves_of(node, maxima) is None:
            self.weights.append(ir.const(-1, node.dtype))
            return self._take(node.args[0], maxima)
        if node.op == "where" and node.args[2].op == "const" and node.args[2].attrs[0] == 0:
            self.conditions.append(node.args[0])
            return maxima.isdisjoint(ir.topological(node.args[:1])) and self._take(node.args[1], maxima)
        if node.op in ir.EXPONENTIALS and is_shifted(node.args[0]):
            self.exponentials.append(node)
            return largest_of(node.args[0].args[1]) in maxima
        moves = moves_of(node, maxima)
        if moves is None or self.linear not in (None, node):
            return False
        self.linear, self.moves, self.power = node, moves, self.power + 1
        return True

    def sum(self, axes: Iterable[Axis], power: int) -> Node | None:
        """The sum with another power of L; None for the number of columns."""
        factors = [*self.weights, *self.exponentials, *([self.linear] * power if self.linear is not None else [])]
        if not factors and not self.conditions:
            return None
        one = ir.const(1, self.linear.dtype if self.linear is not None else factors[0].dtype)
        body = product_of(factors) if factors else one
        for condition in reversed(self.conditions):
            body = apply("where", condition, body, ir.const(0, body.dtype))
        return ir.reduce("sum", axes, ir.cast(body, self.dtype))


def product_of(factors: Sequence[Node]) -> Node:
    """The product of values."""
    return reduce(lambda one, other: apply("mul", one, other), factors)


def moves_of(node: Node, maxima: Collection[Node]) -> dict[Shift, float] | None:
    """Of a sum and difference of `x - s`, and of what depends on no running maximum, how much of each s is subtracted;
    None of what is no such sum.
    """
    if set(maxima).isdisjoint(ir.topological([node])):
        return {}
    if is_shifted(node):
        return {node.args[1]: 1.0}
    if node.op not in ("add", "sub", "neg"):
        return None
    found: dict[Shift, float] = {}
    for k, arg in enumerate(node.args):
        own = moves_of(arg, maxima)
        if own is None:
            return None
        sign = -1 if node.op == "neg" or (node.op == "sub" and k == 1) else 1
        for shift, factor in own.items():
            found[shift] = found.get(shift, 0.0) + sign * factor
    return found
