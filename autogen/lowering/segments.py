"""Lower ops on packed variable-length sequences: searches in offsets, reductions of each, and padding.

Which sequence an item belongs to is a search in the offsets (`ir.search`). What is reduced per sequence is a sum over
all items that counts those from the sequence's first to its last, of which kernels walk no others
(`autogen.scheduling.launches.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.lowering.entries import as_index, choose, plain, plus, position
from autogen.lowering.registry import Context, lowers
from autogen.lowering.sequences import at_sequence, within
from autogen.lowering.unrolling import COMBINED
from autogen.lowering.values import Entry, Index, Value, free_axes, fresh_axis

SORTED = {
    "bucketize.Tensor": (1, "boundaries"),
    "searchsorted.Tensor": (0, "sorted_sequence"),
    "segment_reduce.default": (None, "offsets"),
    "_segment_reduce_backward.default": (None, "offsets"),
}
"""The position and name of the argument that has to be in memory, of ops that search it."""


def _sought(value: Value) -> tuple[ir.Node, int, ir.Node | None]:
    """Of a sorted vector in memory its first element, the dimension of its buffer, and what is added to all of it."""
    if len(value.shape) != 1 or value.dtype not in (torch.int64, torch.int32):
        raise NotImplementedError("a search in other than a vector of integers")
    axis = ir.Axis("sorted", value.shape[0])
    node, shift = value.at((axis,)), None
    if node.op == "sub" and not node.args[1].axes:
        node, shift = node.args[0], ir.cast(node.args[1], torch.int64)
    if node.op == "cast":
        node = node.args[0]
    if node.op != "load" or node.args:
        raise NotImplementedError("a search in what is not in memory")
    buffer, entries = node.attrs
    dims = [dim for dim, entry in enumerate(entries) if axis in entry.free_symbols]
    if len(dims) != 1 or sympy.expand(entries[dims[0]] - axis).has(axis):
        raise NotImplementedError("a search in what does not lie one after the other")
    return ir.load(buffer, [entry.subs(axis, 0) for entry in entries]), dims[0], shift


def is_in_memory(value: Value) -> bool:
    """Whether a vector can be searched."""
    if 0 in value.shape:
        return True
    try:
        _sought(value)
    except NotImplementedError:
        return False
    return True


def _count(ordered: Value, value: ir.Node, *, right: bool) -> ir.Node:
    """How many elements of a sorted vector are at most `value`, or below it."""
    if 0 in ordered.shape:
        return ir.const(0, torch.int64)
    first, dim, shift = _sought(ordered)
    value = as_index(value)
    if shift is not None:
        value = ir.apply("add", value, shift)
    if not right:
        value = position(plus(plain(value), sympy.S.NegativeOne))
    return ir.search(first, dim, ordered.shape[0], value)


@lowers("searchsorted.Tensor")
def searchsorted(
    context: Context,
    ordered: Value,
    values: Value,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """The places at which `values` would keep a sorted vector sorted; behind equal ones if `right`."""
    if sorter is not None or values.dtype.is_floating_point:
        raise NotImplementedError("a search for other than integers")
    behind = right or side == "right"
    return Value(
        context.shape, context.dtype, lambda index: _count(ordered, values.at(index), right=behind), values.factors
    )


@lowers("bucketize.Tensor")
def bucketize(
    context: Context, values: Value, boundaries: Value, out_int32: bool = False, right: bool = False
) -> Value:
    """The buckets that `values` are in, between sorted boundaries."""
    return searchsorted(context, boundaries, values, right=right)


def of_sequence(kind: str, value: Value, place: ir.Node, axis: ir.Axis, index: Index, entry: Entry) -> ir.Node:
    """`value`, of which dimension 0 is items, reduced over those of a sequence; that of item `axis` is `place`."""
    body = value.at((axis, *index))
    inside = within(place, entry)
    assert inside is not None
    nothing = ir.const(ir.identity(kind, body.dtype), body.dtype)
    return ir.reduce(kind, [axis], ir.apply("where", inside, at_sequence(body, place, entry), nothing))


class _Segments:
    """The sequences of items that offsets tell."""

    def __init__(self, offsets: Value, items: sympy.Expr) -> None:
        if len(offsets.shape) != 1:
            raise NotImplementedError("offsets of several dimensions")
        self.offsets, self.items, self.count = offsets, items, offsets.shape[0] - 1
        _sought(offsets)

    def of(self, item: Entry) -> ir.Node:
        """The sequence that an item belongs to."""
        count = _count(self.offsets, position(item), right=True)
        return ir.apply("sub", count, ir.const(1, torch.int64))

    def start(self, entry: Entry) -> ir.Node:
        return as_index(self.offsets.at((entry,)))

    def length(self, entry: Entry) -> ir.Node:
        return ir.apply("sub", as_index(self.offsets.at((plus(entry, sympy.S.One),))), self.start(entry))

    def reduced(self, kind: str, value: Value, index: Index) -> ir.Node:
        """Items reduced over those of the sequence `index[0]`."""
        axis = fresh_axis(self.items, free_axes(index))
        return of_sequence(kind, value, self.of(axis), axis, index[1:], index[0])

    def inside(self, item: Entry, place: ir.Node) -> ir.Node:
        """Whether an item belongs to a sequence at all."""
        first, count = ir.apply("ge", place, ir.const(0, torch.int64)), ir.index(self.count)
        return ir.apply("logical_and", first, ir.apply("lt", place, count))


_KINDS = {"sum": "sum", "mean": "sum", "max": "max", "min": "min", "prod": "prod"}


@lowers("segment_reduce.default")
def segment_reduce(
    context: Context,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Value:
    """Each sequence of items reduced, beginning with `initial`; a mean of no items is nan without."""
    if offsets is None or axis != 0:
        raise NotImplementedError("sequences that are not told by offsets")
    segments = _Segments(offsets, data.shape[0])

    def at(index: Index) -> ir.Node:
        node = segments.reduced(_KINDS[reduce], data, index)
        if initial is not None:
            node = ir.apply(COMBINED[_KINDS[reduce]], node, ir.const(initial, node.dtype))
        if reduce != "mean":
            return node
        length = ir.cast(segments.length(index[0]), node.dtype)
        mean = ir.apply("div", node, length)
        if initial is None:
            return mean
        return ir.apply("where", ir.apply("gt", length, ir.const(0, length.dtype)), mean, node)

    return Value(context.shape, context.dtype, at)


@lowers("_segment_reduce_backward.default")
def segment_reduce_backward(
    context: Context,
    grad: Value,
    output: Value,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Value:
    """The gradient of each item: of its sequence's, a share; of an extreme, equal shares for those that are it."""
    if offsets is None or axis != 0 or reduce == "prod":
        raise NotImplementedError("sequences that are not told by offsets, or a product")
    segments = _Segments(offsets, data.shape[0])

    def is_extreme(index: Index, place: Entry) -> ir.Node:
        value = data.at(index)
        equal = ir.apply("eq", value, output.at((place, *index[1:])))
        return ir.apply("logical_or", equal, ir.apply("ne", value, value))

    def at(index: Index) -> ir.Node:
        place = segments.of(index[0])
        share = ir.cast(grad.at((place, *index[1:])), context.compute)
        zero = ir.const(0, context.compute)
        if reduce == "mean":
            share = ir.apply("div", share, ir.cast(segments.length(place), context.compute))
        elif reduce != "sum":
            one = ir.const(1, context.compute)
            counted = Value(
                data.shape, data.dtype, lambda own: ir.apply("where", is_extreme(own, segments.of(own[0])), one, zero)
            )
            alike = segments.reduced("sum", counted, (place, *index[1:]))
            share = ir.apply("where", is_extreme(index, place), ir.apply("div", share, alike), zero)
        return ir.apply("where", segments.inside(index[0], place), share, zero)

    return Value(context.shape, context.dtype, at, data.factors)


# Padding, as jagged tensors are padded.


@lowers("_jagged_to_padded_dense_forward.default")
def jagged_to_padded(
    context: Context, values: Value, offsets: Sequence[Value], lengths: Sequence[Any], padding: Any = 0.0
) -> Value:
    """Sequences one per row, `padding` behind the end of each."""
    if len(offsets) != 1:
        raise NotImplementedError("sequences of sequences")
    segments = _Segments(offsets[0], values.shape[0])
    fill = context.rounded(padding, context.dtype)

    def at(index: Index) -> ir.Node:
        row, place, *rest = index
        item = plus(place, segments.start(row))
        is_item = ir.apply("lt", position(place), segments.length(row))
        return choose(is_item, lambda: values.at((item, *rest)), lambda: fill.at(()), context.compute)

    return Value(context.shape, context.dtype, at)


@lowers("_padded_dense_to_jagged_forward.default")
def padded_to_jagged(context: Context, dense: Value, offsets: Sequence[Value], total: Any = None) -> Value:
    """The rows of a padded tensor as sequences, one after the other, without their padding."""
    if len(offsets) != 1:
        raise NotImplementedError("sequences of sequences")
    segments = _Segments(offsets[0], context.shape[0])

    def at(index: Index) -> ir.Node:
        place = segments.of(index[0])
        within_row = ir.apply("sub", position(index[0]), segments.start(place))
        return dense.at((place, within_row, *index[1:]))

    return Value(context.shape, context.dtype, at, [(n,) for n in context.shape])
