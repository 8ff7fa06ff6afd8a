"""What the contrastive kernels compute of tiles of embeddings, and of pairs of them."""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp2_normal, maximum, minimum, rsqrt
from autogen.device_math.basic import INTERPRETED

EPSILON = tl.constexpr(1e-12)  # that of `torch.nn.functional.normalize`


@triton.jit
def halves(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """A number of single precision as the sum of two that tensor cores multiply as they are: 11 bits, and 12 of which
    the last is lost.
    """
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def plus_product(total: tl.tensor, x: tl.tensor, y: tl.tensor, IS_EXACT: tl.constexpr) -> tl.tensor:
    """`total`, in single precision, plus the matrix product of factors of one dtype."""
    if INTERPRETED:  # which takes the bits of a bfloat16 for an integer
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    if IS_EXACT:
        # As `halves` has it, in other words, which LLVM makes the same: if two products shared a half, Triton 3.8 would
        # send it through shared memory for one of them.
        y_high = ((y.to(tl.int32, bitcast=True) + 0x1000) >> 13 << 13).to(tl.float32, bitcast=True)
        x, x_rest = halves(x)
        y, y_rest = halves(y)
        total = tl.dot(x_rest, y, total, input_precision="tf32")
        total = tl.dot(x, y_rest, total, input_precision="tf32")
        y = y_high
    return tl.dot(x, y, total, input_precision="tf32")


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
