"""Backward of the contrastive losses: gradients of embeddings from logits that are computed again.

What a row, a column and a logit are: see `contrastive_forward`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import fma, maximum
from autogen.losses.handwritten.contrastive_tiles import (
    EPSILON,
    LOG2_E,
    STAGES,
    are_paired,
    embeddings,
    exponent_of,
    factors_of,
    halves,
    inv_norm_of,
    places,
    power_of_2,
    product,
    softmax_of,
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
    """Of some rows: `lse`, the derivative by it, 0 beyond the last, and how much of that each chosen logit has."""
    row_mask = row < n_rows
    lse = tl.load(lse_ptr + row, mask=row_mask, other=0.0)
    grad = tl.load(grad_loss_ptr + row.to(tl.int64) * grad_loss_stride, mask=row_mask, other=0.0).to(tl.float32)
    grad = grad / (divisor if n_counted_ptr is None else tl.load(n_counted_ptr))
    share = tl.full(row.shape, 1.0, tl.float32)
    if share_ptr is not None:
        share = tl.load(share_ptr + row, mask=row_mask, other=0.0)
        grad = grad * share if HAS_POSITIVES else tl.where(share > 0.0, grad, 0.0)
    return lse, grad, share


@triton.jit
def _sum_over_others(
    x: tl.tensor,
    x_inv_norm: tl.tensor,
    first_row: tl.tensor,
    n_rows: tl.tensor,
    y_ptr: tl.tensor,
    y_inv_norm_ptr: tl.tensor,
    n_cols: tl.tensor,
    y_row_stride: tl.tensor,
    y_dim_stride: tl.tensor,
    label_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    n_dims: tl.tensor,
    label_stride: tl.tensor,
    views: tl.tensor,
    divisor: tl.tensor,
    scale: tl.tensor,
    grad_loss_stride: tl.tensor,
    HAVE_LOSS: tl.constexpr,
    OTHERS_HAVE_LOSS: tl.constexpr,
    HAS_POSITIVES: tl.constexpr,
    IS_EXACT: tl.constexpr,
    COLS: tl.constexpr,
) -> tl.tensor:
    """The derivatives by the logits of embeddings `x` with all others, times these, normalised: (ROWS, DIMS).

    A derivative is that of the loss of `x`, if it has one, plus that of the loss of the other, if that has.
    """
    ROWS: tl.constexpr = x.shape[0]
    DIMS: tl.constexpr = x.shape[1]
    row = first_row + tl.arange(0, ROWS)
    if HAVE_LOSS:
        lse, grad, share = _of_rows(
            row, n_rows, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, HAS_POSITIVES
        )
    if label_ptr is not None:
        label = tl.load(label_ptr + row // views * label_stride, mask=row < n_rows, other=0)
    x, x_rest, x_inv_norm = factors_of(x, x_inv_norm, IS_EXACT)
    total = tl.zeros([ROWS, DIMS], tl.float32)
    for first_column in tl.range(0, n_cols, COLS, num_stages=STAGES):
        column = first_column + tl.arange(0, COLS)
        y = embeddings(y_ptr, first_column, n_cols, n_dims, y_row_stride, y_dim_stride, COLS, DIMS)
        y_inv_norm = tl.load(y_inv_norm_ptr + column, mask=column < n_cols, other=0.0)
        y, y_rest, y_inv_norm = factors_of(y, y_inv_norm, IS_EXACT)
        dot = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT)
        # Logits as forward rounds them: the inv_norm of the one that has a loss comes last.
        if HAVE_LOSS:
            logit = dot * (y_inv_norm * (scale * LOG2_E))[None, :] * x_inv_norm[:, None]
            grad_logit = softmax_of(logit, lse[:, None])
        if OTHERS_HAVE_LOSS:
            column_lse, column_grad, column_share = _of_rows(
                column, n_cols, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor,
                HAS_POSITIVES,
            )  # fmt: skip
            logit = dot * (x_inv_norm * (scale * LOG2_E))[:, None] * y_inv_norm[None, :]
            of_column = softmax_of(logit, column_lse[None, :])
        is_paired = False if HAS_POSITIVES else are_paired(first_row, ROWS, first_column, COLS)
        if label_ptr is not None:
            column_label = tl.load(label_ptr + column // views * label_stride, mask=column < n_cols, other=0)
            is_chosen = label[:, None] == column_label[None, :]
            grad_logit = tl.where(is_chosen, grad_logit - share[:, None], grad_logit) * grad[:, None]
            of_column = tl.where(is_chosen, of_column - column_share[None, :], of_column)
            grad_logit = fma(of_column, column_grad[None, :], grad_logit)
        elif not HAVE_LOSS:
            grad_logit = of_column
        if is_paired:
            of_own = 0.0 if label_ptr is not None else grad_logit - 1.0
            grad_logit = tl.where(row[:, None] == column[None, :], of_own, grad_logit)
        # A derivative by the loss of `x` is a factor of the sum.
        grad_logit *= (y_inv_norm * column_grad if OTHERS_HAVE_LOSS and not HAVE_LOSS else y_inv_norm)[None, :]
        if IS_EXACT:
            bound = tl.max(tl.abs(column_grad), 0) if OTHERS_HAVE_LOSS else 1.0
            if HAVE_LOSS and OTHERS_HAVE_LOSS:
                bound = (bound + tl.abs(grad))[:, None]
            # Of at most 2^15, as no inv_norm of a factor is more than 2^-8.
            exponent = 22 - exponent_of(maximum(bound, _LEAST_BOUND))
            grad_logit, grad_rest = halves(grad_logit * power_of_2(exponent))
            total = fma(product(grad_logit, grad_rest, y, y_rest, IS_EXACT), power_of_2(-exponent), total)
        elif y.dtype == tl.bfloat16:
            total += product(grad_logit.to(tl.bfloat16), y, y, y, IS_EXACT)
        else:  # derivatives need a range that float16 has not
            total += product(grad_logit, y, y.to(tl.float32), y, IS_EXACT)
    return total * grad[:, None] if HAVE_LOSS and not OTHERS_HAVE_LOSS else total


@triton.jit
def _store_gradient(
    grad_x_ptr: tl.tensor,
    grad_normed: tl.tensor,
    x_ptr: tl.tensor,
    inv_norm: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    n_dims: tl.tensor,
    x_row_stride: tl.tensor,
    x_dim_stride: tl.tensor,
    row_stride: tl.tensor,
    dim_stride: tl.tensor,
) -> None:
    """Store the gradient of embeddings `x`, given that of `x` over its length.

    They are read again: until here, they would have been in registers.
    """
    ROWS: tl.constexpr = grad_normed.shape[0]
    DIMS: tl.constexpr = grad_normed.shape[1]
    x = embeddings(x_ptr, first, count, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
    normed = x.to(tl.float32) * inv_norm[:, None]
    along = tl.sum(grad_normed * normed, 1)
    along = tl.where(inv_norm * EPSILON < 0.999, along, 0.0)  # shorter ones are divided by a constant
    grad = (grad_normed - along[:, None] * normed) * inv_norm[:, None]
    start, place, mask = places(first, count, n_dims, row_stride, dim_stride, ROWS, DIMS)
    tl.store(grad_x_ptr + start + place, grad, mask=mask)


@triton.jit
def contrastive_loss_backward(
    x_ptr: tl.tensor,
    y_ptr: tl.tensor,
    positive_ptr: tl.tensor,
    label_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    x_inv_norm_ptr: tl.tensor,
    y_inv_norm_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_x_ptr: tl.tensor,
    grad_y_ptr: tl.tensor,
    grad_positive_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_cols: tl.tensor,
    n_dims: tl.tensor,
    x_row_stride: tl.tensor,
    x_dim_stride: tl.tensor,
    y_row_stride: tl.tensor,
    y_dim_stride: tl.tensor,
    positive_row_stride: tl.tensor,
    positive_dim_stride: tl.tensor,
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
    IS_EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """ROWS rows per program; the programs after them have ROWS columns each, where these have a gradient of their own.

    A program computes the logits of its embeddings with all others again, so that it needs nothing of other programs.
    The derivative by a logit is `p - share`, where it is chosen, times that by `lse`; by an embedding, what is left of
    `scale * sum(derivatives * normalised others)` beside its own direction, times its inv_norm.

    n_counted_ptr and the pointers before it: see `contrastive_loss_forward`
    grad_loss_ptr: scalar or (N,), of any stride; its gradient is divided by `divisor`, or by how many rows count
    grad_x_ptr, grad_y_ptr, grad_positive_ptr: of the shapes of x, y and positive, each None if not wanted (written)
    """
    HAS_POSITIVES: tl.constexpr = positive_ptr is not None
    HAS_LABELS: tl.constexpr = label_ptr is not None  # so that columns are rows
    row_programs = tl.cdiv(n_rows, ROWS) if grad_x_ptr is not None or grad_positive_ptr is not None else 0
    if tl.program_id(0) < row_programs:
        first = tl.program_id(0) * ROWS
        row = first + tl.arange(0, ROWS)
        x = embeddings(x_ptr, first, n_rows, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
        x_inv_norm = tl.load(x_inv_norm_ptr + row, mask=row < n_rows, other=0.0)
        if HAS_POSITIVES:
            positive = embeddings(
                positive_ptr, first, n_rows, n_dims, positive_row_stride, positive_dim_stride, ROWS, DIMS
            )
            positive_inv_norm = inv_norm_of(positive)
            _lse, grad_logit, _share = _of_rows(
                row, n_rows, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor, True
            )
            if grad_positive_ptr is not None:
                grad = x.to(tl.float32) * (-scale * x_inv_norm * grad_logit)[:, None]
                _store_gradient(
                    grad_positive_ptr, grad, positive_ptr, positive_inv_norm, first, n_rows, n_dims,
                    positive_row_stride, positive_dim_stride, grad_positive_row_stride, grad_positive_dim_stride,
                )  # fmt: skip
        if grad_x_ptr is not None:
            grad = _sum_over_others(
                x, x_inv_norm, first, n_rows,
                y_ptr, x_inv_norm_ptr if HAS_LABELS else y_inv_norm_ptr, n_cols, y_row_stride, y_dim_stride,
                label_ptr, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr,
                n_dims, label_stride, views, divisor, scale, grad_loss_stride,
                True, HAS_LABELS, HAS_POSITIVES, IS_EXACT, COLS,
            )  # fmt: skip
            if HAS_POSITIVES:  # read again, to keep registers free
                positive = embeddings(
                    positive_ptr, first, n_rows, n_dims, positive_row_stride, positive_dim_stride, ROWS, DIMS
                )
                grad -= positive.to(tl.float32) * (positive_inv_norm * grad_logit)[:, None]
            _store_gradient(
                grad_x_ptr, grad * scale, x_ptr, x_inv_norm, first, n_rows, n_dims,
                x_row_stride, x_dim_stride, grad_x_row_stride, grad_x_dim_stride,
            )  # fmt: skip
    elif grad_y_ptr is not None:
        first = (tl.program_id(0) - row_programs) * ROWS
        column = first + tl.arange(0, ROWS)
        y = embeddings(y_ptr, first, n_cols, n_dims, y_row_stride, y_dim_stride, ROWS, DIMS)
        y_inv_norm = tl.load(y_inv_norm_ptr + column, mask=column < n_cols, other=0.0)
        grad = _sum_over_others(
            y, y_inv_norm, first, n_cols,
            x_ptr, x_inv_norm_ptr, n_rows, x_row_stride, x_dim_stride,
            label_ptr, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr,
            n_dims, label_stride, views, divisor, scale, grad_loss_stride,
            False, True, HAS_POSITIVES, IS_EXACT, COLS,
        )  # fmt: skip
        _store_gradient(
            grad_y_ptr, grad * scale, y_ptr, y_inv_norm, first, n_cols, n_dims,
            y_row_stride, y_dim_stride, grad_y_row_stride, grad_y_dim_stride,
        )  # fmt: skip
