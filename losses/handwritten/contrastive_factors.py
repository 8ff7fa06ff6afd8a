"""Compute once per embedding what its pairs need: its length, and the factor that tensor cores multiply."""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import maximum, rsqrt
from autogen.losses.handwritten.contrastive_tiles import EPSILON, LENGTH, exponent_of, halves, power_of_2


@triton.jit
def _store_factors(
    x_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    count: tl.tensor,
    n_dims: tl.tensor,
    row_stride: tl.tensor,
    dim_stride: tl.tensor,
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_norm_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """Those of this program's embeddings, if it has some of the `count` whose factors are from `begin` to `end`."""
    first = tl.program_id(0) * ROWS
    if (first >= begin) & (first < end):
        row = tl.arange(0, ROWS)
        dim = tl.arange(0, DIMS)[None, :].to(tl.int64)
        place = (tl.cast(first - begin, tl.int64) + row)[:, None] * row_stride + dim * dim_stride
        mask = (row < count - (first - begin))[:, None] & (dim < n_dims)
        x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
        inv_norm = rsqrt(maximum(tl.sum(x * x, 1), EPSILON * EPSILON))
        tl.store(inv_norm_ptr + first + row, inv_norm)
        factor = tl.cast(first, tl.int64) * DIMS + row[:, None] * DIMS + dim
        if x_ptr.dtype.element_ty == tl.float32:
            high, rest = halves(x * inv_norm[:, None] * LENGTH)
            tl.store(high_ptr + factor, high)
            if rest_ptr is not None:
                tl.store(rest_ptr + factor, rest)
        else:
            exponent = exponent_of(inv_norm) + 8
            tl.store(high_ptr + factor, x * power_of_2(exponent)[:, None])
            tl.store(inv_length_ptr + first + row, inv_norm * power_of_2(-exponent))


@triton.jit
def contrastive_loss_factors(
    x_ptr: tl.tensor,
    y_ptr: tl.tensor,
    positive_ptr: tl.tensor,
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_norm_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_cols: tl.tensor,
    n_dims: tl.tensor,
    x_row_stride: tl.tensor,
    x_dim_stride: tl.tensor,
    y_row_stride: tl.tensor,
    y_dim_stride: tl.tensor,
    positive_row_stride: tl.tensor,
    positive_dim_stride: tl.tensor,
    first_y: tl.tensor,
    first_positive: tl.tensor,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """ROWS embeddings per program: x, from `first_y` on y, and from `first_positive` on positives.

    Of single precision, a factor is of the length LENGTH, and split into two `halves`, which together have 23 of its 24
    bits, or rounded to the first; of half precision it is scaled by a power of 2, which is exact, to a length from that
    to twice that.

    x_ptr, y_ptr, positive_ptr: (N, D), (M, D) and (N, D), of any strides; the last two or one may be None
    high_ptr, rest_ptr: float16 or bfloat16 (F, DIMS), contiguous; rest_ptr may be None (written)
    inv_norm_ptr, inv_length_ptr: float32 (F,), 1 over the lengths of the embeddings and of their factors; the latter is
        None where these are LENGTH (written)
    """
    _store_factors(
        x_ptr, 0, first_positive if y_ptr is None else first_y, n_rows, n_dims, x_row_stride, x_dim_stride,
        high_ptr, rest_ptr, inv_norm_ptr, inv_length_ptr, ROWS, DIMS,
    )  # fmt: skip
    if y_ptr is not None:
        _store_factors(
            y_ptr, first_y, first_positive, n_cols, n_dims, y_row_stride, y_dim_stride,
            high_ptr, rest_ptr, inv_norm_ptr, inv_length_ptr, ROWS, DIMS,
        )  # fmt: skip
    if positive_ptr is not None:
        _store_factors(
            positive_ptr, first_positive, tl.num_programs(0) * ROWS, n_rows, n_dims,
            positive_row_stride, positive_dim_stride, high_ptr, rest_ptr, inv_norm_ptr, inv_length_ptr, ROWS, DIMS,
        )  # fmt: skip
