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

from autogen.device_math import exp2_normal, log2, log_sigmoid_neg, maximum, sigmoid
from autogen.losses.handwritten._reduction import ratio_over_programs, sum_over_programs
from autogen.losses.handwritten.contrastive_tiles import (
    LOG2_E,
    STAGES,
    are_paired,
    embeddings,
    factors_of,
    inv_norm_of,
    product,
)

_LOWEST = tl.constexpr(-3.4028234663852886e38)  # the logit of what is not in a softmax, also where nothing is
_LN_2 = tl.constexpr(0.6931471805599453)


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
    log2_total = log2(total)
    lse = greatest * x_inv_norm + log2_total

    is_counted = row_mask
    if HAS_LABELS:
        is_counted = row_mask & (n_chosen > 0.0)
        share = 1.0 / maximum(n_chosen, 1.0)
        loss = ((greatest - chosen * share) * x_inv_norm + log2_total) * _LN_2
        tl.store(share_ptr + row, tl.where(is_counted, share, 0.0), mask=row_mask)
        lse = tl.where(is_counted, lse, -_LOWEST)  # so that `p` is 0
    elif positive_ptr is not None:
        positive = embeddings(
            positive_ptr, block * ROWS, n_rows, n_dims, positive_row_stride, positive_dim_stride, ROWS, DIMS
        )
        x = embeddings(x_ptr, block * ROWS, n_rows, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
        dot = tl.sum(x.to(tl.float32) * positive.to(tl.float32), 1)
        difference = lse * _LN_2 - dot * (inv_norm_of(x) * scale) * inv_norm_of(positive)
        loss = -log_sigmoid_neg(difference)
        tl.store(share_ptr + row, sigmoid(difference), mask=row_mask)
    else:
        loss = ((greatest - chosen) * x_inv_norm + log2_total) * _LN_2
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
def _is_in(row: tl.tensor, column: tl.tensor, n_cols: tl.tensor, IS_OWN_OUT: tl.constexpr) -> tl.tensor:
    """Which columns the softmax of each row is over: (ROWS, COLS), or (1, COLS)."""
    is_in = (column < n_cols)[None, :]
    if IS_OWN_OUT:
        is_in = is_in & (row[:, None] != column[None, :])
    return is_in


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
    x = embeddings(x_ptr, first_row, n_rows, n_dims, x_row_stride, x_dim_stride, ROWS, DIMS)
    x_inv_norm = inv_norm_of(x)
    tl.store(x_inv_norm_ptr + row, x_inv_norm, mask=row_mask)
    x, x_rest, x_inv_norm = factors_of(x, x_inv_norm, IS_EXACT)
    if label_ptr is not None:
        label = tl.load(label_ptr + row // views * label_stride, mask=row_mask, other=0)

    greatest = tl.full([ROWS], _LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    chosen = tl.zeros([ROWS], tl.float32)
    n_chosen = tl.zeros([ROWS], tl.float32)
    for first_column in tl.range(start, end, COLS, num_stages=STAGES):
        column = first_column + tl.arange(0, COLS)
        y = embeddings(y_ptr, first_column, n_cols, n_dims, y_row_stride, y_dim_stride, COLS, DIMS)
        y_inv_norm = inv_norm_of(y)
        if y_inv_norm_ptr is not None:
            is_mine = first_column // COLS % n_blocks == block
            tl.store(y_inv_norm_ptr + column, y_inv_norm, mask=column < tl.where(is_mine, n_cols, 0))
        y, y_rest, y_inv_norm = factors_of(y, y_inv_norm, IS_EXACT)
        dot = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT)
        # All logits of a row are as many times these, which may be negative.
        logit = dot * (y_inv_norm * (scale * LOG2_E))[None, :]
        is_paired = False if positive_ptr is not None else are_paired(first_row, ROWS, first_column, COLS)
        is_masked = first_column + COLS > n_cols
        if label_ptr is not None:
            is_masked = is_masked | is_paired
        elif is_paired:
            chosen += tl.sum(tl.where(row[:, None] == column[None, :], logit, 0.0), 1)
        if is_masked:
            logit = tl.where(_is_in(row, column, n_cols, label_ptr is not None), logit, _LOWEST)
        if label_ptr is not None:
            column_label = tl.load(label_ptr + column // views * label_stride, mask=column < n_cols, other=0)
            # Those in the softmax are told by their logits: a mask would take a register for each from there to here.
            is_chosen = (label[:, None] == column_label[None, :]) & (logit != _LOWEST)
            n_chosen += tl.sum(is_chosen.to(tl.float32), 1)
            chosen += tl.sum(tl.where(is_chosen, logit, 0.0), 1)
        new_greatest = maximum(greatest, tl.max(logit, 1))
        power = exp2_normal((logit - new_greatest[:, None]) * x_inv_norm[:, None])  # of the greatest exactly 1
        if is_masked:
            power = tl.where(_is_in(row, column, n_cols, label_ptr is not None), power, 0.0)
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
