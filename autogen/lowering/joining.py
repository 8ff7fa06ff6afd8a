"""Lower ops that split and join tensors (split, cat, stack, padding), and writes through views.

A join is a choice by where an entry lies. Read at a place that sizes alone decide (a slice, a constant, a whole piece),
it is that piece and nothing else is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from autogen import ir
from autogen.lowering.entries import (
    Condition,
    both,
    bounded,
    checked,
    choose,
    divided,
    is_below,
    is_within,
    mirrored,
    plus,
    position,
    times,
)
from autogen.lowering.registry import Context, lowers
from autogen.lowering.values import Entry, Index, Value
from autogen.lowering.views import slice_


def replaced(index: Index, dim: int, *entries: Entry) -> Index:
    """`index` with other entries in the place of the one of `dim`."""
    return (*index[:dim], *entries, *index[dim + 1 :])


# Taking apart.


@lowers("split.Tensor", "split_with_sizes.default", "unsafe_split.Tensor", "unsafe_split_with_sizes.default")
def split(context: Context, value: Value, _: Any, dim: int = 0) -> tuple[Value, ...]:
    """Adjacent pieces of a dimension, as long as their shapes say."""
    dim %= len(value.shape)
    pieces, start = [], sympy.S.Zero
    for shape, dtype in zip(context.shapes, context.dtypes, strict=True):
        piece = Context((shape,), (dtype,), context.size_of, context.provenance)
        pieces.append(slice_(piece, value, dim, start))
        start += shape[dim]
    return tuple(pieces)


# Putting together.


@lowers("cat.default")
def cat(context: Context, values: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along a dimension."""
    rank = len(context.shape)
    parts = [value for value in values if len(value.shape) == rank]  # an empty vector goes with any rank
    return joined(context, parts, dim % rank)


def joined(context: Context, parts: Sequence[Value], dim: int) -> Value:
    """Tensors one after the other along a dimension."""
    factors = list(parts[0].factors)
    factors[dim] = (context.shape[dim],)
    return Value(context.shape, context.dtype, lambda index: _of_parts(context, parts, dim, index), factors)


def _of_parts(context: Context, parts: Sequence[Value], dim: int, index: Index) -> ir.Node:
    entry = index[dim]
    found: list[tuple[Condition, ir.Node]] = []
    for number, part in enumerate(parts, start=1):
        size = part.shape[dim]
        here = is_below(entry, size) if number < len(parts) else True
        if here is not False:
            node = part.at(replaced(index, dim, checked(entry, here)))
            found.append((here, ir.cast(node, context.compute)))
        if here is True:
            break
        entry = checked(plus(entry, -size), here is False)
    _, node = found.pop()
    for here, chosen in reversed(found):
        node = _either(here, chosen, node)
    return node


def _either(condition: Condition, chosen: ir.Node, other: ir.Node) -> ir.Node:
    """A choice that is none where both are the same, as zeros are."""
    return chosen if chosen is other else choose(condition, lambda: chosen, lambda: other, chosen.dtype)


@lowers("stack.default")
def stack(context: Context, values: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along a new dimension."""
    dim %= len(context.shape)
    return joined(context, [_unsqueezed(value, dim) for value in values], dim)


def _unsqueezed(value: Value, dim: int) -> Value:
    shape, factors = list(value.shape), list(value.factors)
    shape.insert(dim, sympy.S.One)
    factors.insert(dim, (sympy.S.One,))
    return bounded(Value(shape, value.dtype, lambda index: value.at(replaced(index, dim)), factors), dim)


@lowers("constant_pad_nd.default")
def constant_pad_nd(context: Context, value: Value, pad: Sequence[Any], fill: Any = 0) -> Value:
    """`fill` around a tensor, by (before, after) of the last dimension, the one before it, and so on; a negative width
    takes away.
    """
    rank = len(value.shape)
    widths = [context.place_of(each) for each in pad]
    before = {rank - 1 - k: (low, high) for k, (low, high) in enumerate(zip(widths[::2], widths[1::2], strict=True))}
    number = context.rounded(fill, context.dtype)

    def at(index: Index) -> ir.Node:
        inside: Condition = True
        entries = list(index)
        for dim, (low, high) in before.items():
            if low == high == 0:
                continue
            entry = plus(index[dim], -low)
            here = is_within(entry, value.shape[dim])
            entries[dim] = checked(entry, here)
            inside = both(inside, here)
        return choose(inside, lambda: value.at(entries), lambda: number.at(()), context.compute)

    factors = [f if before.get(d, (0, 0)) == (0, 0) else (context.shape[d],) for d, f in enumerate(value.factors)]
    return Value(context.shape, context.dtype, at, factors)


# What a view shows, written.


@lowers("slice_scatter.default")
def slice_scatter(
    context: Context, value: Value, source: Value, dim: int = 0, first: Any = None, end: Any = None, step: Any = 1
) -> Value:
    """`value` with `source` in the place of a slice."""
    dim %= len(value.shape)
    start, stride = context.place_of(0 if first is None else first), context.place_of(step)

    def at(index: Index) -> ir.Node:
        entry, hit = divided(plus(index[dim], -start), stride)
        inside = both(is_within(entry, source.shape[dim]), True if hit is None else hit)
        place = replaced(index, dim, checked(entry, inside))
        return choose(inside, lambda: source.at(place), lambda: value.at(index), context.compute)

    factors = [(n,) if d == dim else f for d, (n, f) in enumerate(zip(context.shape, source.factors, strict=True))]
    return Value(context.shape, context.dtype, at, factors)


@lowers("select_scatter.default")
def select_scatter(context: Context, value: Value, source: Value, dim: int, place: Any) -> Value:
    """`value` with `source` at one place of a dimension."""
    dim %= len(value.shape)
    where = context.place_of(place)

    def at(index: Index) -> ir.Node:
        entry = index[dim]
        hit: Condition = is_within(plus(entry, -where), sympy.S.One)
        if not isinstance(hit, bool):
            hit = ir.apply("eq", position(entry), ir.index(where))
        return choose(hit, lambda: source.at(replaced(index, dim)), lambda: value.at(index), context.compute)

    factors = list(source.factors)
    factors.insert(dim, (context.shape[dim],))
    return Value(context.shape, context.dtype, at, factors)


# Diagonals.


@lowers("diagonal.default")
def diagonal(context: Context, value: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The elements at `(k, k + offset)` of two dimensions, k last."""
    row, column = dim1 % len(value.shape), dim2 % len(value.shape)
    others = [dim for dim in range(len(value.shape)) if dim not in (row, column)]

    def at(index: Index) -> ir.Node:
        entries: list[Entry] = [sympy.S.Zero] * len(value.shape)
        for dim, entry in zip(others, index[:-1], strict=True):
            entries[dim] = entry
        entries[row] = plus(index[-1], sympy.Integer(max(-offset, 0)))
        entries[column] = plus(index[-1], sympy.Integer(max(offset, 0)))
        return value.at(entries)

    return Value(context.shape, value.dtype, at, [*(value.factors[dim] for dim in others), (context.shape[-1],)])


@lowers("diagonal_scatter.default")
def diagonal_scatter(
    context: Context, value: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """`value` with `source` on the diagonal."""
    row, column = dim1 % len(value.shape), dim2 % len(value.shape)

    def at(index: Index) -> ir.Node:
        others = tuple(entry for dim, entry in enumerate(index) if dim not in (row, column))
        along = plus(index[row], sympy.Integer(min(offset, 0)))
        hit = ir.apply("eq", position(plus(index[row], sympy.Integer(offset))), position(index[column]))
        place = checked(along, is_within(along, source.shape[-1]))
        return choose(hit, lambda: source.at((*others, place)), lambda: value.at(index), context.compute)

    return Value(context.shape, context.dtype, at)


# Windows and order.


@lowers("unfold.default")
def unfold(context: Context, value: Value, dim: int, size: int, step: int) -> Value:
    """Windows of a dimension: `value[..., k * step + j, ...]`, j last."""
    if not value.shape:
        raise NotImplementedError("windows of a number")
    dim %= len(value.shape)

    def at(index: Index) -> ir.Node:
        *outer, inside = index
        return value.at(replaced(tuple(outer), dim, plus(times(outer[dim], sympy.Integer(step)), inside)))

    factors = [(n,) if d == dim else f for d, (n, f) in enumerate(zip(context.shape[:-1], value.factors, strict=True))]
    return bounded(Value(context.shape, value.dtype, at, [*factors, (context.shape[-1],)]), dim, len(context.shape) - 1)


@lowers("flip.default")
def flip(context: Context, value: Value, dims: Sequence[int]) -> Value:
    """Dimensions from their end to their beginning."""
    turned = {dim % max(len(value.shape), 1) for dim in dims}

    def at(index: Index) -> ir.Node:
        return value.at([mirrored(e, value.shape[d]) if d in turned else e for d, e in enumerate(index)])

    return Value(context.shape, value.dtype, at, value.factors)
