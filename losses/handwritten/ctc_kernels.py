"""CTCLoss: the probability of all alignments of a target with a longer sequence, one program per sequence.

A. Graves, S. Fernández, F. Gomez, J. Schmidhuber: Connectionist Temporal Classification: Labelling Unsegmented Sequence
Data with Recurrent Neural Networks, ICML 2006, in logarithms.

An alignment is at a state at each step: at label k of the target's L labels, or at the blank before it; the last of the
L + 1 blanks follows the last label. From a state it goes on to itself or to the next one, and from a label also to the
next label if that is another one. The ways into the two states of a position k share most of their work:

    blank[k] <- blank[k], label[k - 1]
    label[k] <- label[k], blank[k], label[k - 1] unless equal  =  label[k], blank[k] or what blank[k] has come to

Read backward, the target is a target of the same kind, so the steps back are the same function's.
"""

from __future__ import annotations

import triton
import triton.language as tl

from autogen.device_math import exp, logaddexp
from autogen.losses.handwritten._reduction import sum_over_programs


@triton.jit
def _sequence(
    targets_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    input_lengths_ptr: tl.tensor,
    target_lengths_ptr: tl.tensor,
    n: tl.tensor,
    n_steps: tl.tensor,
    n_labels: tl.tensor,
    targets_stride: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Steps and labels of sequence `n`, at most as many as there is memory for, and where its labels are."""
    input_length = tl.minimum(tl.maximum(tl.load(input_lengths_ptr + n), 0), n_steps).to(tl.int32)
    target_length = tl.minimum(tl.maximum(tl.load(target_lengths_ptr + n), 0), n_labels).to(tl.int32)
    start = n * targets_stride if starts_ptr is None else tl.load(starts_ptr + n)
    return input_length, target_length, targets_ptr + start


@triton.jit
def _arrive(
    blanks: tl.tensor, labels: tl.tensor, may_skip: tl.tensor, position: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """One step of all alignments: the log-sums over the ways into each blank and each label."""
    before = tl.where(position > 0, tl.gather(labels, tl.maximum(position - 1, 0), 0), float("-inf"))
    to_blanks = logaddexp(blanks, before)
    return to_blanks, logaddexp(labels, tl.where(may_skip, to_blanks, blanks))


@triton.jit
def ctc_loss_forward(
    log_probs_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    input_lengths_ptr: tl.tensor,
    target_lengths_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    nll_ptr: tl.tensor,
    alpha_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    n_steps: tl.tensor,
    n_classes: tl.tensor,
    n_labels: tl.tensor,
    blank: tl.tensor,
    targets_stride: tl.tensor,
    step_stride: tl.tensor,
    sequence_stride: tl.tensor,
    class_stride: tl.tensor,
    divisor: tl.tensor,
    ZERO_INFINITY: tl.constexpr,
    PER_LABEL: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTIALS: tl.constexpr,
) -> None:
    """One sequence per program, step by step; lane k holds label k and the blank before it.

    alpha[t, state] = log(sum of alpha[t - 1, states before]) + log_probs[t, class of state]
    nll = -log(e^alpha[last step, last blank] + e^alpha[last step, last label])

    log_probs_ptr: (T, N, C), of any strides
    targets_ptr: integers (N, S) with rows `targets_stride` apart, or one target after the other
    starts_ptr: int64 (N,), where each of the latter starts, else None
    input_lengths_ptr, target_lengths_ptr: integers (N,)
    loss_ptr: (N,), or with PARTIALS scalar, their sum divided by `divisor` (written)
    nll_ptr: float32 or float64 (N,), nan for a length that is out of range (written)
    alpha_ptr: float32 or float64 (N, T, 2, S + 1), blanks and labels; only where there are some (written)
    partials_ptr: (programs,), one partial result each; of the dtype of alpha
    counter_ptr: int32 scalar, 0 before and after
    n_steps, n_classes, n_labels: T, C, and S, no less than any target's length
    PER_LABEL: whether a sequence's loss is divided by its labels before it is added
    """
    dtype: tl.constexpr = alpha_ptr.dtype.element_ty
    n = tl.program_id(0).to(tl.int64)
    input_length, target_length, labels_ptr = _sequence(
        targets_ptr, starts_ptr, input_lengths_ptr, target_lengths_ptr, n, n_steps, n_labels, targets_stride
    )
    position = tl.arange(0, BLOCK)
    is_label = position < target_length
    is_blank = position <= target_length
    label = tl.load(labels_ptr + position, mask=is_label, other=0).to(tl.int64)
    label_before = tl.load(labels_ptr + position - 1, mask=is_label & (position > 0), other=0).to(tl.int64)
    may_skip = label != label_before
    is_class = is_label & (label >= 0) & (label < n_classes)
    blank_ptr = log_probs_ptr + n * sequence_stride + tl.cast(blank, tl.int64) * class_stride
    label_ptr = log_probs_ptr + n * sequence_stride + label * class_stride
    alpha_ptr += n * n_steps * 2 * (n_labels + 1) + position

    # Before the first step all alignments are at the first blank, from where they come to it or to the first label.
    blanks = tl.where(position == 0, 0.0, float("-inf")).to(dtype)
    labels = tl.full([BLOCK], float("-inf"), dtype)
    # In stages, as a step takes less time than its loads.
    for step in tl.range(0, input_length, num_stages=3):
        blank_log_prob = tl.load(blank_ptr).to(dtype)
        label_log_prob = tl.load(label_ptr, mask=is_class, other=float("-inf")).to(dtype)
        blanks, labels = _arrive(blanks, labels, may_skip, position)
        # Where no alignment can be, a nan does not count at the first step.
        is_open = (step > 0) | (position == 0)
        blanks = tl.where(is_open, blanks + blank_log_prob, float("-inf"))
        labels = tl.where(is_open, labels + label_log_prob, float("-inf"))
        tl.store(alpha_ptr, blanks, mask=is_blank)
        tl.store(alpha_ptr + n_labels + 1, labels, mask=is_label)
        blank_ptr += step_stride
        label_ptr += step_stride
        alpha_ptr += 2 * (n_labels + 1)

    # Sums, as a maximum would lose nan.
    last_blank = tl.sum(tl.where(position == target_length, blanks, 0.0), 0)
    last_label = tl.sum(tl.where(position == target_length - 1, labels, 0.0), 0)
    nll = -logaddexp(last_blank, tl.where(target_length > 0, last_label, float("-inf")))
    is_valid = (tl.load(input_lengths_ptr + n) == input_length) & (tl.load(target_lengths_ptr + n) == target_length)
    nll = tl.where(is_valid, nll, float("nan"))
    tl.store(nll_ptr + n, nll)

    loss = tl.where(nll == float("inf"), 0.0, nll) if ZERO_INFINITY else nll
    if PER_LABEL:
        loss /= tl.maximum(target_length, 1)
    if PARTIALS is None:
        tl.store(loss_ptr + n, loss)
    else:
        sum_over_programs(
            loss, loss_ptr, partials_ptr, counter_ptr, divisor, PARTIALS, tl.program_id(0), tl.num_programs(0)
        )


@triton.jit
def _gradient(log_prob: tl.tensor, share: tl.tensor, nll: tl.tensor) -> tl.tensor:
    """`exp(log_prob) - share`; nan where torch subtracts infinities to find the share, which is 0 / 0 there."""
    share = tl.where(nll < float("inf"), share, float("nan"))
    return tl.where(log_prob > float("-inf"), exp(log_prob) - share, float("nan"))


@triton.jit
def _occurring_classes(
    log_probs_ptr: tl.tensor,
    labels_ptr: tl.tensor,
    alpha_ptr: tl.tensor,
    grad_log_probs_ptr: tl.tensor,
    nll: tl.tensor,
    upstream: tl.tensor,
    input_length: tl.tensor,
    target_length: tl.tensor,
    n_classes: tl.tensor,
    n_labels: tl.tensor,
    blank: tl.tensor,
    step_stride: tl.tensor,
    class_stride: tl.tensor,
    grad_step_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Gradients of the blank and the labels of one sequence, from its last step to its first.

    Lane k holds the k-th label from the end and the blank after it.
    """
    dtype: tl.constexpr = alpha_ptr.dtype.element_ty
    position = tl.arange(0, BLOCK)
    is_label = position < target_length
    is_blank = position <= target_length
    label_ptr = labels_ptr + target_length - 1 - position
    label = tl.load(label_ptr, mask=is_label, other=0).to(tl.int64)
    may_skip = label != tl.load(label_ptr + 1, mask=is_label & (position > 0), other=0)
    is_class = is_label & (label >= 0) & (label < n_classes)

    # Equal labels are chained, so that their shares can be added up; the first of a chain stores the gradient.
    next_equal = tl.full([BLOCK], -1, tl.int32)
    is_first = is_class & (label != blank)
    count = tl.zeros([BLOCK], tl.int32)
    for k in range(target_length):
        other = target_length - 1 - k
        is_equal = label == tl.load(labels_ptr + k)
        next_equal = tl.where(is_equal & (position < other), other, next_equal)
        is_first = is_first & ~(is_equal & (other < position))
        count += is_equal.to(tl.int32)
    longest_chain = tl.max(tl.where(is_label, count, 0), 0)

    last_step = (input_length - 1).to(tl.int64)
    log_probs_ptr += last_step * step_stride
    blank_ptr = log_probs_ptr + tl.cast(blank, tl.int64) * class_stride
    label_ptr = log_probs_ptr + label * class_stride
    grad_log_probs_ptr += last_step * grad_step_stride
    alpha_ptr += last_step * 2 * (n_labels + 1) + target_length - position

    blanks = tl.where(position == 0, 0.0, float("-inf")).to(dtype)
    labels = tl.full([BLOCK], float("-inf"), dtype)
    for step in range(input_length):
        blank_log_prob = tl.load(blank_ptr).to(dtype)
        label_log_prob = tl.load(label_ptr, mask=is_class, other=float("-inf")).to(dtype)
        is_open = (step > 0) | (position == 0)
        blank_alpha = tl.load(alpha_ptr, mask=is_blank & is_open, other=float("-inf"))
        label_alpha = tl.load(alpha_ptr + n_labels, mask=is_label & is_open, other=float("-inf"))
        blanks, labels = _arrive(blanks, labels, may_skip, position)

        # How probable it is that an alignment is at this state now.
        blank_share = exp(blank_alpha + blanks + nll)
        label_share = exp(label_alpha + labels + nll)
        # A label out of the blank's class has its share in the blank's.
        shares = tl.where(is_blank, blank_share, 0.0) + tl.where(is_label & (label == blank), label_share, 0.0)
        blank_grad = _gradient(blank_log_prob, tl.sum(shares, 0), nll) * upstream
        # Each round adds what is twice as far down the chain.
        ahead = next_equal
        reach = 1
        while reach < longest_chain:
            is_linked = ahead >= 0
            target = tl.maximum(ahead, 0)
            label_share += tl.where(is_linked, tl.gather(label_share, target, 0), 0.0)
            ahead = tl.where(is_linked, tl.gather(ahead, target, 0), -1)
            reach *= 2
        label_grad = _gradient(label_log_prob, label_share, nll) * upstream
        tl.store(grad_log_probs_ptr + blank, blank_grad)
        tl.store(grad_log_probs_ptr + label, label_grad, mask=is_first)

        blanks = tl.where(is_open, blanks + blank_log_prob, float("-inf"))
        labels = tl.where(is_open, labels + label_log_prob, float("-inf"))
        blank_ptr -= step_stride
        label_ptr -= step_stride
        grad_log_probs_ptr -= grad_step_stride
        alpha_ptr -= 2 * (n_labels + 1)


@triton.jit
def _other_classes(
    log_probs_ptr: tl.tensor,
    labels_ptr: tl.tensor,
    grad_log_probs_ptr: tl.tensor,
    nll: tl.tensor,
    upstream: tl.tensor,
    input_length: tl.tensor,
    target_length: tl.tensor,
    n_steps: tl.tensor,
    n_classes: tl.tensor,
    blank: tl.tensor,
    first_class: tl.tensor,
    step_stride: tl.tensor,
    class_stride: tl.tensor,
    grad_step_stride: tl.tensor,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """Gradients of COLS classes of one sequence where they do not occur in the target, and after its last step."""
    col = first_class + tl.arange(0, COLS)
    occurs = col == blank
    for k in range(target_length):
        occurs = occurs | (col == tl.load(labels_ptr + k))
    col = col.to(tl.int64)[None, :]
    for first_step in range(0, n_steps, ROWS):
        step = (first_step + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        is_used = step < input_length
        mask = (step < n_steps) & (col < n_classes) & ~(is_used & occurs[None, :])
        log_prob = tl.load(log_probs_ptr + step * step_stride + col * class_stride, mask=mask & is_used, other=0.0)
        grad = _gradient(log_prob.to(nll.dtype), 0.0, nll) * upstream
        tl.store(grad_log_probs_ptr + step * grad_step_stride + col, tl.where(is_used, grad, 0.0), mask=mask)


@triton.jit
def ctc_loss_backward(
    log_probs_ptr: tl.tensor,
    targets_ptr: tl.tensor,
    starts_ptr: tl.tensor,
    input_lengths_ptr: tl.tensor,
    target_lengths_ptr: tl.tensor,
    nll_ptr: tl.tensor,
    alpha_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_log_probs_ptr: tl.tensor,
    n_steps: tl.tensor,
    n_classes: tl.tensor,
    n_labels: tl.tensor,
    blank: tl.tensor,
    targets_stride: tl.tensor,
    step_stride: tl.tensor,
    sequence_stride: tl.tensor,
    class_stride: tl.tensor,
    grad_loss_stride: tl.tensor,
    grad_step_stride: tl.tensor,
    divisor: tl.tensor,
    ZERO_INFINITY: tl.constexpr,
    PER_LABEL: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """One sequence per program: the classes in its target, or COLS of the others, of which no program waits for any.

    grad_log_probs[t, c] = (e^log_probs[t, c] - e^nll * sum of e^(alpha + beta)[t, states of class c]) * grad_loss
    beta[t, state] = log(sum of beta[t + 1, next states] * e^log_probs[t + 1, their classes])

    log_probs_ptr: (T, N, C), of any strides
    targets_ptr: integers (N, S) with rows `targets_stride` apart, or one target after the other
    starts_ptr: int64 (N,), where each of the latter starts, else None
    input_lengths_ptr, target_lengths_ptr: integers (N,)
    nll_ptr: float32 or float64 (N,)
    alpha_ptr: float32 or float64 (N, T, 2, S + 1), blanks and labels
    grad_loss_ptr: (N,), of any stride, 0 for a scalar
    grad_log_probs_ptr: (T, N, C) (written)
    n_steps, n_classes, n_labels: T, C, and S, no less than any target's length
    PER_LABEL: whether a sequence's loss was divided by its labels before it was added
    """
    n = tl.program_id(0).to(tl.int64)
    input_length, target_length, labels_ptr = _sequence(
        targets_ptr, starts_ptr, input_lengths_ptr, target_lengths_ptr, n, n_steps, n_labels, targets_stride
    )
    nll = tl.load(nll_ptr + n)
    upstream = tl.load(grad_loss_ptr + n * grad_loss_stride).to(nll.dtype) / divisor
    if PER_LABEL:
        upstream /= tl.maximum(target_length, 1)
    if ZERO_INFINITY:
        # Without steps, all that is left to do is to store zeros.
        input_length = tl.where(nll == float("inf"), 0, input_length)
    log_probs_ptr += n * sequence_stride
    grad_log_probs_ptr += n * n_classes
    if tl.program_id(1) == 0:
        alpha_ptr += n * n_steps * 2 * (n_labels + 1)
        _occurring_classes(
            log_probs_ptr, labels_ptr, alpha_ptr, grad_log_probs_ptr, nll, upstream, input_length, target_length,
            n_classes, n_labels, blank, step_stride, class_stride, grad_step_stride, BLOCK,
        )  # fmt: skip
    else:
        first_class = (tl.program_id(1) - 1) * COLS
        _other_classes(
            log_probs_ptr, labels_ptr, grad_log_probs_ptr, nll, upstream, input_length, target_length,
            n_steps, n_classes, blank, first_class, step_stride, class_stride, grad_step_stride, ROWS, COLS,
        )  # fmt: skip
