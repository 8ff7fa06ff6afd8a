"""Cross entropy of logits whose classes are sharded across processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in

__all__ = ["VocabParallelCrossEntropyLoss"]


@autogen_loss
class VocabParallelCrossEntropyLoss(ReducedLoss):
    """`-(1 - s) * log(p_y) - s * mean_c log(p_c) + z * log(Z)^2` of labels y, each rank with logits of its own classes.

    `p = softmax(x)` is over the classes of all ranks, and `Z = sum_c exp(x_c)`; rank 0 has the first classes, rank 1
    those that follow, and so on. Every rank computes the same loss, and the gradient of its own logits, as if the loss
    was computed once: gradients of other shards, or of what all ranks have, are not added up here. A forward call is
    one collective, of three numbers per row (four with label smoothing), a backward call none. Half precision is
    computed in float32, and so is the loss, without a copy of the logits. The mean is over the labels that are not
    ignored, and 0 if all are. Without a process group, or in a group of one, the loss is the plain cross entropy.

    Source: Shoeybi et al. (2019), "Megatron-LM: training multi-billion parameter language models using model
    parallelism", arXiv:1909.08053, section 3; for z, de Brébisson and Vincent (2016), "The Z-loss: a shift and scale
    invariant classification loss belonging to the spherical family", arXiv:1604.08859, as in PaLM (arXiv:2204.02311).

    Shapes: `input` (logits of this rank's classes) (..., C_rank), floating point; `target` (labels, counted over the
    classes of all ranks) (...), integers, the same on each rank. The loss is (), or of the target's shape without
    reduction.

    Args:
        group: the processes, which all call the loss alike; None for all that there are.
        sizes: the number of classes of each rank, of at least 1. By default all have as many: the first call asks the
            others, which is one more collective, and waits for the device.
        ignore_index: the label that does not count.
        label_smoothing: s, in [0, 1].
        z_loss: z, at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range; shapes, dtypes or sizes that do not fit, on the rank concerned; ranks
            that have different numbers of classes though no `sizes` are given, on every rank; a process outside of the
            group.
        IndexError: a label that is no class, on the CPU; on a GPU the loss is nan.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        sizes: Sequence[int] | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.group = group
        self.sizes = None if sizes is None else tuple(map(int, sizes))
        if self.sizes is not None and min(self.sizes, default=0) < 1:
            raise ValueError(f"sizes must be a number of classes for each rank, at least 1; got {sizes}")
        self.ignore_index = int(ignore_index)
        self.label_smoothing = number_in("label_smoothing", label_smoothing, 0, 1)
        self.z_loss = number_in("z_loss", z_loss, 0)
        self._agreed: list[int] = []  # the numbers of classes that all ranks turned out to have

    def __call__(self, input: Tensor, target: Tensor) -> Any:
        """The loss, after what can be checked of it before anything runs."""
        self._check(input, target)
        return super().__call__(input, target)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits of this rank's classes."""
        rank, ranks = _place_in(self.group)
        sizes = self.sizes or (input.shape[-1],) * ranks
        logits = input if input.dtype == torch.float64 else input.float()
        counted = target != self.ignore_index
        place = target - sum(sizes[:rank])
        is_own = (place >= 0) & (place < input.shape[-1])
        own = logits.gather(-1, place.clamp(0, input.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        largest = logits.detach().amax(-1)
        shift = torch.where(largest.abs() == math.inf, 0, largest)  # a rank's logits may all be -inf, such as padding
        total = (logits - shift.unsqueeze(-1)).exp().sum(-1)
        added = [torch.where(is_own, own, 0), *([logits.sum(-1)] if self.label_smoothing else [])]
        normalizer, *added = _Together.apply(self.group, ranks, largest, total, *added)
        is_class = (target >= 0) & (target < sum(sizes))
        loss = normalizer - (1 - self.label_smoothing) * torch.where(is_class, added[0], float("nan"))
        if self.label_smoothing:
            loss = loss - self.label_smoothing / sum(sizes) * added[1]
        if self.z_loss:
            loss = loss + self.z_loss * normalizer**2
        return self.reduce(loss, counted)

    def _check(self, input: Tensor, target: Tensor) -> None:
        if input.dim() == 0 or not input.is_floating_point() or input.shape[-1] == 0:
            raise ValueError(
                f"input must be floating point, of shape (..., C) with C > 0; got {input.dtype}, {tuple(input.shape)}"
            )
        if target.is_floating_point() or target.shape != input.shape[:-1]:
            raise ValueError(
                f"target must hold class labels, of shape {tuple(input.shape[:-1])};"
                f" got {target.dtype}, {tuple(target.shape)}"
            )
        rank, ranks = _place_in(self.group)
        classes = input.shape[-1]
        if rank < 0:
            raise ValueError("this process is not in the group that the loss is computed in")
        if self.sizes is not None and (len(self.sizes) != ranks or self.sizes[rank] != classes):
            raise ValueError(f"sizes are {self.sizes}, but rank {rank} of {ranks} has {classes} classes")
        if torch.compiler.is_compiling():
            return
        self._agree(input, rank, ranks)
        if target.is_cpu:
            count = sum(self.sizes) if self.sizes is not None else classes * ranks
            wrong = (target != self.ignore_index) & ((target < 0) | (target >= count))
            if wrong.any():
                label = target[wrong][0].item()
                raise IndexError(f"target {label} is out of bounds: all ranks together have {count} classes")

    def _agree(self, input: Tensor, rank: int, ranks: int) -> None:
        """Ask all ranks, once, how many classes they have, if nobody has said so."""
        classes = input.shape[-1]
        if self.sizes is not None or ranks == 1 or self._agreed == [classes]:
            return
        if self._agreed:
            raise ValueError(
                f"rank {rank} has {classes} classes, and had {self._agreed[0]} when all ranks were asked; make another"
                " loss for them, or pass sizes"
            )
        found = [torch.zeros(1, dtype=torch.int64, device=input.device) for _ in range(ranks)]
        dist.all_gather(found, torch.tensor([classes], device=input.device), self.group)
        sizes = tuple(int(each) for each in found)
        if len(set(sizes)) > 1:
            raise ValueError(f"the ranks have {sizes} classes, which differ; pass sizes={sizes} if they are to")
        self._agreed.append(classes)


class _Together(torch.autograd.Function):
    """Of `sum_c exp(x_c) = sum * exp(largest)` on each rank, the logarithm over all ranks; and what they have `added`.

    What arrives is the gradient of a rank's own numbers: all ranks compute the same of the results, which counts once.
    """

    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup | None, ranks: int, largest: Tensor, total: Tensor, *added: Tensor
    ) -> tuple[Tensor, ...]:
        numbers = torch.stack([largest, total, *added]).unsqueeze(0)
        if ranks > 1:
            own, numbers = numbers, numbers.new_empty((ranks, *numbers.shape[1:]))
            dist.all_gather_into_tensor(numbers, own, group)
        top = numbers[:, 0].amax(0)
        normalizer = top + (numbers[:, 1] * (numbers[:, 0] - top).exp()).sum(0).log()
        ctx.save_for_backward(largest, normalizer)
        return normalizer, *numbers[:, 2:].sum(0)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *upstreams: Tensor) -> tuple[Tensor | None, ...]:
        largest, normalizer = ctx.saved_tensors
        return None, None, None, upstream * (largest - normalizer).exp(), *upstreams


def _place_in(group: dist.ProcessGroup | None) -> tuple[int, int]:
    """This process's rank, and how many there are; one if no process group is there."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)
