"""Backward of the contrastive losses: gradients of embeddings from logits that are computed again.

What a row, a column and a logit are: see `contrastive_forward`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import fma, maximum
from autogen.losses.handwritten.contrastive_tiles import (
    EPSILON,
    LENGTH,
    LOG2_E,
    STAGES,
    are_paired,
    exponent_of,
    factors,
    inv_lengths,
    normed,
    of_columns,
    of_rows,
    power_of_2,
    product,
    softmax_of,
    weighted,
)

_LEAST_BOUND = tl.constexpr(2.0**-100)  # of derivatives that keep all of their bits


@triton.jit
def _of_rows(
    row: tl.tensor,
    n_rows: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_loss_stride: tl.tensor,
    divisor: tl.tensor,
    HAS_POSITIVES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of some rows: `lse`, the derivative by it, 0 beyond the last, and their shares."""
    row_mask = row < n_rows
    lse = tl.load(lse_ptr + row, mask=row_mask, other=0.0)
    grad = tl.load(grad_loss_ptr + row.to(tl.int64) * grad_loss_stride, mask=row_mask, other=0.0).to(tl.float32)
    grad = grad / (divisor if n_counted_ptr is None else tl.load(n_counted_ptr))
    share = tl.load(share_ptr + row, mask=row_mask, other=0.0)
    return lse, grad * share if HAS_POSITIVES else tl.where(share > 0.0, grad, 0.0), share


@triton.jit
def _sum_over_rows(
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_norm_ptr: tl.tensor,
    label_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    first_own: tl.tensor,
    n_own: tl.tensor,
    first_y: tl.tensor,
    n_rows: tl.tensor,
    label_stride: tl.tensor,
    views: tl.tensor,
    divisor: tl.tensor,
    scale: tl.tensor,
    grad_loss_stride: tl.tensor,
    HAS_POSITIVES: tl.constexpr,
    IS_NORMED: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
) -> tl.tensor:
    """The derivatives by the logits of ROWS columns with all rows, times these over their lengths: (ROWS, DIMS).

    A derivative is that of the loss of the row; with labels, where columns are rows, plus that of the column's.
    """
    HAS_LABELS: tl.constexpr = label_ptr is not None
    IS_EXACT: tl.constexpr = rest_ptr is not None
    own = first_own + tl.arange(0, ROWS)
    if HAS_LABELS:
        own_lse, own_grad, own_share = _of_rows(
            own, n_own, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, False
        )
        own_bound = tl.max(tl.abs(own_grad), 0)
        own_label = tl.load(label_ptr + own // views * label_stride, mask=own < n_own, other=0)
    x, x_rest = factors(high_ptr, rest_ptr, first_y + first_own, ROWS, DIMS)
    own_scale = inv_lengths(inv_norm_ptr, first_y + own, IS_NORMED) * (scale * LOG2_E)
    if IS_NORMED:
        own_scale /= LENGTH
    total = tl.zeros([ROWS, DIMS], tl.float32)
    for first_row in tl.range(0, n_rows, COLS, num_stages=STAGES):
        row = first_row + tl.arange(0, COLS)
        y, y_rest = factors(high_ptr, rest_ptr, first_row, COLS, DIMS)
        logit = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT) * of_rows(own_scale, IS_NORMED)
        inv_length = inv_lengths(inv_norm_ptr, row, IS_NORMED)
        if not IS_NORMED:
            logit *= of_columns(inv_length, IS_NORMED)
        lse, grad, share = _of_rows(
            row, n_rows, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, HAS_POSITIVES
        )
        grad_logit = softmax_of(logit, lse[None, :])
        bound = tl.max(tl.abs(grad), 0)
        if HAS_LABELS:
            label = tl.load(label_ptr + row // views * label_stride, mask=row < n_rows, other=0)
            is_chosen = own_label[:, None] == label[None, :]
            of_own = softmax_of(logit, own_lse[:, None])
            of_own = tl.where(is_chosen, of_own - own_share[:, None], of_own) * own_grad[:, None]
            grad_logit = tl.where(is_chosen, grad_logit - share[None, :], grad_logit)
            grad_logit = fma(grad_logit, grad[None, :], of_own)
            bound += own_bound
        is_paired = False if HAS_POSITIVES else are_paired(first_own, ROWS, first_row, COLS)
        if is_paired:
            of_pair = 0.0 if HAS_LABELS else -share[None, :]
            grad_logit = tl.where(own[:, None] == row[None, :], of_pair, grad_logit)
        if not HAS_LABELS:
            grad_logit *= (grad if IS_NORMED else grad * inv_length)[None, :]
        elif not IS_NORMED:
            grad_logit *= inv_length[None, :]
        # Of at most 2^15, as 1 over a length is at most 2^-8; in either case 2^22 times the sum, over the bound.
        exponent = (14 if IS_NORMED else 22) - exponent_of(maximum(bound, _LEAST_BOUND))
        part = weighted(grad_logit, power_of_2(exponent), y, y_rest, IS_EXACT)
        if y.dtype == tl.bfloat16:
            total += part
        else:
            total = fma(part, power_of_2((-8 if IS_NORMED else 0) - exponent), total)
    return total


@triton.jit
def _store_gradient(
    grad_x_ptr: tl.tensor,
    grad_normed: tl.tensor,
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_norm_ptr: tl.tensor,
    first_factor: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    n_dims: tl.tensor,
    row_stride: tl.tensor,
    dim_stride: tl.tensor,
    IS_NORMED: tl.constexpr,
) -> None:
    """Store the gradient of embeddings, given that of each over its length.

    They are read again: until here, they would have been in registers.
    """
    ROWS: tl.constexpr = grad_normed.shape[0]
    DIMS: tl.constexpr = grad_normed.shape[1]
    row = tl.arange(0, ROWS)
    x = normed(high_ptr, rest_ptr, inv_norm_ptr, first_factor + first, IS_NORMED, ROWS, DIMS)
    inv_norm = tl.load(inv_norm_ptr + first_factor + first + row)
    along = tl.sum(grad_normed * x, 1)
    along = tl.where(inv_norm * EPSILON < 0.999, along, 0.0)  # shorter ones are divided by a constant
    grad = (grad_normed - along[:, None] * x) * inv_norm[:, None]
    dim = tl.arange(0, DIMS)[None, :]
    place = (tl.cast(first, tl.int64) + row)[:, None] * row_stride + dim.to(tl.int64) * dim_stride
    tl.store(grad_x_ptr + place, grad, mask=(row < count - first)[:, None] & (dim < n_dims))


@triton.jit
def contrastive_loss_backward(
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_norm_ptr: tl.tensor,
    label_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_x_ptr: tl.tensor,
    grad_y_ptr: tl.tensor,
    grad_positive_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_cols: tl.tensor,
    n_dims: tl.tensor,
    first_y: tl.tensor,
    first_positive: tl.tensor,
    label_stride: tl.tensor,
    views: tl.tensor,
    divisor: tl.tensor,
    scale: tl.tensor,
    grad_loss_stride: tl.tensor,
    grad_x_row_stride: tl.tensor,
    grad_x_dim_stride: tl.tensor,
    grad_y_row_stride: tl.tensor,
    grad_y_dim_stride: tl.tensor,
    grad_positive_row_stride: tl.tensor,
    grad_positive_dim_stride: tl.tensor,
    HAS_POSITIVES: tl.constexpr,
    IS_NORMED: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """ROWS columns per program, if these have a gradient, of all rows, COLS at a time; the programs after them have
    ROWS rows each, whose gradients are in the sums that forward keeps.

    The derivative by a logit is `p - share`, where it is chosen, times that by `lse`; by an embedding, what is left of
    `scale * sum(derivatives * normalised others)` beside its own direction, times its inv_norm.

    n_counted_ptr and the pointers before it: see `contrastive_loss_forward`
    grad_loss_ptr: scalar or (N,), of any stride; its gradient is divided by `divisor`, or by how many rows count
    grad_x_ptr, grad_y_ptr, grad_positive_ptr: of the shapes of x, y and positive, each None if not wanted (written);
        with labels, columns are x, and have `grad_y_ptr`
    """
    column_programs = 0 if grad_y_ptr is None else tl.cdiv(n_cols, ROWS)
    if tl.program_id(0) < column_programs:
        first = tl.program_id(0) * ROWS
        grad = _sum_over_rows(
            high_ptr, rest_ptr, inv_norm_ptr, label_ptr, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr,
            first, n_cols, first_y, n_rows, label_stride, views, divisor, scale, grad_loss_stride,
            HAS_POSITIVES, IS_NORMED, ROWS, COLS, DIMS,
        )  # fmt: skip
        _store_gradient(
            grad_y_ptr, grad * scale, high_ptr, rest_ptr, inv_norm_ptr, first_y, first, n_cols, n_dims,
            grad_y_row_stride, grad_y_dim_stride, IS_NORMED,
        )  # fmt: skip
    elif grad_x_ptr is not None or grad_positive_ptr is not None:
        first = (tl.program_id(0) - column_programs) * ROWS
        row = first + tl.arange(0, ROWS)
        _lse, grad_logit, share = _of_rows(
            row, n_rows, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, HAS_POSITIVES
        )
        grad_logit = (grad_logit * scale)[:, None]
        if grad_positive_ptr is not None:
            grad = -grad_logit * normed(high_ptr, rest_ptr, inv_norm_ptr, first, IS_NORMED, ROWS, DIMS)
            _store_gradient(
                grad_positive_ptr, grad, high_ptr, rest_ptr, inv_norm_ptr, first_positive, first, n_rows, n_dims,
                grad_positive_row_stride, grad_positive_dim_stride, IS_NORMED,
            )  # fmt: skip
        if grad_x_ptr is not None:
            place = row.to(tl.int64)[:, None] * DIMS + tl.arange(0, DIMS)[None, :]
            sums = tl.load(sums_ptr + place, mask=(row < n_rows)[:, None], other=0.0)
            first_own = (first_positive if HAS_POSITIVES else first_y) + first
            chosen = normed(high_ptr, rest_ptr, inv_norm_ptr, first_own, IS_NORMED, ROWS, DIMS)
            grad = grad_logit * (sums - (chosen if HAS_POSITIVES else chosen * share[:, None]))
            _store_gradient(
                grad_x_ptr, grad, high_ptr, rest_ptr, inv_norm_ptr, 0, first, n_rows, n_dims,
                grad_x_row_stride, grad_x_dim_stride, IS_NORMED,
            )  # fmt: skip
