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
    LOWEST,
    STAGES,
    are_paired,
    beneath,
    beside,
    exponent_of,
    factors,
    inv_lengths,
    normed,
    power_of_2,
    product,
    softmax_of,
    weighted,
)

_LEAST_BOUND = tl.constexpr(2.0**-100)  # of derivatives that keep all of their bits


@triton.jit
def _grad_by_lse(
    row: tl.tensor,
    n_rows: tl.tensor,
    share_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_loss_stride: tl.tensor,
    divisor: tl.tensor,
    HAS_POSITIVES: tl.constexpr,
    IS_SUM: tl.constexpr,
) -> tl.tensor:
    """The derivatives by `lse` of some rows, 0 beyond the last; if the loss is the sum of theirs, that of all, which
    is meant where `p` is 0 for rows that do not count.
    """
    if IS_SUM and not HAS_POSITIVES:
        grad = tl.load(grad_loss_ptr).to(tl.float32)
    else:
        row_mask = row < n_rows
        grad = tl.load(grad_loss_ptr + row.to(tl.int64) * grad_loss_stride, mask=row_mask, other=0.0).to(tl.float32)
        share = tl.load(share_ptr + row, mask=row_mask, other=0.0)
        grad = grad * share if HAS_POSITIVES else tl.where(share > 0.0, grad, 0.0)
    return grad / (divisor if n_counted_ptr is None else tl.load(n_counted_ptr))


@triton.jit
def _sum_over_rows(
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
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
    IS_SUM: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
) -> tl.tensor:
    """The derivatives by the logits of ROWS columns with all rows, times these over their lengths: (ROWS, DIMS).

    A derivative is that of the loss of the row; with labels, where columns are rows, plus that of the column's.
    """
    HAS_LABELS: tl.constexpr = label_ptr is not None
    IS_EXACT: tl.constexpr = rest_ptr is not None
    IS_NORMED: tl.constexpr = inv_length_ptr is None
    IS_BFLOAT: tl.constexpr = high_ptr.dtype.element_ty == tl.bfloat16
    ARE_ALIKE: tl.constexpr = IS_SUM and not HAS_POSITIVES  # whose derivative is a factor of the sum
    own = first_own + tl.arange(0, ROWS)
    if ARE_ALIKE or HAS_LABELS:
        own_grad = _grad_by_lse(
            own, n_own, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, HAS_POSITIVES, IS_SUM
        )
    if HAS_LABELS:
        own_lse = tl.load(lse_ptr + own, mask=own < n_own, other=0.0)
        own_share = tl.load(share_ptr + own, mask=own < n_own, other=0.0)
        own_label = tl.load(label_ptr + own // views * label_stride, mask=own < n_own, other=0)
        own_bound = 0.0 if ARE_ALIKE else tl.max(tl.abs(own_grad), 0)
    x, x_rest = factors(high_ptr, rest_ptr, first_y + first_own, ROWS, DIMS)
    own_scale = inv_lengths(inv_length_ptr, first_y + own) * (scale * LOG2_E)
    if IS_NORMED:
        own_scale /= LENGTH
    total = tl.zeros([ROWS, DIMS], tl.float32)
    for first_row in tl.range(0, n_rows, COLS, num_stages=STAGES):
        row = first_row + tl.arange(0, COLS)
        y, y_rest = factors(high_ptr, rest_ptr, first_row, COLS, DIMS)
        logit = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT)
        inv_length = inv_lengths(inv_length_ptr, row)
        if not IS_NORMED:
            logit *= inv_length[None, :]
        lse = tl.load(lse_ptr + row, mask=row < n_rows, other=-LOWEST)  # so that `p` is 0 beyond the last
        weight = softmax_of(logit, beside(own_scale), lse[None, :])
        if not ARE_ALIKE:
            grad = _grad_by_lse(
                row, n_rows, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, HAS_POSITIVES, IS_SUM
            )
            bound = tl.max(tl.abs(grad), 0)
        if HAS_LABELS:
            label = tl.load(label_ptr + row // views * label_stride, mask=row < n_rows, other=0)
            share = tl.load(share_ptr + row, mask=row < n_rows, other=0.0)
            is_chosen = own_label[:, None] == label[None, :]
            weight = tl.where(is_chosen, weight - share[None, :], weight)
            of_own = softmax_of(logit, beside(own_scale), own_lse[:, None])
            of_own = tl.where(is_chosen, of_own - own_share[:, None], of_own)
            if ARE_ALIKE:
                weight += of_own
            else:
                weight = fma(weight, grad[None, :], of_own * own_grad[:, None])
                bound += own_bound
        is_paired = False if HAS_POSITIVES else are_paired(first_own, ROWS, first_row, COLS)
        if is_paired:
            of_pair = 0.0 if HAS_LABELS else -tl.load(share_ptr + row, mask=row < n_rows, other=0.0)[None, :]
            weight = tl.where(own[:, None] == row[None, :], of_pair, weight)
        # Derivatives are at most 2, or their bound, and 1 over a length is at most 2^-8: weights are at most 2^15.
        unit = tl.full([], 2.0**14, tl.float32)
        if not ARE_ALIKE:
            unit = power_of_2(14 - exponent_of(maximum(bound, _LEAST_BOUND)))
        factor = tl.full([], 1.0, tl.float32) if IS_BFLOAT else unit
        if not IS_NORMED:
            factor *= inv_length * (1.0 if IS_BFLOAT else LENGTH)
        if not ARE_ALIKE and not HAS_LABELS:
            factor *= grad
        part = weighted(weight * beneath(factor), y, y_rest, IS_EXACT)
        if ARE_ALIKE or IS_BFLOAT:
            total += part
        else:
            total = fma(part, 1 / (unit * LENGTH), total)
    if ARE_ALIKE:
        total *= own_grad if IS_BFLOAT else own_grad / (2.0**14 * LENGTH)
    return total


@triton.jit
def _store_gradient(
    grad_x_ptr: tl.tensor,
    grad_normed: tl.tensor,
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_norm_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
    first_factor: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    n_dims: tl.tensor,
    row_stride: tl.tensor,
    dim_stride: tl.tensor,
) -> None:
    """Store the gradient of embeddings, given that of each over its length.

    They are read again: until here, they would have been in registers.
    """
    ROWS: tl.constexpr = grad_normed.shape[0]
    DIMS: tl.constexpr = grad_normed.shape[1]
    row = tl.arange(0, ROWS)
    x = normed(high_ptr, rest_ptr, inv_length_ptr, first_factor + first, ROWS, DIMS)
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
    inv_length_ptr: tl.tensor,
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
    IS_SUM: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """ROWS columns per program, if these have a gradient, of all rows, COLS at a time; the programs after them have
    ROWS rows each, whose gradients are in the sums that forward keeps.

    The derivative by a logit is `p - share`, where it is chosen, times that by `lse`; by an embedding, what is left of
    `scale * sum(derivatives * normalised others)` beside its own direction, times its inv_norm.

    n_counted_ptr and the pointers before it: see `contrastive_loss_forward`, and `contrastive_loss_factors`
    grad_loss_ptr: scalar or (N,), of any stride; its gradient is divided by `divisor`, or by how many rows count
    grad_x_ptr, grad_y_ptr, grad_positive_ptr: of the shapes of x, y and positive, each None if not wanted (written);
        with labels, columns are x, and have `grad_y_ptr`
    """
    column_programs = 0 if grad_y_ptr is None else tl.cdiv(n_cols, ROWS)
    if grad_y_ptr is not None:
        first = tl.program_id(0) * ROWS
        if first < column_programs * ROWS:
            grad = _sum_over_rows(
                high_ptr, rest_ptr, inv_length_ptr, label_ptr, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr,
                first, n_cols, first_y, n_rows, label_stride, views, divisor, scale, grad_loss_stride,
                HAS_POSITIVES, IS_SUM, ROWS, COLS, DIMS,
            )  # fmt: skip
            _store_gradient(
                grad_y_ptr, grad * scale, high_ptr, rest_ptr, inv_norm_ptr, inv_length_ptr, first_y, first, n_cols,
                n_dims, grad_y_row_stride, grad_y_dim_stride,
            )  # fmt: skip
    if grad_x_ptr is not None or grad_positive_ptr is not None:
        first = (tl.program_id(0) - column_programs) * ROWS
        if first >= 0:
            row = first + tl.arange(0, ROWS)
            grad_lse = _grad_by_lse(
                row, n_rows, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, HAS_POSITIVES, IS_SUM
            )
            grad_logit = beside(grad_lse * scale)
            if grad_positive_ptr is not None:
                grad = -grad_logit * normed(high_ptr, rest_ptr, inv_length_ptr, first, ROWS, DIMS)
                _store_gradient(
                    grad_positive_ptr, grad, high_ptr, rest_ptr, inv_norm_ptr, inv_length_ptr, first_positive, first,
                    n_rows, n_dims, grad_positive_row_stride, grad_positive_dim_stride,
                )  # fmt: skip
            if grad_x_ptr is not None:
                place = row.to(tl.int64)[:, None] * DIMS + tl.arange(0, DIMS)[None, :]
                sums = tl.load(sums_ptr + place, mask=(row < n_rows)[:, None], other=0.0)
                first_own = (first_positive if HAS_POSITIVES else first_y) + first
                chosen = normed(high_ptr, rest_ptr, inv_length_ptr, first_own, ROWS, DIMS)
                if not HAS_POSITIVES:
                    chosen *= tl.load(share_ptr + row, mask=row < n_rows, other=0.0)[:, None]
                grad = grad_logit * (sums - chosen)
                _store_gradient(
                    grad_x_ptr, grad, high_ptr, rest_ptr, inv_norm_ptr, inv_length_ptr, 0, first, n_rows, n_dims,
                    grad_x_row_stride, grad_x_dim_stride,
                )  # fmt: skip
