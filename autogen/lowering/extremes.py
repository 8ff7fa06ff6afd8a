"""Lower maxima and minima with their indices, and variances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.lowering.entries import plus, position, times
from autogen.lowering.registry import Context, lowers, number
from autogen.lowering.unrolling import reduction
from autogen.lowering.values import Entry, Index, Value, elementwise, numel


def all_dims(value: Value, dims: int | Sequence[int] | None) -> list[int]:
    """The dimensions an op reduces: none named means all."""
    if isinstance(dims, int):
        dims = [dims]
    if not dims or not value.shape:  # a scalar, too, may be reduced over its dimension 0
        return list(range(len(value.shape)))
    return list(dims)


def _extreme(context: Context, kind: str, value: Value, dims: Any, keepdim: bool) -> tuple[Value, Value]:
    """The extreme value over `dims` and the first place, in row-major order, that has it; nan is the most extreme."""
    value = comparable(value)
    dims = sorted(dim % len(value.shape) for dim in all_dims(value, dims))
    extreme = reduction(kind, value, dims, True)
    count = numel(tuple(value.shape[dim] for dim in dims))

    def place_at(index: Index) -> ir.Node:
        node = value.at(index)
        hit = ir.apply("eq", node, extreme.at([sympy.S.Zero if d in dims else e for d, e in enumerate(index)]))
        if node.dtype.is_floating_point:  # the extreme is nan if there is a nan, and equals none
            hit = ir.apply("logical_or", hit, ir.apply("isnan", node))
        flat: Entry = sympy.S.Zero
        for dim in dims:
            flat = plus(times(flat, value.shape[dim]), index[dim])
        # In int32, as the places in a row are where the kernel has them at hand: no row is that long.
        place, beyond = (ir.cast(position(each), torch.int32) for each in (flat, count))
        return ir.apply("where", hit, place, beyond)

    first = reduction("min", Value(value.shape, torch.int32, place_at, value.factors), dims, keepdim)
    places = elementwise(first.shape, torch.int64, lambda x: x, first)
    found = reduction(kind, value, dims, keepdim)
    return elementwise(found.shape, context.dtype, lambda x: x, found), places


def comparable(value: Value) -> Value:
    """A tensor whose elements can be compared."""
    return elementwise(value.shape, torch.int32, lambda x: x, value) if value.dtype == torch.bool else value


@lowers("max.dim")
def max_dim(context: Context, value: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The largest element over a dimension and its place, the first of several; nan wins."""
    return _extreme(context, "max", value, dim, keepdim)


@lowers("min.dim")
def min_dim(context: Context, value: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """The smallest element over a dimension and its place, the first of several; nan wins."""
    return _extreme(context, "min", value, dim, keepdim)


@lowers("argmax.default")
def argmax(context: Context, value: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first place of the largest element."""
    return _place(context, "max", value, dim, keepdim)


@lowers("argmin.default")
def argmin(context: Context, value: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The first place of the smallest element."""
    return _place(context, "min", value, dim, keepdim)


def _place(context: Context, kind: str, value: Value, dim: int | None, keepdim: bool) -> Value:
    if value.dtype == torch.bool and not context.of_formula:
        raise NotImplementedError("the place of an extreme among bools, which is torch's error")
    return _extreme(context, kind, value, dim, keepdim)[1]


# Variance.

# Where less than so many roundings of its squares are left of a variance, it is 0.
_ROUNDINGS = 32


@lowers("var_mean.correction")
def var_mean(
    context: Context, value: Value, dims: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, Value]:
    """`sum((x - mean)^2) / max(0, n - correction)` over `dims`, and the mean.

    What the mean has lost by being rounded is in every square, and `sum(x - mean)` tells what that was.
    """
    compute = context.compute
    limits = torch.finfo(compute)
    dims = all_dims(value, dims)
    wide = elementwise(value.shape, context.dtype, lambda x: ir.cast(x, compute), value)
    size = number(numel(tuple(value.shape[dim] for dim in dims)), compute)
    fewer = context.value(1 if correction is None else correction)

    def mean_of(total: ir.Node) -> ir.Node:
        return context.name(ir.apply("div", total, size), "mean")

    def centred(x: ir.Node, m: ir.Node) -> ir.Node:
        return context.name(ir.apply("sub", x, m), "centred")

    def finish(squares: ir.Node, rest: ir.Node) -> ir.Node:
        squares, rest = context.name(squares, "squares"), context.name(rest, "rest")
        lost = ir.apply("mul", rest, ir.apply("div", rest, size))
        # Infinite squares stay infinite, and of elements that are all the same nothing is left, as in torch.
        left = ir.apply("sub", squares, ir.apply("minimum", lost, ir.const(limits.max, compute)))
        is_rounding = ir.apply("lt", left, ir.apply("mul", squares, ir.const(_ROUNDINGS * limits.eps, compute)))
        left = ir.apply("where", is_rounding, ir.const(0, compute), left)
        degrees = ir.apply("sub", size, ir.cast(fewer.at(()), compute))
        return context.name(ir.apply("div", left, ir.apply("maximum", degrees, ir.const(0, compute))), "variance")

    totals = reduction("sum", wide, dims, True)
    mean = elementwise(totals.shape, context.dtype, mean_of, totals)
    apart = elementwise(value.shape, context.dtype, centred, wide, mean)
    squared = elementwise(value.shape, context.dtype, lambda c: ir.apply("mul", c, c), apart)
    spread, rest = (reduction("sum", each, dims, keepdim) for each in (squared, apart))
    variance = elementwise(spread.shape, context.dtype, finish, spread, rest)
    if not keepdim:
        totals = reduction("sum", wide, dims, False)
        mean = elementwise(totals.shape, context.dtype, mean_of, totals)
    return variance, mean


@lowers("var.correction")
def var(context: Context, value: Value, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    """The variance over `dims`."""
    return var_mean(context, value, dims, correction=correction, keepdim=keepdim)[0]
