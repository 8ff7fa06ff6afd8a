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

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl

from autogen.device_math import exp, logaddexp
from autogen.handwritten import Backward, Forward, Handwritten, Launch
from autogen.losses.handwritten._reduction import (
    NO_SUM,
    compute_dtype,
    result_dtype,
    sum_arguments,
    sum_over_programs,
)

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MAX_STATES = 8192


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
    log_probs_ptr,
    targets_ptr,
    starts_ptr,
    input_lengths_ptr,
    target_lengths_ptr,
    loss_ptr,
    nll_ptr,
    alpha_ptr,
    partials_ptr,
    counter_ptr,
    n_steps,
    n_classes,
    n_labels,
    blank,
    targets_stride,
    step_stride,
    sequence_stride,
    class_stride,
    divisor,
    ZERO_INFINITY: tl.constexpr,
    PER_LABEL: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTIALS: tl.constexpr,
):
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
    for _ in range(input_length):
        blank_log_prob = tl.load(blank_ptr).to(dtype)
        label_log_prob = tl.load(label_ptr, mask=is_class, other=float("-inf")).to(dtype)
        blanks, labels = _arrive(blanks, labels, may_skip, position)
        blanks += blank_log_prob
        labels += label_log_prob
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
        sum_over_programs(loss, loss_ptr, partials_ptr, counter_ptr, divisor, PARTIALS)


@triton.jit
def _gradient(log_prob: tl.tensor, share: tl.tensor, nll: tl.tensor) -> tl.tensor:
    """`exp(log_prob) - share`; nan where torch subtracts infinities to find the share, which is 0 / 0 there."""
    is_defined = (log_prob > float("-inf")) & (nll < float("inf"))
    return tl.where(is_defined, exp(log_prob) - share, float("nan"))


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
):
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
    for _ in range(input_length):
        blank_log_prob = tl.load(blank_ptr).to(dtype)
        label_log_prob = tl.load(label_ptr, mask=is_class, other=float("-inf")).to(dtype)
        blank_alpha = tl.load(alpha_ptr, mask=is_blank, other=float("-inf"))
        label_alpha = tl.load(alpha_ptr + n_labels, mask=is_label, other=float("-inf"))
        blanks, labels = _arrive(blanks, labels, may_skip, position)

        # How probable it is that an alignment is at this state now.
        blank_share = exp(blank_alpha + nll + blanks)
        label_share = exp(label_alpha + nll + labels)
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

        blanks += blank_log_prob
        labels += label_log_prob
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
):
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
    log_probs_ptr,
    targets_ptr,
    starts_ptr,
    input_lengths_ptr,
    target_lengths_ptr,
    nll_ptr,
    alpha_ptr,
    grad_loss_ptr,
    grad_log_probs_ptr,
    n_steps,
    n_classes,
    n_labels,
    blank,
    targets_stride,
    step_stride,
    sequence_stride,
    class_stride,
    grad_loss_stride,
    grad_step_stride,
    divisor,
    ZERO_INFINITY: tl.constexpr,
    PER_LABEL: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
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


class CTC(Handwritten):
    """`torch.nn.functional.ctc_loss` with one launch forward and one backward; its gradient is deterministic.

    Lengths on the GPU stay there: where one is out of range, the loss is nan. A label out of range has probability 0.
    """

    function = staticmethod(torch.nn.functional.ctc_loss)

    def refuse(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Handwritten.refuse`."""
        log_probs, targets, blank = (arguments[name] for name in ("log_probs", "targets", "blank"))
        if not isinstance(log_probs, torch.Tensor) or not isinstance(targets, torch.Tensor):
            return "log_probs or targets that are no tensors"
        if log_probs.dtype not in _FLOATS or log_probs.dim() not in (2, 3) or log_probs.numel() == 0:
            return f"log_probs that are {str(log_probs.dtype)[6:]} of the shape {tuple(log_probs.shape)}"
        if targets.dtype not in _INTEGERS or targets.dim() not in (1, 2):
            return f"targets that are {str(targets.dtype)[6:]} of the shape {tuple(targets.shape)}"
        if set(needs_gradient) - {"log_probs"}:
            return "a gradient for anything but log_probs"
        if arguments["reduction"] not in ("none", "mean", "sum") or type(arguments["zero_infinity"]) is not bool:
            return "options that torch does not know"
        n_steps, n_batch, n_classes = _batched(log_probs).shape
        if type(blank) is not int or not 0 <= blank < n_classes:
            return f"the blank {blank!r} out of the {n_classes} classes"
        if targets.dim() == 2 and len(targets) != n_batch:
            return f"{len(targets)} targets for {n_batch} sequences"
        refusal = _refuse_lengths(arguments, n_steps, n_batch)
        if refusal is None and 2 * _longest_target(arguments) + 1 > _MAX_STATES:
            return f"a target with more than {_MAX_STATES} states"
        if refusal is None and log_probs.device.type == targets.device.type == "cpu":
            lengths = _on_host(arguments["target_lengths"])
            assert lengths is not None
            used = targets.long()
            if targets.dim() == 2:
                used = used[torch.arange(targets.shape[1]) < torch.tensor(lengths)[:, None]]
            if ((used < 0) | (used >= n_classes) | (used == blank)).any():
                return "a label that is the blank or none of the classes"
        return refusal

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        log_probs, reduction = arguments["log_probs"], arguments["reduction"]
        device, n_batch = log_probs.device, _batched(log_probs).shape[1]
        n_steps, n_labels = len(log_probs), _longest_target(arguments)
        targets = arguments["targets"].to(device).contiguous()
        lengths = [_on_device(arguments[name], device) for name in ("input_lengths", "target_lengths")]
        starts = () if targets.dim() == 2 else (_starts(arguments, device),)
        dtype = compute_dtype(log_probs)
        nll = torch.empty(n_batch, dtype=dtype, device=device)
        alpha = torch.empty(n_batch, n_steps, 2, n_labels + 1, dtype=dtype, device=device)
        shape = (n_batch,) if reduction == "none" and log_probs.dim() == 3 else ()
        loss = torch.empty(shape, dtype=result_dtype(log_probs), device=device)
        saved = (nll, alpha, targets, *lengths, *starts)
        summed = NO_SUM if reduction == "none" else sum_arguments(n_batch, dtype, device)
        both = _common(arguments, saved)
        launch = Launch(ctc_loss_forward, (n_batch,), {**both, "loss_ptr": loss, **summed}, _num_warps(both["BLOCK"]))
        return Forward(loss, saved, (launch,))

    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """See `Handwritten.backward`."""
        log_probs = arguments["log_probs"]
        gradient = torch.empty(log_probs.shape, dtype=log_probs.dtype, device=log_probs.device)
        _, n_batch, n_classes = _batched(log_probs).shape
        both = _common(arguments, saved)
        num_warps = _num_warps(both["BLOCK"])
        cols = min(triton.next_power_of_2(n_classes), 128)
        own = {
            "grad_loss_ptr": upstream,
            "grad_log_probs_ptr": gradient,
            "grad_loss_stride": upstream.stride(0) if upstream.dim() else 0,
            "grad_step_stride": n_batch * n_classes,
            "COLS": cols,
            "ROWS": 256 * num_warps // cols,  # 8 elements per thread
        }
        # The long way through a target first, as the other classes take less time.
        grid = (n_batch, 1 + triton.cdiv(n_classes, cols))
        return Backward({"log_probs": gradient}, (Launch(ctc_loss_backward, grid, {**both, **own}, num_warps),))


def _common(arguments: Mapping[str, Any], saved: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The kernel arguments that forward and backward share."""
    nll, alpha, targets, input_lengths, target_lengths, *starts = saved
    log_probs = _batched(arguments["log_probs"])
    n_labels = alpha.shape[-1] - 1
    step_stride, sequence_stride, class_stride = log_probs.stride()
    return {
        "log_probs_ptr": log_probs,
        "targets_ptr": targets,
        "starts_ptr": starts[0] if starts else None,
        "input_lengths_ptr": input_lengths,
        "target_lengths_ptr": target_lengths,
        "nll_ptr": nll,
        "alpha_ptr": alpha,
        "n_steps": log_probs.shape[0],
        "n_classes": log_probs.shape[2],
        "n_labels": n_labels,
        "blank": arguments["blank"],
        "targets_stride": targets.shape[-1],
        "step_stride": step_stride,
        "sequence_stride": sequence_stride,
        "class_stride": class_stride,
        "divisor": log_probs.shape[1] if arguments["reduction"] == "mean" else 1,
        "ZERO_INFINITY": arguments["zero_infinity"],
        "PER_LABEL": arguments["reduction"] == "mean",
        "BLOCK": triton.next_power_of_2(n_labels + 1),
    }


def _num_warps(block: int) -> int:
    """Two positions per thread, which hide some of each other's latency; the fewer warps, the sooner all have met."""
    return min(max(block // 64, 1), 16)


def _batched(log_probs: torch.Tensor) -> torch.Tensor:
    """`log_probs` with a dimension for the batch."""
    return log_probs if log_probs.dim() == 3 else log_probs[:, None]


def _refuse_lengths(arguments: Mapping[str, Any], n_steps: int, n_batch: int) -> str | None:
    """Why the lengths are refused, if they are."""
    given = [arguments["input_lengths"], arguments["target_lengths"]]
    targets = arguments["targets"]
    if not all(isinstance(each, torch.Tensor) for each in given):
        if not all(isinstance(each, (list, tuple)) and all(type(k) is int for k in each) for each in given):
            return "lengths that are neither two tensors nor two lists of integers"
    elif any(each.dtype not in _INTEGERS for each in given):
        return "lengths that are no integers"
    if any((each.numel() if isinstance(each, torch.Tensor) else len(each)) != n_batch for each in given):
        return f"lengths that are not {n_batch}, one for each sequence"
    inputs, labels = map(_on_host, given)
    if targets.is_meta or (inputs is None and labels is None and targets.dim() == 2 and targets.is_cuda):
        return None
    if inputs is None or labels is None:
        return "targets one after the other whose lengths are on the GPU"
    if not all(0 <= length <= n_steps for length in inputs):
        return f"an input length out of the {n_steps} steps"
    if min(labels) < 0 or (max(labels) > targets.shape[1] if targets.dim() == 2 else sum(labels) != len(targets)):
        return "target lengths that do not fit the targets"
    return None


def _on_host(lengths: Any) -> list[int] | None:
    """Lengths as integers, if they are known without waiting for a device."""
    if not isinstance(lengths, torch.Tensor):
        return list(lengths)
    return lengths.flatten().tolist() if lengths.device.type == "cpu" else None


def _on_device(lengths: Any, device: torch.device) -> torch.Tensor:
    """Lengths as a contiguous tensor."""
    if not isinstance(lengths, torch.Tensor):
        return torch.tensor(lengths, dtype=torch.int64, device=device)
    return lengths.to(device).flatten().contiguous()


def _longest_target(arguments: Mapping[str, Any]) -> int:
    """A bound of the labels of a target; on the meta device, where there may be none, the mean."""
    targets, lengths = arguments["targets"], _on_host(arguments["target_lengths"])
    if lengths is not None:
        return max(lengths)
    return targets.shape[1] if targets.dim() == 2 else triton.cdiv(len(targets), arguments["target_lengths"].numel())


def _starts(arguments: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """Where each of the targets begins that are one after the other."""
    lengths = arguments["target_lengths"]
    known = _on_host(lengths)
    if known is None:
        return torch.empty(lengths.numel(), dtype=torch.int64, device=device)  # on the meta device
    return torch.tensor([0, *accumulate(known[:-1])], dtype=torch.int64, device=device)
