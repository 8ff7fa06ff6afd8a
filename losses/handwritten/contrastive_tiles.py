"""Tiles of embeddings, and what two of them have in common: what the contrastive kernels are made of."""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp2_normal, fma, maximum, minimum, rsqrt
from autogen.device_math.basic import INTERPRETED

EPSILON = tl.constexpr(1e-12)  # that of `torch.nn.functional.normalize`


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
        x, x_rest = halves(x)
        y, y_rest = halves(y)
        total = tl.dot(x_rest, y, total, input_precision="tf32")
        total = tl.dot(x, y_rest, total, input_precision="tf32")
    return tl.dot(x, y, total, input_precision="tf32")


@triton.jit
def dots(
    x: tl.tensor,
    x_ptr: tl.tensor,
    first_row: tl.tensor,
    n_rows: tl.tensor,
    x_row_stride: tl.tensor,
    x_dim_stride: tl.tensor,
    y: tl.tensor,
    y_ptr: tl.tensor,
    first_column: tl.tensor,
    n_cols: tl.tensor,
    y_row_stride: tl.tensor,
    y_dim_stride: tl.tensor,
    n_dims: tl.tensor,
    IS_EXACT: tl.constexpr,
    CHUNK: tl.constexpr,
) -> tl.tensor:
    """The products of all pairs of an `x` and a `y`.

    Three products of single precision have `x` in registers twice: where there is no room, CHUNK dimensions at a time,
    read again.
    """
    dot = tl.zeros([x.shape[0], y.shape[0]], tl.float32)
    if x.shape[1] == CHUNK:
        dot = plus_product(dot, x, tl.trans(y), IS_EXACT)
    else:
        for dim in tl.static_range(0, x.shape[1], CHUNK):
            x_of_dims = embeddings(
                x_ptr + dim * x_dim_stride, first_row, n_rows, n_dims - dim, x_row_stride, x_dim_stride,
                x.shape[0], CHUNK,
            )  # fmt: skip
            y_of_dims = embeddings(
                y_ptr + dim * y_dim_stride, first_column, n_cols, n_dims - dim, y_row_stride, y_dim_stride,
                y.shape[0], CHUNK,
            )  # fmt: skip
            dot = plus_product(dot, x_of_dims, tl.trans(y_of_dims), IS_EXACT)
    return dot


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
def softmax_of(logit: tl.tensor, inv_norm: tl.tensor, lse: tl.tensor) -> tl.tensor:
    """2 to the power of logits, that are still to be multiplied by `inv_norm`, minus `lse`: at most 1."""
    # Also where there is no pair: 0 times infinity would be nan.
    return exp2_normal(minimum(fma(logit, inv_norm[:, None], -lse), 0.0))
