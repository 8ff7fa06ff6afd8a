"""The kernels of the contrastive losses: a pair's logit is computed where it is needed, and stored nowhere.

A program has ROWS embeddings of its own and goes over all others, COLS at a time, as an attention does that keeps no
scores. Forward keeps a number or two for each embedding, and backward computes the logits again.

Embeddings need not be of length 1: with `inv_norm = 1 / max(|x|, epsilon)` of each, the logit of a pair is
`scale * inv_norm_x * inv_norm_y * dot(x, y)`, where `scale` is 1 over the temperature. *Rows* are the embeddings that
have a loss, *columns* those that their softmax is over; `p` is that softmax.

Logits are to the base of 2, `log2(e)` times the others. The greatest of a row is found of what is in proportion to its
logits, and what is the same for all of a row multiplies differences from that. What concerns only its own column, or
columns beyond the last, is asked of the tiles that have some.

    pairs, by what there is    columns         loss of a row
    -                          positives       lse - logit of its own column
    positives                  negatives       softplus(lse - logit of its positive)
    labels                     rows            lse - mean of the logits of its label, all without its own

Without labels, the derivatives of a row are those of an attention: `sum(p * y)` over the columns. Forward has all of it
at hand, and keeps that sum, so that backward has the pairs to compute once, for the columns, instead of twice. A row's
own column is not in the sum, and has `share = 1 - p` for its derivative, as exact where `p` is nearly 1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp2_normal, fma, log2, log_sigmoid_neg, maximum, sigmoid
from autogen.losses.handwritten._reduction import ratio_over_programs, sum_over_programs
from autogen.losses.handwritten.contrastive_tiles import (
    LENGTH,
    LOG2_E,
    LOWEST,
    STAGES,
    are_paired,
    beside,
    factors,
    inv_lengths,
    normed,
    product,
    weighted,
)

_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _finish(
    greatest: tl.tensor,
    total: tl.tensor,
    chosen: tl.tensor,
    n_chosen: tl.tensor,
    sums: tl.tensor,
    row_scale: tl.tensor,
    block: tl.tensor,
    n_blocks: tl.tensor,
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    n_rows: tl.tensor,
    first_positive: tl.tensor,
    divisor: tl.tensor,
    scale: tl.tensor,
    HAS_LABELS: tl.constexpr,
    HAS_POSITIVES: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    PARTIALS: tl.constexpr,
) -> None:
    """The loss of a block of rows, of which all columns have been seen: the greatest logit and the total of the powers,
    which the logits that are `chosen` may be among.
    """
    row = block * ROWS + tl.arange(0, ROWS)
    row_mask = row < n_rows
    fade = 1.0
    if not HAS_LABELS and not HAS_POSITIVES:  # a row's own column, which is the only one that is chosen
        others = greatest
        greatest = maximum(greatest, chosen)
        fade = exp2_normal((others - greatest) * row_scale)
        others = total * fade
        total = others + exp2_normal((chosen - greatest) * row_scale)
        tl.store(share_ptr + row, others / total, mask=row_mask)
    log2_total = log2(total)
    lse = greatest * row_scale + log2_total

    is_counted = row_mask
    if HAS_LABELS:
        is_counted = row_mask & (n_chosen > 0.0)
        share = 1.0 / maximum(n_chosen, 1.0)
        loss = ((greatest - chosen * share) * row_scale + log2_total) * _LN_2
        tl.store(share_ptr + row, tl.where(is_counted, share, 0.0), mask=row_mask)
        lse = tl.where(is_counted, lse, -LOWEST)  # so that `p` is 0
    elif HAS_POSITIVES:
        first = block * ROWS
        positive = normed(high_ptr, rest_ptr, inv_length_ptr, first_positive + first, ROWS, DIMS)
        x = normed(high_ptr, rest_ptr, inv_length_ptr, first, ROWS, DIMS)
        difference = lse * _LN_2 - tl.sum(x * positive, 1) * scale
        loss = -log_sigmoid_neg(difference)
        tl.store(share_ptr + row, sigmoid(difference), mask=row_mask)
    else:
        loss = ((greatest - chosen) * row_scale + log2_total) * _LN_2
    tl.store(lse_ptr + row, lse, mask=row_mask)
    if sums_ptr is not None:
        place = row.to(tl.int64)[:, None] * DIMS + tl.arange(0, DIMS)[None, :]
        tl.store(sums_ptr + place, sums * (fade / total)[:, None], mask=row_mask[:, None])
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
    high_ptr: tl.tensor,
    rest_ptr: tl.tensor,
    inv_length_ptr: tl.tensor,
    label_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    lse_ptr: tl.tensor,
    share_ptr: tl.tensor,
    sums_ptr: tl.tensor,
    n_counted_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_cols: tl.tensor,
    first_y: tl.tensor,
    first_positive: tl.tensor,
    label_stride: tl.tensor,
    views: tl.tensor,
    divisor: tl.tensor,
    scale: tl.tensor,
    HAS_POSITIVES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DIMS: tl.constexpr,
    PARTIALS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
) -> None:
    """ROWS rows per program; the softmax over all columns is kept up as they come.

    If the columns are split, each block of ROWS rows has several programs, one after the other, for a part of the
    columns each, so that few rows keep all multiprocessors busy.

    high_ptr, rest_ptr, inv_length_ptr: see `contrastive_loss_factors`; columns begin at `first_y`
    label_ptr: (N,), each for `views` rows, or None
    loss_ptr: (N,); with PARTIALS scalar, the sum over all rows divided by `divisor`, or by how many count (written)
    lse_ptr: float32 (N,), logsumexp of a row's logits, to the base of 2; or more than any, if the row does not count
        (written)
    share_ptr: float32 (N,), what the softmax leaves to others than the own column; with positives the derivative of the
        loss by `lse`; with labels 1 over the number of those with its label, 0 for none (written)
    sums_ptr: float32 (N, DIMS), the columns over their lengths, but for the own one, by the softmax, or None (written)
    n_counted_ptr: float32 scalar, the number of rows that count, at least 1, or None (written)
    partials_ptr: float32 (blocks,) if there is a sum, twice that if rows may not count; then, if the columns are split,
        (parts, 3, N), or 4 with labels; then, if there are sums, (parts, N, DIMS)
    counter_ptr: int32 (1 + blocks,), 0 before and after
    """
    HAS_LABELS: tl.constexpr = label_ptr is not None
    IS_EXACT: tl.constexpr = rest_ptr is not None
    IS_NORMED: tl.constexpr = inv_length_ptr is None
    IS_BFLOAT: tl.constexpr = high_ptr.dtype.element_ty == tl.bfloat16
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
    x, x_rest = factors(high_ptr, rest_ptr, first_row, ROWS, DIMS)
    row_scale = inv_lengths(inv_length_ptr, row) * (scale * LOG2_E)
    if IS_NORMED:
        row_scale /= LENGTH
    if HAS_LABELS:
        label = tl.load(label_ptr + row // views * label_stride, mask=row_mask, other=0)

    greatest = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    chosen = tl.zeros([ROWS], tl.float32)
    n_chosen = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, 1 if sums_ptr is None else DIMS], tl.float32)
    for first_column in tl.range(start, end, COLS, num_stages=STAGES):
        column = first_column + tl.arange(0, COLS)
        y, y_rest = factors(high_ptr, rest_ptr, first_y + first_column, COLS, DIMS)
        logit = product(x, x_rest, tl.trans(y), tl.trans(y_rest), IS_EXACT)
        # All logits of a row are `row_scale` times these.
        inv_length = inv_lengths(inv_length_ptr, first_y + column)
        if not IS_NORMED:
            logit *= inv_length[None, :]
        is_paired = False if HAS_POSITIVES else are_paired(first_row, ROWS, first_column, COLS)
        is_masked = (first_column + COLS > n_cols) | is_paired
        if is_paired and not HAS_LABELS:
            chosen += tl.sum(tl.where(row[:, None] == column[None, :], logit, 0.0), 1)
        if is_masked:
            logit = tl.where(_is_in(row, column, n_cols, not HAS_POSITIVES), logit, LOWEST)
        if HAS_LABELS:
            column_label = tl.load(label_ptr + column // views * label_stride, mask=column < n_cols, other=0)
            # Those in the softmax are told by their logits: a mask would take a register for each from there to here.
            is_chosen = (label[:, None] == column_label[None, :]) & (logit != LOWEST)
            n_chosen += tl.sum(is_chosen.to(tl.float32), 1)
            chosen += tl.sum(tl.where(is_chosen, logit, 0.0), 1)
        new_greatest = maximum(greatest, tl.max(logit, 1))
        power = exp2_normal((logit - new_greatest[:, None]) * beside(row_scale))  # of the greatest 1
        if is_masked:
            power = tl.where(_is_in(row, column, n_cols, not HAS_POSITIVES), power, 0.0)
        fade = exp2_normal((greatest - new_greatest) * row_scale)
        total = total * fade + tl.sum(power, 1)
        if sums_ptr is not None:
            # Weights are of at most 2^14, as 1 over a length is at most 2^-8; in either case 2^22 times the sum.
            weight = power if IS_NORMED else power * (inv_length * (1.0 if IS_BFLOAT else 2.0**22))[None, :]
            of_tile = weighted(weight * 2.0**14 if IS_NORMED else weight, y, y_rest, IS_EXACT)
            sums = fma(sums, fade[:, None], of_tile)
        greatest = new_greatest
    is_last = True
    if IS_SPLIT:
        # Each part leaves what it has of its rows; the last to arrive has all of them, and adds them up in their order.
        N_STATES: tl.constexpr = 4 if HAS_LABELS else 3
        n_sums = (0 if PARTIALS is None else n_blocks) * (1 if n_counted_ptr is None else 2)
        state_ptr = partials_ptr + n_sums + row
        sums_place = row.to(tl.int64)[:, None] * DIMS + tl.arange(0, DIMS)[None, :]
        part_sums_ptr = partials_ptr + n_sums + n_parts * N_STATES * n_rows + sums_place
        own_ptr = state_ptr + part * N_STATES * n_rows
        tl.store(own_ptr, greatest, mask=row_mask)
        tl.store(own_ptr + n_rows, total, mask=row_mask)
        tl.store(own_ptr + 2 * n_rows, chosen, mask=row_mask)
        if HAS_LABELS:
            tl.store(own_ptr + 3 * n_rows, n_chosen, mask=row_mask)
        if sums_ptr is not None:
            tl.store(part_sums_ptr + tl.cast(part, tl.int64) * n_rows * DIMS, sums, mask=row_mask[:, None])
        tl.debug_barrier()  # all threads of this block have stored before one of them draws the ticket
        is_last = tl.atomic_add(counter_ptr + 1 + block, 1, sem="acq_rel", scope="gpu") == n_parts - 1
    if is_last:
        if IS_SPLIT:
            tl.store(counter_ptr + 1 + block, 0)
            greatest = tl.full([ROWS], LOWEST, tl.float32)
            total = tl.zeros([ROWS], tl.float32)
            chosen = tl.zeros([ROWS], tl.float32)
            n_chosen = tl.zeros([ROWS], tl.float32)
            sums = tl.zeros([ROWS, 1 if sums_ptr is None else DIMS], tl.float32)
            for each in range(n_parts):
                each_ptr = state_ptr + each * N_STATES * n_rows
                # Past the first-level cache, which does not see what other multiprocessors wrote.
                part_greatest = tl.load(each_ptr, mask=row_mask, other=0.0, cache_modifier=".cg")
                part_total = tl.load(each_ptr + n_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                chosen += tl.load(each_ptr + 2 * n_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                if HAS_LABELS:
                    n_chosen += tl.load(each_ptr + 3 * n_rows, mask=row_mask, other=0.0, cache_modifier=".cg")
                new_greatest = maximum(greatest, part_greatest)
                fade = exp2_normal((greatest - new_greatest) * row_scale)
                part_fade = exp2_normal((part_greatest - new_greatest) * row_scale)
                total = total * fade + part_total * part_fade
                if sums_ptr is not None:
                    part_ptr = part_sums_ptr + tl.cast(each, tl.int64) * n_rows * DIMS
                    part_sums = tl.load(part_ptr, mask=row_mask[:, None], other=0.0, cache_modifier=".cg")
                    sums = sums * fade[:, None] + part_sums * part_fade[:, None]
                greatest = new_greatest
        if sums_ptr is not None and not IS_BFLOAT:
            sums *= 2.0**-22
        _finish(
            greatest, total, chosen, n_chosen, sums, row_scale, block, n_blocks,
            high_ptr, rest_ptr, inv_length_ptr, loss_ptr, lse_ptr, share_ptr, sums_ptr, n_counted_ptr,
            partials_ptr, counter_ptr, n_rows, first_positive, divisor, scale,
            HAS_LABELS, HAS_POSITIVES, ROWS, DIMS, PARTIALS,
        )  # fmt: skip
