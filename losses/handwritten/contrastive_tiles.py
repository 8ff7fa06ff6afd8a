"""Load tiles of embeddings and compute pairs of them, inside the contrastive kernels.

Kernels of pairs read *factors* (see `contrastive_factors`), never embeddings: rows of DIMS numbers in half precision,
one after the other, 0 beyond the last dimension and up to a whole tile of rows, so that nothing is masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp2_normal, fma, minimum
from autogen.device_math.basic import INTERPRETED

EPSILON = tl.constexpr(1e-12)  # that of `torch.nn.functional.normalize`
LOG2_E = tl.constexpr(1.4426950408889634)
STAGES = tl.constexpr(2)  # tiles of others that are on their way at a time
LOWEST = tl.constexpr(-3.4028234663852886e38)  # the logit of what is not in a softmax, also where nothing is
LENGTH = tl.constexpr(256.0)  # of a factor of an embedding in single precision, at least of others; 2^-25 is little


@triton.jit
def factors(
    high_ptr: tl.tensor, rest_ptr: tl.tensor, first: tl.tensor, ROWS: tl.constexpr, DIMS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """A tile of factors, and of the second halves; twice the first if there are none."""
    start = tl.cast(first, tl.int64) * DIMS  # a tile may begin anywhere; offsets within it have 32 bits
    place = tl.arange(0, ROWS)[:, None] * DIMS + tl.arange(0, DIMS)[None, :]
    high = tl.load(high_ptr + start + place)
    return high, high if rest_ptr is None else tl.load(rest_ptr + start + place)


@triton.jit
def power_of_2(exponent: tl.tensor) -> tl.tensor:
    """2 to the power of integers from -126 to 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_of(x: tl.tensor) -> tl.tensor:
    """The power of 2 that is next below positive numbers; that of 0 is -127."""
    return (x.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def inv_lengths(inv_length_ptr: tl.tensor, row: tl.tensor) -> tl.tensor:
    """1 over the lengths of factors; a scalar if all are of the same LENGTH."""
    return tl.full([], 1 / LENGTH, tl.float32) if inv_length_ptr is None else tl.load(inv_length_ptr + row)


@triton.jit
def beside(number: tl.tensor) -> tl.tensor:
    """What there is of each row, or one for all, beside a tile of rows."""
    return number[:, None] if len(number.shape) == 1 else number


@triton.jit
def beneath(number: tl.tensor) -> tl.tensor:
    """What there is of each column, or one for all, beneath a tile of rows."""
    return number[None, :] if len(number.shape) == 1 else number


@triton.jit
def normed(
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
    first: tl.tensor,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
) -> tl.tensor:
    """Embeddings over their lengths, in single precision."""
    high, rest = factors(high_ptr, rest_ptr, first, ROWS, DIMS)
    x = high.to(tl.float32)
    if rest_ptr is not None:
        x += rest.to(tl.float32)
    return x * beside(inv_lengths(inv_length_ptr, first + tl.arange(0, ROWS)))


@triton.jit
def halves(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Numbers of single precision, of at most 2^15, as sums of two halves: off by 2^-23 of a number, or by 2^-25."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product(x: tl.tensor, x_rest: tl.tensor, y: tl.tensor, y_rest: tl.tensor, IS_EXACT: tl.constexpr) -> tl.tensor:
    """The matrix product, in single precision, of factors of one dtype; of `halves` without the least part.

    Tensor cores round sums towards zero, so that the errors of long ones grow with their length: a product begins at
    zero, and is added to others in single precision.
    """
    if INTERPRETED:  # which takes the bits of a bfloat16 for an integer
        x = x.to(tl.float32)
        y = y.to(tl.float32)
        x_rest = x_rest.to(tl.float32)
        y_rest = y_rest.to(tl.float32)
    if IS_EXACT:
        total = tl.dot(x_rest, y)
        total = tl.dot(x, y_rest, total)
        total = tl.dot(x, y, total)
    else:
        total = tl.dot(x, y)
    return total


@triton.jit
def weighted(weight: tl.tensor, y: tl.tensor, y_rest: tl.tensor, IS_EXACT: tl.constexpr) -> tl.tensor:
    """The product of weights in single precision with factors.

    weight: (ROWS, COLS), of at most 2^15 unless factors are in bfloat16
    y, y_rest: (COLS, DIMS)
    """
    if y.dtype == tl.bfloat16:
        total = product(weight.to(tl.bfloat16), y, y, y, IS_EXACT)
    else:  # whose range is less than that of derivatives
        high, rest = halves(weight)
        total = product(high, rest, y, y_rest, IS_EXACT)
    return total


@triton.jit
def are_paired(first_row: tl.tensor, ROWS: tl.constexpr, first_column: tl.tensor, COLS: tl.constexpr) -> tl.tensor:
    """Whether a tile has rows beside their own columns."""
    return (first_row < first_column + COLS) & (first_column < first_row + ROWS)


@triton.jit
def softmax_of(dot: tl.tensor, scale: tl.tensor, lse: tl.tensor) -> tl.tensor:
    """2 to the power of logits minus `lse`, at most 1; logits are `scale * dot`."""
    # Also where there is no pair: 0 times infinity would be nan.
    return exp2_normal(minimum(fma(dot, scale, -lse), 0.0))
