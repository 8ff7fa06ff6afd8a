"""Lower reads at computed indices, and the negative log-likelihood, which is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.lowering import extremes, factories, joining, scattering, unrolling  # noqa: F401  (they register)
from autogen.lowering.entries import as_index, chosen_dims, is_at, looked_up, wrapped
from autogen.lowering.pointwise import apply_op
from autogen.lowering.registry import Context, lowers
from autogen.lowering.values import Entry, Index, Shape, Value, aligned
from autogen.lowering.values import reduction as reduce_value


@lowers("gather.default")
def gather(context: Context, value: Value, dim: int, places: Value, sparse_grad: bool = False) -> Value:
    """`value[..., places[...], ...]` along `dim`."""
    if len(value.shape) != len(places.shape):
        raise NotImplementedError("places of another rank, which a number and no places may have")
    if not value.shape:
        return value
    dim %= len(value.shape)

    def at(index: Index) -> ir.Node:
        return looked_up(value, (*index[:dim], as_index(places.at(index)), *index[dim + 1 :]))

    return Value(context.shape, value.dtype, at, places.factors)


@lowers("index.Tensor")
def index_(context: Context, value: Value, indices: Sequence[Value | None]) -> Value:
    """`value[indices]` with integer tensors for some dimensions, which broadcast together."""
    given = [each for each in indices if each is not None]
    if any(each.dtype in (torch.bool, torch.uint8) for each in given):
        raise NotImplementedError("a boolean mask as an index")
    dims, places, first = chosen_dims(indices)

    def at(index: Index) -> ir.Node:
        inner = index[first : first + len(places)]
        entries: list[Entry] = [*index[:first], *index[first + len(places) :]]
        for dim, each in zip(dims, given, strict=True):
            entries.insert(dim, wrapped(each.at(aligned(inner, each.shape)), value.shape[dim]))
        return looked_up(value, tuple(entries))

    return Value(context.shape, value.dtype, at)


@lowers("index_select.default")
def index_select(context: Context, value: Value, dim: int, places: Value) -> Value:
    """`value` at `places` along `dim`."""
    if not (value.shape and places.shape):
        raise NotImplementedError("a number, or one place")
    dim %= len(value.shape)

    def at(index: Index) -> ir.Node:
        place = as_index(places.at((index[dim],)))
        return looked_up(value, (*index[:dim], place, *index[dim + 1 :]))

    return Value(context.shape, value.dtype, at)


class _NLL:
    """The parts that the forward and backward of the negative log-likelihood share.

    Classes are dimension 1 (0 of an unbatched input); every other dimension belongs to the target.
    """

    def __init__(self, context: Context, target: Value, weight: Value | None, rank: int, ignore_index: Any) -> None:
        self.context, self.target, self.weight = context, target, weight
        self.dim = 1 if rank > 1 else 0
        self.ignored = context.value(ignore_index).at(())  # which may be a size

    def outer(self, index: Index) -> Index:
        """The target's index for an index of the input. An unbatched target may have shape () or (1,)."""
        rest = (*index[: self.dim], *index[self.dim + 1 :])
        return rest if len(rest) == len(self.target.shape) else (sympy.S.Zero,) * len(self.target.shape)

    def factors(self, value: Value) -> list[Shape]:
        """Of each dimension but the classes, the finest factors that the input or the target knows."""
        own = [factors for dim, factors in enumerate(value.factors) if dim != self.dim]
        pairs = zip(own, self.target.factors, strict=False)
        return own if len(own) != len(self.target.shape) else [max(pair, key=len) for pair in pairs]

    def label(self, outer: Index) -> ir.Node:
        return as_index(self.target.at(outer))

    def counted(self, outer: Index, value: ir.Node) -> ir.Node:
        """`value`, or 0 where the target is to be ignored."""
        kept = ir.apply("ne", self.label(outer), self.ignored)
        return ir.apply("where", self.context.name(kept, "is_counted"), value, ir.const(0, value.dtype))

    def class_weight(self, outer: Index) -> ir.Node:
        compute = self.context.compute
        if self.weight is None:
            return ir.const(1, compute)
        return self.context.name(ir.cast(self.weight.at((self.label(outer),)), compute), "class_weight")

    def scaled(self, outer: Index, value: ir.Node) -> ir.Node:
        return value if self.weight is None else ir.apply("mul", value, self.class_weight(outer))


@lowers("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss_forward(
    context: Context, value: Value, target: Value, weight: Value | None, reduction: int, ignore_index: Any
) -> tuple[Value, Value]:
    """`-weight[y] * value[y]` of each row, ignored rows 0; the mean divides by the total weight."""
    nll = _NLL(context, target, weight, len(value.shape), ignore_index)
    shape = tuple(n for dim, n in enumerate(value.shape) if dim != nll.dim)
    factors = nll.factors(value)

    def loss_at(index: Index) -> ir.Node:
        outer = nll.outer((*index[: nll.dim], sympy.S.Zero, *index[nll.dim :]))
        picked = value.at((*index[: nll.dim], nll.label(outer), *index[nll.dim :]))
        negated = ir.apply("neg", ir.cast(picked, context.compute))
        return context.name(nll.counted(outer, nll.scaled(outer, negated)), "loss")

    def weight_at(index: Index) -> ir.Node:
        outer = nll.outer((*index[: nll.dim], sympy.S.Zero, *index[nll.dim :]))
        return nll.counted(outer, nll.class_weight(outer))

    rows = Value(shape, context.dtype, loss_at, factors)
    weights = Value(shape, context.dtype, weight_at, factors)
    total_weight = reduce_value("sum", weights, range(len(shape)), False)
    named = Value((), context.dtype, lambda i: context.name(total_weight.at(i), "total_weight"))
    if reduction == 0:
        return rows, named
    total = reduce_value("sum", rows, range(len(shape)), False)
    return (apply_op(context, "div", total, named) if reduction == 1 else total), named


@lowers("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(
    context: Context,
    grad: Value,
    value: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: Any,
    total_weight: Value,
) -> Value:
    """A row that is `-weight[y] * grad` (over the total weight, for the mean) at its target and 0 elsewhere."""
    nll = _NLL(context, target, weight, len(value.shape), ignore_index)

    def at(index: Index) -> ir.Node:
        outer = nll.outer(index)
        row_grad = ir.cast(grad.at(outer if grad.shape else ()), context.compute)
        if reduction == 1:
            row_grad = ir.apply("div", row_grad, ir.cast(total_weight.at(()), context.compute))
        row = nll.counted(outer, nll.scaled(outer, ir.apply("neg", row_grad)))
        context.name(row, "target_grad")
        return ir.apply("where", is_at(index[nll.dim], nll.label(outer)), row, ir.const(0, context.compute))

    factors = nll.factors(value)
    return Value(context.shape, context.dtype, at, [*factors[: nll.dim], value.factors[nll.dim], *factors[nll.dim :]])
