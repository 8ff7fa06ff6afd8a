"""Reads and writes by a boolean mask: the whole tensor is walked, and what is not chosen does not count."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from autogen import ir
from autogen.lowering.entries import as_index
from autogen.lowering.registry import Context, lowers
from autogen.lowering.values import Chosen, Entry, Index, Shape, Value, aligned
from autogen.lowering.views import divide


def chosen(name: str, mask: Value) -> Chosen:
    """The size of what a mask chooses."""

    def holds(entry: Entry) -> ir.Node:
        return mask.at(_unflattened(entry, mask.shape))

    return Chosen(name, holds, tuple(factor for factors in mask.factors for factor in factors))


def _unflattened(entry: Entry, shape: Shape) -> list[Entry]:
    """The index of the element that has a position in the order of memory."""
    if isinstance(entry, ir.Node):
        raise NotImplementedError("a computed index into what a mask chooses")
    entries: list[Entry] = []
    rest = entry
    for dim in reversed(range(len(shape))):
        rest, own = divide(rest, shape[dim], last=dim == 0)
        entries.append(own)
    return entries[::-1]


def _flattened(index: Sequence[Entry], shape: Shape) -> sympy.Expr:
    flat: sympy.Expr = sympy.S.Zero
    for entry, size in zip(index, shape, strict=True):
        if isinstance(entry, ir.Node):
            raise NotImplementedError("a computed index into what a mask has written")
        flat = flat * size + entry
    return sympy.expand(flat)


@lowers("masked_read")
def masked_read(context: Context, value: Value, mask: Value, before: int) -> Value:
    """`value[..., mask]`: the dimensions of the mask become one, which runs over all of its places."""
    after = before + len(mask.shape)
    size = context.shape[before]
    assert isinstance(size, Chosen)

    def at(index: Index) -> ir.Node:
        return value.at((*index[:before], *_unflattened(index[before], mask.shape), *index[before + 1 :]))

    factors = [*value.factors[:before], size.factors, *value.factors[after:]]
    return Value(context.shape, value.dtype, at, factors)


@lowers("masked_write")
def masked_write(
    context: Context,
    value: Value,
    mask: Value,
    before: int,
    values: Value,
    accumulate: bool,
    order: Value | None = None,
) -> Value:
    """`value` with `values` where the mask is true, or added there; at each place the one that `order` tells."""
    after = before + len(mask.shape)

    def at(index: Index) -> ir.Node:
        inner = index[before:after]
        place = _flattened(inner, mask.shape) if order is None else as_index(order.at(inner))
        new = ir.cast(values.at(aligned((*index[:before], place, *index[after:]), values.shape)), value.dtype)
        old = value.at(index)
        new = ir.apply("add", old, new) if accumulate else new
        return ir.apply("where", mask.at(inner), new, old)

    return Value(context.shape, value.dtype, at, value.factors)
