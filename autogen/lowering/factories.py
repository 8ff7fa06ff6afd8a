"""Lower ops that make tensors from a shape alone: constants, ranges, the identity and triangles."""

from __future__ import annotations

from typing import Any

from autogen import ir
from autogen.lowering.entries import plus, position, times
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


@lowers("empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default")
@lowers("_efficientzerotensor.default")
def zeros(context: Context, *_: Any, **__: Any) -> Value:
    """0 everywhere, which will do for memory that anything may be in."""
    return full(context, 0)


@lowers("arange.start_step")
def arange(context: Context, start: Any, end: Any, step: Any = 1, **_: Any) -> Value:
    """`start + step * k` at position k."""
    first, stride = context.size_of(start), context.size_of(step)

    def at(index: Index) -> ir.Node:
        (entry,) = index
        if first.is_integer and stride.is_integer:
            return ir.cast(position(plus(times(entry, stride), first)), context.compute)
        scaled = ir.apply("mul", ir.cast(position(entry), context.compute), number(stride, context.compute))
        return ir.apply("add", scaled, number(first, context.compute))

    return Value(context.shape, context.dtype, at)
