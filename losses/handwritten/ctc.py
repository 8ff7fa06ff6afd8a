"""CTCLoss: which calls its handwritten kernels take, and how they are launched; see `ctc_kernels`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import triton

from autogen.losses.handwritten._reduction import Reduced, compute_dtype, upstream_arguments
from autogen.losses.handwritten.ctc_kernels import ctc_loss_backward, ctc_loss_forward
from autogen.runtime.direct import padded
from autogen.runtime.handwritten import Backward, Forward, Found, Launch, defaults_of

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MAX_STATES = 8192


class CTC(Reduced):
    """`torch.nn.functional.ctc_loss` with one launch forward and one backward; its gradient is deterministic.

    Lengths on the GPU stay there: where one is out of range, the loss is nan. A label out of range has probability 0.
    """

    defaults = defaults_of(torch.nn.functional.ctc_loss)
    gradient_format = torch.contiguous_format
    on_host = frozenset({"targets", "input_lengths", "target_lengths"})
    checks_values = True  # of tensors on the CPU, as torch does; if not, these are taken for those of a GPU

    def inputs(self, arguments: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        """See `Reduced.inputs`."""
        return [arguments["log_probs"]]

    def shape(self, arguments: Mapping[str, Any]) -> Sequence[int]:
        """See `Reduced.shape`."""
        return arguments["log_probs"].shape[1:-1]

    def kept(self, arguments: Mapping[str, Any]) -> Mapping[str, tuple[torch.dtype, int]]:
        """See `Reduced.kept`: of each sequence its loss, and the logarithms of all states."""
        n_steps, n_batch, _ = _batched(arguments["log_probs"]).shape
        dtype = compute_dtype(arguments["log_probs"])
        n_states = n_batch * n_steps * 2 * (_n_labels(arguments) + 1)
        return {"nll_ptr": (dtype, n_batch), "alpha_ptr": (dtype, n_states)}

    def misfit(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Reduced.misfit`."""
        log_probs, targets, blank = (arguments[name] for name in ("log_probs", "targets", "blank"))
        if not isinstance(targets, torch.Tensor):
            return "targets that are no tensor"
        if log_probs.dim() not in (2, 3) or log_probs.numel() == 0:
            return f"log_probs of the shape {tuple(log_probs.shape)}"
        if targets.dtype not in _INTEGERS or targets.dim() not in (1, 2):
            return f"targets that are {str(targets.dtype)[6:]} of the shape {tuple(targets.shape)}"
        if set(needs_gradient) - {"log_probs"}:
            return "a gradient for anything but log_probs"
        if type(arguments["zero_infinity"]) is not bool:
            return "a zero_infinity that is no bool"
        _, n_batch, n_classes = _batched(log_probs).shape
        if type(blank) is not int or not 0 <= blank < n_classes:
            return f"the blank {blank!r} out of the {n_classes} classes"
        if targets.dim() == 2 and len(targets) != n_batch:
            return f"{len(targets)} targets for {n_batch} sequences"
        lengths = [arguments["input_lengths"], arguments["target_lengths"]]
        if all(isinstance(each, torch.Tensor) for each in lengths):
            if any(each.dtype not in _INTEGERS for each in lengths):
                return "lengths that are no integers"
            if any(each.numel() != n_batch for each in lengths):
                return f"lengths that are not {n_batch}, one for each sequence"
        elif not all(isinstance(each, (list, tuple)) for each in lengths):
            return "lengths that are neither two tensors nor two lists"
        if targets.dim() == 1 and not targets.is_meta and not all(map(self._is_on_host, lengths)):
            return "targets one after the other whose lengths are on the GPU"
        if targets.dim() == 2 and not self._is_on_host(lengths[1]):
            return _refuse_states(targets.shape[1])
        return None

    def reads(self, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
        """See `Handwritten.reads`: lengths on the host; and what is on another device, or not contiguous, is copied."""
        targets, device = arguments["targets"], arguments["log_probs"].device
        lengths = arguments["input_lengths"], arguments["target_lengths"]
        copied = ("targets",) if targets.device != device or not targets.is_contiguous() else ()
        are_on_host = list(map(self._is_on_host, lengths))
        if all(are_on_host):
            return *copied, "lengths"
        if targets.dim() == 1:
            return *copied, "input_lengths", "target_lengths", "starts"
        are_ready = not any(are_on_host) and all(each.is_contiguous() and each.device == device for each in lengths)
        return None if are_ready and not copied else (*copied, "input_lengths", "target_lengths")

    def read(self, arguments: Mapping[str, Any]) -> Found | str:
        """See `Handwritten.read`: contiguous targets and lengths; `n_labels`, a bound of the labels of a target; and
        `starts`, where each target begins, if they are one after the other. `lengths` are all of these, from the host.
        """
        log_probs, targets = arguments["log_probs"], arguments["targets"]
        device, are_joined = log_probs.device, targets.dim() == 1
        given = arguments["input_lengths"], arguments["target_lengths"]
        inputs, labels = [_integers(each) if self._is_on_host(each) else None for each in given]
        refusal = _refuse_lengths(inputs, labels, _batched(log_probs), targets)
        if refusal is not None:
            return refusal
        if labels is not None:
            n_labels = max(labels)
        else:  # of targets one after the other, only known on the meta device
            n_labels = triton.cdiv(len(targets), given[1].numel()) if are_joined else targets.shape[1]
        refusal = _refuse_states(n_labels)
        if refusal is not None:
            return refusal
        if self.checks_values and device.type == targets.device.type == "cpu":
            used = targets.long()
            if targets.dim() == 2:
                places = torch.arange(targets.shape[1], device=device)
                used = used[places < torch.as_tensor(given[1], device=device).reshape(-1, 1)]
            if ((used < 0) | (used >= log_probs.shape[-1]) | (used == arguments["blank"])).any():
                return "a label that is the blank or none of the classes"
        found = []
        if targets.device != device or not targets.is_contiguous():
            found.append(targets.to(device).contiguous())
        if inputs is not None and labels is not None:
            found.append(_copied(inputs, labels, device, with_starts=are_joined))
        else:
            found += [each.to(device).flatten().contiguous() for each in given]
            found += [torch.empty_like(found[-1], dtype=torch.int64)] if are_joined else []  # on the meta device
        return Found({"n_labels": n_labels}, tuple(found))

    def _is_on_host(self, lengths: Any) -> bool:
        """Whether lengths are known without waiting for a device."""
        if not isinstance(lengths, torch.Tensor):
            return True
        return lengths.device.type == "cpu" and self.checks_values

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        loss, saved = self.results(arguments)
        n_batch = _batched(arguments["log_probs"]).shape[1]
        own = {**self._common(arguments, saved), "loss_ptr": loss, **self.summing(arguments, n_batch)}
        return Forward(loss, saved, (Launch(ctc_loss_forward, (n_batch,), own, _num_warps(own["BLOCK"])),))

    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """See `Handwritten.backward`."""
        gradients = self.gradients(arguments, wanted)
        _, n_batch, n_classes = _batched(arguments["log_probs"]).shape
        both = self._common(arguments, saved)
        num_warps = _num_warps(both["BLOCK"])
        cols = min(triton.next_power_of_2(n_classes), 128)
        own = {
            **upstream_arguments(upstream),
            "grad_log_probs_ptr": gradients["log_probs"],
            "grad_step_stride": n_batch * n_classes,
            "COLS": cols,
            "ROWS": 256 * num_warps // cols,  # 8 elements per thread
        }
        # The long way through a target first, as the other classes take less time.
        grid = (n_batch, 1 + triton.cdiv(n_classes, cols))
        return Backward(gradients, (Launch(ctc_loss_backward, grid, {**both, **own}, num_warps),))

    def _common(self, arguments: Mapping[str, Any], saved: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The kernel arguments that forward and backward share."""
        log_probs, targets = _batched(arguments["log_probs"]), arguments["targets"]
        n_steps, n_batch, n_classes = log_probs.shape
        names = ("input_lengths", "target_lengths", "starts")
        if "lengths" in arguments:
            lengths = list(arguments["lengths"].view(torch.int64).view(-1, padded(8 * n_batch) // 8)[:, :n_batch])
        else:
            lengths = [arguments[name] for name in names if name in arguments]
        step_stride, sequence_stride, class_stride = log_probs.stride()
        return {
            **self.shared(arguments, saved),
            "log_probs_ptr": log_probs,
            "targets_ptr": targets,
            "starts_ptr": None,
            **{f"{name}_ptr": each for name, each in zip(names, lengths, strict=False)},
            "n_steps": n_steps,
            "n_classes": n_classes,
            "n_labels": _n_labels(arguments),
            "blank": arguments["blank"],
            "targets_stride": targets.shape[-1],
            "step_stride": step_stride,
            "sequence_stride": sequence_stride,
            "class_stride": class_stride,
            "ZERO_INFINITY": arguments["zero_infinity"],
            "PER_LABEL": arguments["reduction"] == "mean",
            "BLOCK": triton.next_power_of_2(_n_labels(arguments) + 1),
        }


def _n_labels(arguments: Mapping[str, Any]) -> int:
    """A bound of the labels of a target."""
    return arguments["n_labels"] if "n_labels" in arguments else arguments["targets"].shape[1]


def _num_warps(block: int) -> int:
    """One position per thread, so that all accesses share one layout and nothing else is exchanged between threads."""
    return min(max(block // 32, 1), 16)


def _batched(log_probs: torch.Tensor) -> torch.Tensor:
    """`log_probs` with a dimension for the batch."""
    return log_probs if log_probs.dim() == 3 else log_probs[:, None]


def _integers(lengths: Any) -> list[Any]:
    """Lengths on the host."""
    return lengths.flatten().tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


def _refuse_lengths(
    inputs: list[Any] | None, labels: list[Any] | None, log_probs: torch.Tensor, targets: torch.Tensor
) -> str | None:
    """Why lengths on the host are refused, if they are."""
    n_steps, n_batch, _ = log_probs.shape
    for each in inputs, labels:
        if each is not None and (len(each) != n_batch or set(map(type, each)) != {int}):
            return f"lengths that are not {n_batch} integers, one for each sequence"
    if inputs is not None and not 0 <= min(inputs) <= max(inputs) <= n_steps:
        return f"an input length out of the {n_steps} steps"
    if labels is None:
        return None
    is_all = sum(labels) == len(targets) if targets.dim() == 1 else max(labels) <= targets.shape[1]
    return None if is_all and min(labels) >= 0 else "target lengths that do not fit the targets"


def _refuse_states(n_labels: int) -> str | None:
    return f"a target with more than {_MAX_STATES} states" if 2 * n_labels + 1 > _MAX_STATES else None


def _copied(inputs: list[int], labels: list[int], device: torch.device, *, with_starts: bool) -> torch.Tensor:
    """Lengths on a device, as the bytes of rows of int64, each of which begins at a multiple of 16."""
    filling = [0] * (len(inputs) % 2)
    numbers = [*inputs, *filling, *labels, *filling]
    if with_starts:
        numbers += [0, *accumulate(labels[:-1]), *filling]
    # One copy, of memory that is nobody else's: the host need not wait for it.
    return torch.frombuffer(array("q", numbers), dtype=torch.uint8).to(device, non_blocking=True)
