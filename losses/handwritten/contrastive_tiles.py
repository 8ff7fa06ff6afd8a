"""What the contrastive kernels read and compute of tiles of embeddings, and of pairs of them."""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp2_normal, maximum, minimum, rsqrt
from autogen.device_math.basic import INTERPRETED

EPSILON = tl.constexpr(1e-12)  # that of `torch.nn.functional.normalize`
LOG2_E = tl.constexpr(1.4426950408889634)
STAGES = tl.constexpr(2)  # tiles of others that are on their way at a time


@triton.jit
def places(
    first: tl.tensor,
    count: tl.tensor,
    n_dims: tl.tensor,
    row_stride: tl.tensor,
    dim_stride: tl.tensor,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of the embeddings from the `first`: where they begin, the offsets from there, and which of `count` there are."""
    row = tl.arange(0, ROWS)[:, None]
    dim = tl.arange(0, DIMS)[None, :]
    # A tile may begin anywhere; offsets within it have 32 bits, and are those of each tile.
    return (
        tl.cast(first, tl.int64) * row_stride,
        row * row_stride + dim * dim_stride,
        (row < count - first) & (dim < n_dims),
    )


@triton.jit
def embeddings(
    x_ptr: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    n_dims: tl.tensor,
    row_stride: tl.tensor,
    dim_stride: tl.tensor,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
) -> tl.tensor:
    """A tile of embeddings; 0 where there is none."""
    start, place, mask = places(first, count, n_dims, row_stride, dim_stride, ROWS, DIMS)
    x = tl.load(x_ptr + start + place, mask=mask, other=0.0)
    return x


@triton.jit
def power_of_2(exponent: tl.tensor) -> tl.tensor:
    """2 to the power of integers from -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(x: tl.tensor) -> tl.tensor:
    """The power of 2 that is next below positive numbers; that of 0 is -127."""
    return (x.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def halves(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Numbers of single precision, of at most 2^15, as sums of two halves: off by 2^-23 of a number, or by 2^-25."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def factors_of(x: tl.tensor, inv_norm: tl.tensor, IS_EXACT: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What tensor cores multiply of embeddings, the second of two `halves` if exact, and the inv_norm of that."""
    rest = x
    if IS_EXACT:
        # Of lengths from 2^8 to 2^9, of which 2^-25 does not count.
        exponent = exponent_of(inv_norm) + 8
        x, rest = halves(x * power_of_2(exponent)[:, None])
        inv_norm *= power_of_2(-exponent)
    return x, rest, inv_norm


@triton.jit
def product(x: tl.tensor, x_rest: tl.tensor, y: tl.tensor, y_rest: tl.tensor, IS_EXACT: tl.constexpr) -> tl.tensor:
    """The matrix product, in single precision, of factors of one dtype; of `halves` without the least part.

    Tensor cores round sums towards zero, so that the errors of long ones grow with their length. A product of halves
    begins at zero: Triton begins others at what they are added to, which is the same to their errors.
    """
    if IS_EXACT:
        total = tl.dot(x_rest, y)
        total = tl.dot(x, y_rest, total)
        if x.shape[0] < 64:  # of more rows, a Hopper's tensor cores read factors in shared memory
            # The same, in other words: of a factor of two products, Triton 3.8 would send one through shared memory.
            bits = y.to(tl.int16, bitcast=True)
            y = ((bits & 0x7FFF) | (bits & -0x8000)).to(tl.float16, bitcast=True)
        total = tl.dot(x, y, total)
    else:
        if INTERPRETED:  # which takes the bits of a bfloat16 for an integer
            x = x.to(tl.float32)
            y = y.to(tl.float32)
        total = tl.dot(x, y, input_precision="tf32")
    return total


@triton.jit
def inv_norm_of(x: tl.tensor) -> tl.tensor:
    """1 over the length of each embedding."""
    x = x.to(tl.float32)
    return rsqrt(maximum(tl.sum(x * x, 1), EPSILON * EPSILON))


@triton.jit
def are_paired(first_row: tl.tensor, ROWS: tl.constexpr, first_column: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    """Whether a tile has rows beside their own columns."""
    return (first_row < first_column + COLS) & (first_column < first_row + ROWS)


@triton.jit
def softmax_of(logit: tl.tensor, lse: tl.tensor) -> tl.tensor:
    """2 to the power of logits minus `lse`: at most 1."""
    # Also where there is no pair: 0 times infinity would be nan.
    return exp2_normal(minimum(logit - lse, 0.0))
