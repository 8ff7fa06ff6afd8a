"""Lower reads and writes by a boolean mask: kernels walk the whole tensor, and masked elements do not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.compat import pytree
from autogen.ir.substitution import substitute
from autogen.lowering.registry import Context, Lowering, lowers
from autogen.lowering.values import Chosen, Entry, Index, Shape, Value, aligned, free_axes, fresh_entry
from autogen.lowering.views import divide


def chosen(name: str, mask: Value) -> Chosen:
    """The size of what a mask chooses."""

    def holds(entry: Entry) -> ir.Node:
        return mask.at(_unflattened(entry, mask.shape))

    return Chosen(name, holds, tuple(factor for factors in mask.factors for factor in factors))


# Lowerings that treat all that a mask chooses alike: those of a whole file, and some. They may ask for it in another
# order, which `masked_read` refuses.
_ALIKE = {"pointwise", "reductions", "losses", "masks", "extremes", "views"}
_ALIKE_TOO = {
    *("full", "full_like", "fill", "scalar_tensor"),
    *("empty", "empty_like", "new_empty", "empty_permuted", "_efficientzerotensor"),
    *("split", "split_with_sizes", "unsafe_split", "cat", "stack", "flip", "gather", "index", "index_select"),
    *("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward"),
}
# Lowerings that write to places along a dimension, and which of their arguments that is.
_ALONG = {"slice_scatter": 2, "select_scatter": 2}


def refuse_order(
    name: str, lowering: Lowering, args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[Shape]
) -> None:
    """Raise if a lowering may tell which of the elements that a mask chooses is which: it would see their places."""
    values = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Value)]
    if not any(size.has(Chosen) for shape in (*shapes, *(value.shape for value in values)) for size in shape):
        return
    name = name.partition(".")[0]
    if lowering.__module__.rpartition(".")[2] in _ALIKE or name in _ALIKE_TOO:
        return
    if name in _ALONG:
        dim = args[_ALONG[name]] if len(args) > _ALONG[name] else kwargs.get("dim", 0)
        if not shapes[0][dim].has(Chosen):
            return
    raise NotImplementedError(f"{name} of what a mask chooses")


def _runs_over_all(entry: sympy.Expr, factors: Shape) -> bool:
    """Whether an index runs over all places, each at its own."""
    rest = sympy.expand(entry)
    step: sympy.Expr = sympy.S.One
    axes = {symbol for symbol in rest.free_symbols if isinstance(symbol, ir.Axis)}
    while axes:
        axis = next((each for each in axes if sympy.expand(rest.coeff(each, 1) - step) == 0), None)
        if axis is None:
            break
        axes.remove(axis)
        rest, step = sympy.expand(rest - step * axis), sympy.expand(step * axis.size)
    return not axes and rest == 0 and sympy.expand(step - sympy.Mul(*factors)) == 0


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


def _flattened(index: Sequence[sympy.Expr], shape: Shape) -> sympy.Expr:
    flat: sympy.Expr = sympy.S.Zero
    for entry, size in zip(index, shape, strict=True):
        flat = flat * size + entry
    return sympy.expand(flat)


def _at_own_place(at_place: Callable[[Entry], ir.Node], inner: Index, shape: Shape, taken: set[ir.Axis]) -> ir.Node:
    """What a mask of some shape has chosen, at the place that an index of the mask names."""
    plain = [entry for entry in inner if not isinstance(entry, ir.Node)]
    if len(plain) == len(inner) and _runs_over_all(_flattened(plain, shape), shape):
        return at_place(_flattened(plain, shape))
    # It is known where an index runs over all places. So one does, whose axes then become what is asked for. Those
    # that are it already are not mentioned, as a sum below may bind an axis of the same name.
    all_places = [fresh_entry((size,), taken) for size in shape]
    node = at_place(_flattened(all_places, shape))
    return substitute(node, {axis: e for axis, e in zip(all_places, inner, strict=True) if axis not in (0, e)})


@lowers("masked_read")
def masked_read(context: Context, value: Value, mask: Value, before: int) -> Value:
    """`value[..., mask]`: the dimensions of the mask become one, which runs over all of its places."""
    after = before + len(mask.shape)
    size = context.shape[before]
    assert isinstance(size, Chosen)

    def at(index: Index) -> ir.Node:
        if isinstance(index[before], ir.Node):
            raise NotImplementedError("a computed index into what a mask chooses")
        if not _runs_over_all(index[before], size.factors):  # what is chosen has no other order that is known
            raise NotImplementedError("some of what a mask chooses")
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
) -> Value:
    """`value` with `values` where the mask is true, or added there."""
    if accumulate and value.dtype == torch.bool:
        raise NotImplementedError("flags that are added")
    after = before + len(mask.shape)
    own = len(values.shape) - (len(value.shape) - after) - 1  # the dimension of `values` that runs over what is chosen
    are_equal = own < 0 or values.shape[own] == 1

    def written(index: Index) -> ir.Node:
        def at_place(place: Entry) -> ir.Node:
            return values.at(aligned((*index[:before], place, *index[after:]), values.shape))

        inner = index[before:after]
        if are_equal:
            return at_place(sympy.S.Zero)
        return _at_own_place(at_place, inner, mask.shape, free_axes((*index[:before], *index[after:])))

    def at(index: Index) -> ir.Node:
        new, old = ir.cast(written(index), value.dtype), value.at(index)
        new = ir.apply("add", old, new) if accumulate else new
        return ir.apply("where", mask.at(index[before:after]), new, old)

    return Value(context.shape, value.dtype, at, value.factors)
