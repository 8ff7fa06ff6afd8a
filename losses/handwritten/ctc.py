"""CTCLoss: what its kernels are made for, and how they are launched; the kernels are in `ctc_kernels`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import triton

from autogen.losses.handwritten._reduction import (
    NO_SUM,
    compute_dtype,
    result_dtype,
    sum_arguments,
)
from autogen.losses.handwritten.ctc_kernels import ctc_loss_backward, ctc_loss_forward
from autogen.runtime.handwritten import Backward, Forward, Handwritten, Launch

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MAX_STATES = 8192


class CTC(Handwritten):
    """`torch.nn.functional.ctc_loss` with one launch forward and one backward; its gradient is deterministic.

    Lengths on the GPU stay there: where one is out of range, the loss is nan. A label out of range has probability 0.
    """

    function = staticmethod(torch.nn.functional.ctc_loss)
    on_host = frozenset({"targets", "input_lengths", "target_lengths"})
    checks_values = True  # of labels on the CPU

    def is_short(self, arguments: Mapping[str, Any]) -> bool:
        """See `Handwritten.is_short`. Lengths on the host are read, what is not contiguous is copied."""
        given = [arguments[name] for name in sorted(self.on_host)]
        if not all(isinstance(each, torch.Tensor) and each.is_contiguous() for each in given):
            return False
        device = arguments["log_probs"].device
        return device.type != "cpu" and {each.device for each in given} == {device} and arguments["targets"].dim() == 2

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
        if refusal is None and self.checks_values and log_probs.device.type == targets.device.type == "cpu":
            used = targets.long()
            if targets.dim() == 2:
                lengths = torch.as_tensor(arguments["target_lengths"]).reshape(-1, 1)
                used = used[torch.arange(targets.shape[1]) < lengths]
            if ((used < 0) | (used >= n_classes) | (used == blank)).any():
                return "a label that is the blank or none of the classes"
        return refusal

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        log_probs, reduction = arguments["log_probs"], arguments["reduction"]
        device, n_batch = log_probs.device, _batched(log_probs).shape[1]
        n_steps, n_labels = len(log_probs), _longest_target(arguments)
        targets = arguments["targets"].to(device).contiguous()
        lengths = _lengths_and_starts(arguments, device)
        dtype = compute_dtype(log_probs)
        nll = torch.empty(n_batch, dtype=dtype, device=device)
        alpha = torch.empty(n_batch, n_steps, 2, n_labels + 1, dtype=dtype, device=device)
        shape = (n_batch,) if reduction == "none" and log_probs.dim() == 3 else ()
        loss = torch.empty(shape, dtype=result_dtype(log_probs), device=device)
        saved = (nll, alpha, targets, *lengths)
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
    """One position per thread, so that all accesses share one layout and nothing else is exchanged between threads."""
    return min(max(block // 32, 1), 16)


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
    if targets.is_meta or (inputs is None and labels is None and targets.dim() == 2):
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


def _longest_target(arguments: Mapping[str, Any]) -> int:
    """A bound of the labels of a target; on the meta device, where there may be none, the mean."""
    targets, lengths = arguments["targets"], _on_host(arguments["target_lengths"])
    if lengths is not None:
        return max(lengths)
    return targets.shape[1] if targets.dim() == 2 else triton.cdiv(len(targets), arguments["target_lengths"].numel())


def _lengths_and_starts(arguments: Mapping[str, Any], device: torch.device) -> tuple[torch.Tensor, ...]:
    """The lengths of inputs and targets, and where each target begins, if they are one after the other; contiguous."""
    given = arguments["input_lengths"], arguments["target_lengths"]
    are_joined = arguments["targets"].dim() == 1
    on_host = [each for each in map(_on_host, given) if each is not None]
    if len(on_host) == 2:
        rows = [*on_host, [0, *accumulate(on_host[1][:-1])]] if are_joined else on_host
        n, filling = len(rows[0]), [0] * (len(rows[0]) % 2)  # with which each begins at a multiple of 16 bytes
        both = torch.tensor([[*row, *filling] for row in rows], dtype=torch.int64)
        # One copy, of memory that is nobody else's: the host need not wait for it.
        return both.to(device, non_blocking=True)[:, :n].unbind()
    lengths = [torch.as_tensor(each).to(device).flatten().contiguous() for each in given]
    starts = [torch.empty_like(lengths[1], dtype=torch.int64)] if are_joined else []  # on the meta device
    return (*lengths, *starts)
