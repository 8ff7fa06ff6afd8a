"""Tensors during lowering: functions from an index to an IR node.

Nothing is stored between ops. A pointwise op asks its arguments for their node at the same index, a view maps the
index and asks, a reduction asks at an index with fresh axes and binds them. What comes out is the whole loss as one
expression over the inputs.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch

from autogen import ir

Entry: TypeAlias = "sympy.Expr | ir.Node"
Index: TypeAlias = "tuple[Entry, ...]"
Shape: TypeAlias = "tuple[sympy.Expr, ...]"


_serials = itertools.count()


class _OfOneTrace(sympy.Symbol):  # type: ignore[misc]  # sympy is untyped
    """A symbol that equals itself only: sympy must not hand out the like-named one of another trace from its caches."""

    __slots__ = ("serial",)

    def __new__(cls, name: str, **assumptions: bool) -> Any:
        symbol = sympy.Symbol.__xnew__(cls, name, **assumptions)
        symbol.serial = next(_serials)
        return symbol

    def _hashable_content(self) -> tuple[Any, ...]:
        return (*super()._hashable_content(), self.serial)


class Read(_OfOneTrace):
    """A number that the loss took from a tensor: `value` is the tensor's."""

    __slots__ = ("value",)
    value: Value

    def __new__(cls, name: str, value: Value) -> Read:
        symbol: Read = super().__new__(cls, name)
        symbol.value = value
        return symbol


class Chosen(_OfOneTrace):
    """The number of elements that a mask chooses, as the size of a dimension.

    Such a dimension runs over all places of the mask, in the order of memory, `factors` being its loops; `holds(entry)`
    says which of them count.
    """

    __slots__ = ("factors", "holds")
    factors: Shape
    holds: Callable[[Entry], ir.Node]

    def __new__(cls, name: str, holds: Callable[[Entry], ir.Node], factors: Shape) -> Chosen:
        size: Chosen = super().__new__(cls, name, integer=True, nonnegative=True)
        size.holds, size.factors = holds, factors
        return size

    def count(self, dtype: torch.dtype) -> ir.Node:
        """The number, as a value."""
        taken: set[ir.Axis] = set()
        place = fresh_entry(self.factors, taken)
        return ir.reduce("sum", taken, ir.cast(self.holds(place), dtype))


def _loops(factors: Shape) -> Shape:
    """The factors of a dimension as loops: what a mask chooses from is walked whole."""
    return tuple(loop for size in factors for loop in (size.factors if isinstance(size, Chosen) else (size,)))


class Value:
    """A tensor: `shape`, torch `dtype`, and `at(index)`, its node at an index with one entry per dimension.

    An entry is an integer expression over axes, or an int64 node for a computed index. `factors` splits a
    dimension that came from flattening others into those others, so that loops run over the dimensions that the
    memory has.

    `at` may run several times for one index, each time up to a value that it asks: those it had better not make anew.
    """

    def __init__(
        self,
        shape: Sequence[sympy.Expr],
        dtype: torch.dtype,
        at: Callable[[Index], ir.Node],
        factors: Sequence[Shape] | None = None,
    ) -> None:
        self.shape: Shape = tuple(shape)
        self.dtype = dtype
        known = tuple(factors) if factors else ((size,) for size in self.shape)
        self.factors: tuple[Shape, ...] = tuple(map(_loops, known))
        self._serial = next(_serials)
        self._at = at
        self._known: dict[Index, ir.Node] = {}

    def at(self, index: Sequence[Entry]) -> ir.Node:
        """The node at `index`."""
        key = tuple(index)
        if key not in self._known:
            if _asking.depth == 0:
                self._ask(key)
            elif _asking.depth < _asking.limit:
                _asking.depth += 1
                try:
                    self._known[key] = self._at(key)
                finally:
                    _asking.depth -= 1
            else:
                raise _Deeper(self, key)
        return self._known[key]

    def _ask(self, index: Index) -> None:
        """Make the node at `index`, whatever the number of ops before it: those far below are asked first."""
        todo = [_Asked(self, index)]
        _asking.depth = 1
        try:
            while todo:
                asked, begun = todo[-1], next(_serials)
                _asking.limit = _DEEPEST + asked.more
                try:
                    asked.value._known[asked.index] = asked.value._at(asked.index)
                    todo.pop()
                except _Deeper as deeper:
                    if asked.is_again and deeper.value._serial > begun:  # it will not be there the next time
                        asked.more += 1
                    else:
                        todo.append(_Asked(deeper.value, deeper.index))
                    asked.is_again = True
        finally:
            _asking.depth = 0


_DEEPEST = 50  # values that ask each other before the deepest is asked alone; each takes some 5 of Python's frames


@dataclass(eq=False)
class _Asked:
    """A value that is being asked; what is made anew each time it is may be some `more` values deep."""

    value: Value
    index: Index
    more: int = 0
    is_again: bool = False


class _Asking(threading.local):
    depth = 0
    limit = _DEEPEST


_asking = _Asking()


class _Deeper(Exception):
    """Signals that `value` is to be asked for its node at `index` from the top of the stack."""

    def __init__(self, value: Value, index: Index) -> None:
        super().__init__()
        self.value, self.index = value, index


def free_axes(index: Sequence[Entry]) -> set[ir.Axis]:
    """The axes that an index mentions."""
    axes: set[ir.Axis] = set()
    for entry in index:
        if isinstance(entry, ir.Node):
            axes |= entry.axes
        else:
            axes |= {symbol for symbol in entry.free_symbols if isinstance(symbol, ir.Axis)}
    return axes


def fresh_axis(size: sympy.Expr, taken: set[ir.Axis]) -> ir.Axis:
    """The first axis of a size that is not taken: equal loops thus get equal axes, and their nodes are shared."""
    if size.has(Read):
        raise NotImplementedError("a size that depends on values")
    base = str(size).lower() if size.is_Symbol else f"i{size}".replace(" ", "")
    copy = 1
    while True:
        axis = ir.Axis(base if copy == 1 else f"{base}_{copy}", size)
        if axis not in taken:
            return axis
        copy += 1


def fresh_entry(factors: Shape, taken: set[ir.Axis]) -> sympy.Expr:
    """An index that runs over a whole dimension with the given factors; its axes are added to `taken`."""
    entry: sympy.Expr = sympy.S.Zero
    for size in factors:
        entry = entry * size
        if size != 1:
            axis = fresh_axis(size, taken)
            taken.add(axis)
            entry = entry + axis
    return sympy.expand(entry)


def fresh_index(value: Value) -> tuple[sympy.Expr, ...]:
    """An index that runs over a whole tensor."""
    taken: set[ir.Axis] = set()
    return tuple(fresh_entry(factors, taken) for factors in value.factors)


def aligned(index: Index, shape: Shape) -> Index:
    """The index at which a tensor of `shape` is read when it is broadcast to a tensor that is read at `index`."""
    trailing = index[len(index) - len(shape) :]
    return tuple(sympy.S.Zero if size == 1 else entry for entry, size in zip(trailing, shape, strict=True))


def broadcast_shape(values: Sequence[Value]) -> Shape:
    """The shape that tensors have when they are broadcast together."""
    rank = max(len(value.shape) for value in values)
    shape = [sympy.S.One] * rank
    for value in values:
        for dim, size in enumerate(value.shape, rank - len(value.shape)):
            if size != 1:
                shape[dim] = size
    return tuple(shape)


def broadcast_factors(shape: Shape, values: Sequence[Value]) -> tuple[Shape, ...]:
    """Per dimension of a broadcast result, the finest factors that an argument knows."""
    factors = []
    for dim, size in enumerate(shape):
        found = _loops((size,))
        for value in values:
            own = dim - len(shape) + len(value.shape)
            if own >= 0 and value.shape[own] == size and len(value.factors[own]) > len(found):
                found = value.factors[own]
        factors.append(found)
    return tuple(factors)


def elementwise(shape: Shape, dtype: torch.dtype, formula: Callable[..., ir.Node], *arguments: Value) -> Value:
    """`formula` of the nodes of the arguments, broadcast to `shape`."""

    def at(index: Index) -> ir.Node:
        return ir.cast(formula(*(each.at(aligned(index, each.shape)) for each in arguments)), dtype)

    return Value(shape, dtype, at, broadcast_factors(shape, arguments))


def reduction(kind: str, value: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """`value` reduced over `dims` with `kind`, a name in `ir.REDUCTIONS`."""
    dims = sorted(dim % len(value.shape) for dim in dims)
    kept = [dim for dim in range(len(value.shape)) if dim not in dims]
    shape = [sympy.S.One if d in dims else n for d, n in enumerate(value.shape) if keepdim or d in kept]
    factors = [(sympy.S.One,) if d in dims else f for d, f in enumerate(value.factors) if keepdim or d in kept]

    def at(index: Index) -> ir.Node:
        outer = [index[dim] for dim in kept] if keepdim else list(index)
        taken = free_axes(outer)
        before = set(taken)
        full = list(outer)
        for dim in dims:
            full.insert(dim, fresh_entry(value.factors[dim], taken))
        body = value.at(full)
        for dim in dims:
            body = _counted(kind, body, value.shape[dim], full[dim])
        if kind == "sum" and body.dtype == torch.int32:  # one that wraps is an error of Triton's interpreter
            return ir.cast(ir.reduce(kind, taken - before, ir.cast(body, torch.int64)), torch.int32)
        return ir.reduce(kind, taken - before, body)

    return Value(shape, value.dtype, at, factors)


def _counted(kind: str, body: ir.Node, size: sympy.Expr, entry: Entry) -> ir.Node:
    """The terms of a reduction over a dimension: of what a mask chooses from, only what it chooses."""
    if not size.has(Chosen):
        return body
    if not isinstance(size, Chosen) or kind != "sum":
        raise NotImplementedError(f"a {kind} of what a mask chooses")
    return ir.apply("where", size.holds(entry), body, ir.const(0, body.dtype))


def numel(shape: Shape) -> sympy.Expr:
    """The number of elements of a shape."""
    return sympy.Mul(*shape)
