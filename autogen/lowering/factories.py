"""Tensors made of nothing but a shape: constants, ranges, the identity and triangles."""

from __future__ import annotations

from typing import Any

from autogen import ir
from autogen.lowering.entries import position
from autogen.lowering.pointwise import to_copy
from autogen.lowering.registry import Context, lowers, number
from autogen.lowering.values import Index, Value


@lowers(
    "full.default",
    "scalar_tensor.default",
    "full_like.default",
    "new_full.default",
    "fill.Scalar",
    "fill.Tensor",
)
def full(context: Context, *arguments: Any, **_: Any) -> Value:
    """One number everywhere."""
    return to_copy(context, context.rounded(arguments[-1], context.dtype))


@lowers("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", "_efficientzerotensor.default")
@lowers("empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default")
def zeros(context: Context, *_: Any, **__: Any) -> Value:
    """0 everywhere, which will do for memory that anything may be in."""
    return full(context, 0)


@lowers("ones.default", "ones_like.default", "new_ones.default")
def ones(context: Context, *_: Any, **__: Any) -> Value:
    """1 everywhere."""
    return full(context, 1)


@lowers("arange.default", "arange.start", "arange.start_step")
def arange(context: Context, *arguments: Any, **_: Any) -> Value:
    """`start + step * k` at position k."""
    start, step = 0, 1
    if len(arguments) > 1:
        start = arguments[0]
    if len(arguments) > 2:
        step = arguments[2]
    first, stride = context.size_of(start), context.size_of(step)

    def at(index: Index) -> ir.Node:
        (entry,) = index
        node = entry if isinstance(entry, ir.Node) else None
        if node is None and first.is_integer and stride.is_integer:
            return ir.cast(ir.index(entry * stride + first), context.compute)
        position = ir.cast(node if node is not None else ir.index(entry), context.compute)
        scaled = ir.apply("mul", position, number(stride, context.compute))
        return ir.apply("add", scaled, number(first, context.compute))

    return Value(context.shape, context.dtype, at)


@lowers("eye.default", "eye.m")
def eye(context: Context, *_: Any, **__: Any) -> Value:
    """1 on the diagonal, 0 elsewhere."""

    def at(index: Index) -> ir.Node:
        return ir.cast(ir.apply("eq", *map(position, index)), context.compute)

    return Value(context.shape, context.dtype, at)
