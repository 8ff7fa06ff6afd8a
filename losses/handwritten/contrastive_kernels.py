"""The kernels of the contrastive losses: a pair's logit is computed where it is needed, and stored nowhere.

A program has ROWS embeddings of its own and goes over all others, COLS at a time, as an attention does that keeps no
scores. Forward keeps a number or two for each embedding, and backward computes the logits again.

Embeddings need not be of length 1: with `inv_norm = 1 / max(|x|, epsilon)` of each, the logit of a pair is
`scale * inv_norm_x * inv_norm_y * dot(x, y)`, where `scale` is 1 over the temperature. *Rows* are the embeddings that
have a loss, *columns* those that their softmax is over; `p` is that softmax.

Logits are to the base of 2, `log2(e)` times the others. That, the scale and the inv_norm of the others are one factor
of each column of a tile; with it the greatest of a row is found, and the inv_norm of the row multiplies differences
from that. So an element takes seven instructions forward. What concerns only its own column, or columns beyond the
last, is asked of the tiles that have some.

    pairs, by what is not None        columns         loss of a row
    -                                 positives       lse - logit of its own column
    positive_ptr                      negatives       softplus(lse - logit of its positive)
    label_ptr                         rows            lse - mean of the logits of its label, all without its own
"""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp2_normal, fma, log2, log_sigmoid_neg, maximum, sigmoid
from autogen.losses.handwritten._reduction import ratio_over_programs, sum_over_programs
from autogen.losses.handwritten.contrastive_tiles import (
    EPSILON,
    are_paired,
    exponent_of,
    factors_of,
    halves,
    inv_norm_of,
    power_of_2,
    product,
    softmax_of,
)

_STAGES = tl.constexpr(2)  # tiles of others that are on their way at a time
_LOWEST = tl.constexpr(-3.4028234663852886e38)  # the logit of what is not in a softmax, also where nothing is
_LOG2_E = tl.constexpr(1.4426950408889634)
_LN_2 = tl.constexpr(0.6931471805599453)
_LEAST_BOUND = tl.constexpr(2.0**-100)  # of derivatives that keep all of their bits


@triton.jit
def _places(
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
def _embeddings(
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
    start, place, mask = _places(first, count, n_dims, row_stride, dim_stride, ROWS, DIMS)
    x = tl.load(x_ptr + start + place, mask=mask, other=0.0)
    return x


@triton.jit
def _finish(
    greatest: tl.tensor,
    total: tl.tensor,
    chosen: tl.tensor,
    n_chosen: tl.tensor,
    x_inv_norm: tl.tensor,
    block: tl.tensor,
    n_blocks: tl.tensor,
    x_ptr: tl.tensor,
    positive_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_dims: tl.tensor,
    x_row_stride: tl.tensor,
    x_dim_stride: tl.tensor,
    positive_row_stride: tl.tensor,
    positive_dim_stride: tl.tensor,
    divisor: tl.tensor,
    scale: tl.tensor,
    HAS_LABELS: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    PARTIALS: tl.constexpr,
) -> None:
    """The loss of a block of rows, of which all columns have been seen: the greatest logit and the total of the powers,
    which the logits that are `chosen` may be among.
    """
    row = block * ROWS + tl.arange(0, ROWS)
    row_mask = row < n_rows
    lse = greatest * x_inv_norm + log2(total)

    is_counted = row_mask
    if HAS_LABELS:
        is_counted = row_mask & (n_chosen > 0.0)
        share = 1.0 / maximum(n_chosen, 1.0)
        loss = (lse - chosen * x_inv_norm * share) * _LN_2
        tl.store(share_ptr + row, tl.where(is_counted, share, 0.0), mask=row_mask)
        lse = tl.where(is_counted, lse, -_LOWEST)  # so that `p` is 0
    elif positive_ptr is not None:
        positive = _embeddings(
            positive_ptr, block * ROWS, n_rows, n_dims, positive_row_stride, positive_dim_stride, ROWS, DIMS
        )
        x = _embeddings(x_ptr, block * ROWS, n_rows, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
        dot = tl.sum(x.to(tl.float32) * positive.to(tl.float32), 1)
        difference = lse * _LN_2 - dot * (inv_norm_of(x) * scale) * inv_norm_of(positive)
        loss = -log_sigmoid_neg(difference)
        tl.store(share_ptr + row, sigmoid(difference), mask=row_mask)
    else:
        loss = ((greatest - chosen) * x_inv_norm + log2(total)) * _LN_2
    tl.store(lse_ptr + row, lse, mask=row_mask)
    loss = tl.where(is_counted, loss, 0.0)
    if PARTIALS is None:
        tl.store(loss_ptr + row, loss, mask=row_mask)
    elif n_counted_ptr is None:
        sum_over_programs(tl.sum(loss, 0), loss_ptr, partials_ptr, counter_ptr, divisor, PARTIALS, block, n_blocks)
    else:
        counted = tl.sum(tl.where(is_counted, 1.0, 0.0), 0)
        ratio_over_programs(
            tl.sum(loss, 0), counted, loss_ptr, n_counted_ptr, partials_ptr, counter_ptr, PARTIALS, block, n_blocks
        )


@triton.jit
def contrastive_loss_forward(
    x_ptr: tl.tensor,
    y_ptr: tl.tensor,
    positive_ptr: tl.tensor,
    label_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    x_inv_norm_ptr: tl.tensor,
    y_inv_norm_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
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
    IS_EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
    PARTIALS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
) -> None:
    """ROWS rows per program; the softmax over all columns is kept up as they come.

    If the columns are split, each block of ROWS rows has several programs, one after the other, for a part of the
    columns each, so that few rows keep all multiprocessors busy.

    x_ptr, y_ptr: rows (N, D) and columns (M, D), of any strides
    positive_ptr: (N, D), or None
    label_ptr: (N / views,), each for `views` rows, or None
    loss_ptr: (N,); with PARTIALS scalar, the sum over all rows divided by `divisor`, or by how many count (written)
    lse_ptr: float32 (N,), logsumexp of a row's logits, to the base of 2; or more than any, if the row does not count
        (written)
    share_ptr: float32 (N,), the derivative of the loss by `lse` with positives; 1 over the number of those with its
        label, 0 for none; or None (written)
    x_inv_norm_ptr, y_inv_norm_ptr: float32 (N,), (M,), None if the columns are the rows (written)
    n_counted_ptr: float32 scalar, the number of rows that count, at least 1, or None (written)
    partials_ptr: float32 (blocks,) if there is a sum, twice that if rows may not count; then, if the columns are split,
        (parts, 3, N), or 4 with labels
    counter_ptr: int32 (1 + blocks,), 0 before and after
    """
    n_blocks = tl.cdiv(n_rows, ROWS)
    block = tl.program_id(0)
    start = 0
    end = n_cols
    if IS_SPLIT:
        n_parts = tl.num_programs(0) // n_blocks
        part = block % n_parts
        block //= n_parts
        columns_of_part = tl.cdiv(tl.cdiv(n_cols, COLS), n_parts) * COLS
        start = part * columns_of_part
        end = tl.minimum(start + columns_of_part, n_cols)
    first_row = block * ROWS
    row = first_row + tl.arange(0, ROWS)
    row_mask = row < n_rows
    x = _embeddings(x_ptr, first_row, n_rows, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
    x_inv_norm = inv_norm_of(x)
    tl.store(x_inv_norm_ptr + row, x_inv_norm, mask=row_mask)
    x, x_rest, x_inv_norm = factors_of(x, x_inv_norm, IS_EXACT)
    if label_ptr is not None:
        label = tl.load(label_ptr + row // views * label_stride, mask=row_mask, other=0)

    greatest = tl.full([ROWS], _LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    chosen = tl.zeros([ROWS], tl.float32)
    n_chosen = tl.zeros([ROWS], tl.float32)
    for first_column in tl.range(start, end, COLS, num_stages=_STAGES):
        column = first_column + tl.arange(0, COLS)
        y = _embeddings(y_ptr, first_column, n_cols, n_dims, y_row_stride, y_dim_stride, COLS, DIMS)
        y_inv_norm = inv_norm_of(y)
        if y_inv_norm_ptr is not None:
            is_mine = first_column // COLS % n_blocks == block
            tl.store(y_inv_norm_ptr + column, y_inv_norm, mask=(column < n_cols) & is_mine)
        y, y_rest, y_inv_norm = factors_of(y, y_inv_norm, IS_EXACT)
        dot = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT)
        # All logits of a row are as many times these, which may be negative.
        logit = dot * (y_inv_norm * (scale * _LOG2_E))[None, :]
        is_own = row[:, None] == column[None, :]
        is_in = (column < n_cols)[None, :]
        is_masked = True if label_ptr is not None else first_column + COLS > n_cols
        is_paired = (
            False
            if label_ptr is not None or positive_ptr is not None
            else are_paired(first_row, ROWS, first_column, COLS)
        )
        if label_ptr is not None:
            is_in = is_in & ~is_own
            column_label = tl.load(label_ptr + column // views * label_stride, mask=column < n_cols, other=0)
            is_chosen = (label[:, None] == column_label[None, :]) & is_in
            n_chosen += tl.sum(tl.where(is_chosen, 1.0, 0.0), 1)
            chosen += tl.sum(tl.where(is_chosen, logit, 0.0), 1)
        if is_paired:
            chosen += tl.sum(tl.where(is_own, logit, 0.0), 1)
        if is_masked:
            logit = tl.where(is_in, logit, _LOWEST)
        new_greatest = maximum(greatest, tl.max(logit, 1))
        power = exp2_normal((logit - new_greatest[:, None]) * x_inv_norm[:, None])  # of the greatest exactly 1
        if is_masked:
            power = tl.where(is_in, power, 0.0)
        total = total * exp2_normal((greatest - new_greatest) * x_inv_norm) + tl.sum(power, 1)
        greatest = new_greatest
    is_last = True
    if IS_SPLIT:
        # Each part leaves what it has of its rows; the last to arrive has all of them, and adds them up in their order.
        N_STATES: tl.constexpr = 3 if label_ptr is None else 4
        n_sums = (0 if PARTIALS is None else n_blocks) * (1 if n_counted_ptr is None else 2)
        state_ptr = partials_ptr + n_sums + row
        own_ptr = state_ptr + part * N_STATES * n_rows
        tl.store(own_ptr, greatest, mask=row_mask)
        tl.store(own_ptr + n_rows, total, mask=row_mask)
        tl.store(own_ptr + 2 * n_rows, chosen, mask=row_mask)
        if label_ptr is not None:
            tl.store(own_ptr + 3 * n_rows, n_chosen, mask=row_mask)
        tl.debug_barrier()  # all threads of this block have stored before one of them draws the ticket
        is_last = tl.atomic_add(counter_ptr + 1 + block, 1, sem="acq_rel", scope="gpu") == n_parts - 1
    if is_last:
        if IS_SPLIT:
            tl.store(counter_ptr + 1 + block, 0)
            greatest = tl.full([ROWS], _LOWEST, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            chosen = tl.zeros([ROWS], tl.float32)
            n_chosen = tl.zeros([ROWS], tl.float32)
            for each in range(n_parts):
                each_ptr = state_ptr + each * N_STATES * n_rows
                # Past the first-level cache, which does not see what other multiprocessors wrote.
                part_greatest = tl.load(each_ptr, mask=row_mask, other=0.0, cache_modifier=".cg")
                part_total = tl.load(each_ptr + n_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                chosen += tl.load(each_ptr + 2 * n_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                if label_ptr is not None:
                    n_chosen += tl.load(each_ptr + 3 * n_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                new_greatest = maximum(greatest, part_greatest)
                total *= exp2_normal((greatest - new_greatest) * x_inv_norm)
                total += part_total * exp2_normal((part_greatest - new_greatest) * x_inv_norm)
                greatest = new_greatest
        _finish(
            greatest, total, chosen, n_chosen, x_inv_norm, block, n_blocks,
            x_ptr, positive_ptr, loss_ptr, lse_ptr, share_ptr, n_counted_ptr, partials_ptr, counter_ptr,
            n_rows, n_dims, x_row_stride, x_dim_stride, positive_row_stride, positive_dim_stride, divisor, scale,
            label_ptr is not None, ROWS, DIMS, PARTIALS,
        )  # fmt: skip


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
    for first_column in tl.range(0, n_cols, COLS, num_stages=_STAGES):
        column = first_column + tl.arange(0, COLS)
        y = _embeddings(y_ptr, first_column, n_cols, n_dims, y_row_stride, y_dim_stride, COLS, DIMS)
        y_inv_norm = tl.load(y_inv_norm_ptr + column, mask=column < n_cols, other=0.0)
        y, y_rest, y_inv_norm = factors_of(y, y_inv_norm, IS_EXACT)
        dot = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT)
        # Logits as forward rounds them: the inv_norm of the one that has a loss comes last.
        if HAVE_LOSS:
            logit = dot * (y_inv_norm * (scale * _LOG2_E))[None, :] * x_inv_norm[:, None]
            grad_logit = softmax_of(logit, lse[:, None])
        if OTHERS_HAVE_LOSS:
            column_lse, column_grad, column_share = _of_rows(
                column, n_cols, lse_ptr, share_ptr, n_counted_ptr, grad_loss_ptr, grad_loss_stride, divisor,
                HAS_POSITIVES,
            )  # fmt: skip
            logit = dot * (x_inv_norm * (scale * _LOG2_E))[:, None] * y_inv_norm[None, :]
            of_column = softmax_of(logit, column_lse[None, :])
        is_own = row[:, None] == column[None, :]
        if label_ptr is not None:
            column_label = tl.load(label_ptr + column // views * label_stride, mask=column < n_cols, other=0)
            is_chosen = label[:, None] == column_label[None, :]
            grad_logit = tl.where(is_chosen, grad_logit - share[:, None], grad_logit) * grad[:, None]
            of_column = tl.where(is_chosen, of_column - column_share[None, :], of_column)
            grad_logit = tl.where(is_own, 0.0, fma(of_column, column_grad[None, :], grad_logit))
        else:
            if not HAVE_LOSS:
                grad_logit = of_column
            is_paired = False if HAS_POSITIVES else are_paired(first_row, ROWS, first_column, COLS)
            if is_paired:
                grad_logit = tl.where(is_own, grad_logit - 1.0, grad_logit)
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
    start, place, mask = _places(
        first, count, n_dims, x_row_stride, x_dim_stride, grad_normed.shape[0], grad_normed.shape[1]
    )
    x = tl.load(x_ptr + start + place, mask=mask, other=0.0)
    normed = x.to(tl.float32) * inv_norm[:, None]
    along = tl.sum(grad_normed * normed, 1)
    along = tl.where(inv_norm * EPSILON < 0.999, along, 0.0)  # shorter ones are divided by a constant
    grad = (grad_normed - along[:, None] * normed) * inv_norm[:, None]
    start, place, mask = _places(first, count, n_dims, row_stride, dim_stride, x.shape[0], x.shape[1])
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
        x = _embeddings(x_ptr, first, n_rows, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
        x_inv_norm = tl.load(x_inv_norm_ptr + row, mask=row < n_rows, other=0.0)
        if HAS_POSITIVES:
            positive = _embeddings(
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
                positive = _embeddings(
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
        y = _embeddings(y_ptr, first, n_cols, n_dims, y_row_stride, y_dim_stride, ROWS, DIMS)
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
