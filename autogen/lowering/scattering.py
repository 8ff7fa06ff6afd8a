"""Lower writes at computed indices: each element asks which index, if any, wrote to it.

That is cheap where a row has one place (a label), few, or places in steps (`arange`), or where a row is short. A
histogram is none of these: each element would look at every place, so it is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.lowering.entries import (
    Condition,
    both,
    checked,
    choose,
    chosen_dims,
    divided,
    is_at,
    is_nonnegative,
    is_within,
    plus,
    wrapped,
)
from autogen.lowering.registry import Context, lowers
from autogen.lowering.sequences import in_sequence, item_at
from autogen.lowering.unrolling import COMBINED, MOST
from autogen.lowering.values import Entry, Index, Shape, Value, aligned, free_axes, fresh_axis, numel

# A row of at most as many elements may be compared with every place.
SHORT = 32


@lowers("scatter.value", "scatter.src")
def scatter(context: Context, value: Value, dim: int, places: Value, source: Any) -> Value:
    """`value` with `source` written at `places` along `dim`."""
    return _write_rows(context, value, dim, places, source, accumulate=False)


@lowers("scatter_add.default")
def scatter_add(context: Context, value: Value, dim: int, places: Value, source: Value) -> Value:
    """`value` with `source` added at `places` along `dim`."""
    return _write_rows(context, value, dim, places, source, accumulate=True)


def _write_rows(context: Context, value: Value, dim: int, places: Value, source: Any, *, accumulate: bool) -> Value:
    new = context.rounded(source, context.dtype)
    dim = dim % len(value.shape) if value.shape else 0
    if len(places.shape) != len(value.shape):
        raise NotImplementedError("one place without a dimension")
    rows = [(p, n) for d, (p, n) in enumerate(zip(places.shape, value.shape, strict=True)) if d != dim]
    if any(sympy.expand(p - n) != 0 for p, n in rows):  # `(C - 1) * N` is `C * N - N`
        raise NotImplementedError("a write to some rows only")

    def at(index: Index) -> ir.Node:
        def write(place: Index) -> tuple[Condition, ir.Node]:
            row = (*index[:dim], *place, *index[dim + 1 :])
            hit = is_at(index[dim], places.at(row)) if index else True
            return hit, new.at(row if new.shape else ())

        return _landed(
            context, value, index, places.shape[dim : dim + 1], value.shape[dim : dim + 1], write, accumulate
        )

    return Value(context.shape, context.dtype, at, value.factors)


@lowers("scatter_reduce.two")
def scatter_reduce(
    context: Context, value: Value, dim: int, places: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """What is written to each place of `value` along `dim`, reduced, of sequences of items; with what was there if
    `include_self`, or if nothing is written.
    """
    kind = {"amax": "max", "amin": "min", "mean": "sum"}.get(reduce, reduce)
    if reduce == "mean" and not context.dtype.is_floating_point:
        raise NotImplementedError("a mean of integers")
    dim %= max(len(value.shape), 1)

    def at(index: Index) -> ir.Node:
        axis = fresh_axis(places.shape[dim], free_axes(index))
        row = (*index[:dim], axis, *index[dim + 1 :])
        found = in_sequence(is_at(index[dim], places.at(row)), ir.cast(source.at(row), context.compute))
        if found is None:
            raise NotImplementedError("a write to more than one place per row")
        inside, new = found
        nothing = ir.const(ir.identity(kind, context.compute), context.compute)
        one, zero = ir.const(1, context.compute), ir.const(0, context.compute)
        node = ir.reduce(kind, [axis], ir.apply("where", inside, new, nothing))
        count = ir.reduce("sum", [axis], ir.apply("where", inside, one, zero))
        before = ir.cast(value.at(index), context.compute)
        if include_self:
            node, count = ir.apply(COMBINED[kind], before, node), ir.apply("add", count, one)
        if reduce == "mean":
            node = ir.apply("div", node, count)
        return node if include_self else ir.apply("where", ir.apply("gt", count, zero), node, before)

    return Value(context.shape, context.dtype, at, value.factors)


def _landed(
    context: Context,
    value: Value,
    index: Index,
    places: Shape,
    row: Shape,
    write: Callable[[Index], tuple[Condition, ir.Node]],
    accumulate: bool,
) -> ir.Node:
    """The element at `index` after a write from each of `places`; `write` tells of one whether it lands there, and what
    it brings. `row` are the dimensions in which it could land elsewhere.
    """
    node, zero = ir.cast(value.at(index), context.compute), ir.const(0, context.compute)
    if all(size.is_Integer for size in places) and numel(places) <= MOST:
        for place in product(*(map(sympy.Integer, range(int(size))) for size in places)):
            hit, new = write(place)
            node = ir.apply("add", node, _either(hit, new, zero)) if accumulate else _either(hit, new, node)
        return node
    taken = free_axes(index)
    axes = []
    for size in places:
        axes.append(fresh_axis(size, taken))
        taken.add(axes[-1])
    hit, new = write(tuple(axes)) if accumulate else (True, zero)
    of_sequence = None if isinstance(hit, bool) else in_sequence(hit, new)
    if of_sequence is not None:
        hit, new = of_sequence
    elif not accumulate or not all(size.is_Integer for size in row) or numel(row) > SHORT:
        raise NotImplementedError("a write to more than one place per row")
    return ir.apply("add", node, ir.reduce("sum", axes, _either(hit, new, zero)))


def _either(condition: Condition, chosen: ir.Node, other: ir.Node) -> ir.Node:
    return choose(condition, lambda: chosen, lambda: other, other.dtype)


@lowers("index_put.default")
def index_put(
    context: Context, value: Value, indices: Sequence[Value | None], source: Value, accumulate: bool = False
) -> Value:
    """`value` with `source` written, or added, at `indices`."""
    if accumulate and context.dtype == torch.bool:
        raise NotImplementedError("flags that are added")
    given = [each for each in indices if each is not None]
    if any(each.dtype in (torch.bool, torch.uint8) for each in given):
        raise NotImplementedError("a boolean mask as an index")
    dims, places, first = chosen_dims(indices)

    def at(index: Index) -> ir.Node:
        others = tuple(entry for dim, entry in enumerate(index) if dim not in dims)
        solved, settled, certain = _solved(given, [index[dim] for dim in dims], places)
        open_dims = [k for k in range(len(places)) if k not in solved]

        def write(chosen: Index) -> tuple[Condition, ir.Node]:
            place = dict(zip(open_dims, chosen, strict=True)) | solved
            full = tuple(place[k] for k in range(len(places)))
            hit = certain
            for position, (dim, each) in enumerate(zip(dims, given, strict=True)):
                if position not in settled:
                    found = wrapped(each.at(aligned(full, each.shape)), value.shape[dim])
                    hit = both(hit, is_at(index[dim], found))
            landing = (*others[:first], *full, *others[first:])
            leading = (sympy.S.Zero,) * (len(source.shape) - len(landing))  # dimensions of 1 that torch drops
            return hit, source.at(aligned((*leading, *landing), source.shape))

        sizes, row = tuple(places[k] for k in open_dims), tuple(value.shape[dim] for dim in dims)
        return _landed(context, value, index, sizes, row, write, accumulate)

    return Value(context.shape, context.dtype, at, value.factors)


def _solved(
    indices: Sequence[Value], entries: Sequence[Entry], places: Shape
) -> tuple[dict[int, Entry], set[int], Condition]:
    """The dimensions of `places` in which an index goes in steps, so that an entry tells the one place that wrote
    there; the positions of the indices that do; and the condition that there is such a place.
    """
    solved: dict[int, Entry] = {}
    settled: set[int] = set()
    certain: Condition = True
    axes = [ir.Axis(f"place_{k}", size) for k, size in enumerate(places)]
    nodes = [each.at(aligned(tuple(axes), each.shape)) for each in indices]
    for (k, own), (j, within_own) in itertools.permutations(enumerate(nodes), 2):
        item = item_at(own, within_own, entries[k], entries[j])
        if item is not None and item[0] in axes and not solved:
            solved[axes.index(item[0])], certain = item[1:]
            settled |= {k, j}
    for position, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
        if position in settled:
            continue
        mentioned = [k for k, axis in enumerate(axes) if axis in node.axes]
        if node.op != "index" or len(mentioned) != 1 or mentioned[0] in solved:
            continue
        axis = axes[mentioned[0]]
        step = node.attrs[0].coeff(axis, 1)
        start = sympy.expand(node.attrs[0] - step * axis)
        if not step.is_positive or start.has(axis) or not is_nonnegative(start):  # below 0 it counts from the end
            continue
        place, whole = divided(plus(entry, -start), step)
        inside = both(True if whole is None else whole, is_within(place, axis.size))
        solved[mentioned[0]], certain = checked(place, inside), both(certain, inside)
        settled.add(position)
    return solved, settled, certain
