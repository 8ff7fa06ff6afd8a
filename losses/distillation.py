"""Distances of the distributions that two sets of logits give, along one dimension."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, same_shape

__all__ = ["DistillationLoss", "JSDLoss", "TotalVariationLoss"]


class _DistributionLoss(ReducedLoss):
    """A distance of two softmaxes."""

    def __init__(self, dim: int = -1, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.dim = int(dim)


@autogen_loss(reads="arguments")
class JSDLoss(_DistributionLoss):
    """The Jensen-Shannon divergence in nats, between 0 and log(2).

    `(KL(p, m) + KL(q, m)) / 2` with `p = softmax(input)`, `q = softmax(target)` and `m = (p + q) / 2`.

    Source: Lin (1991), "Divergence measures based on the Shannon entropy".

    Shapes: `input` and `target` (logits) (..., C, ...), floating point; the loss (), or without the dimension C without
    reduction.

    Args:
        dim: the dimension of the classes.
        reduction: "none", "mean" over distributions, or "sum".

    Raises:
        ValueError: an unknown reduction, or the shapes differ.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of two sets of logits."""
        same_shape(input=input, target=target)
        log_p, log_q = input.log_softmax(self.dim), target.log_softmax(self.dim)
        log_ratio = log_p - log_q
        # log(p / m) = log(2) - log(1 + q / p)
        first = log_p.exp() * (math.log(2) + F.logsigmoid(log_ratio))
        second = log_q.exp() * (math.log(2) + F.logsigmoid(-log_ratio))
        return self.reduce((first + second).sum(self.dim) / 2)


@autogen_loss(reads="arguments")
class TotalVariationLoss(_DistributionLoss):
    """The total variation distance, between 0 and 1: `sum(|p - q|) / 2` of `p = softmax(input)`, `q = softmax(target)`.

    Source: Wen et al. (2023), "f-divergence minimization for sequence-level knowledge distillation".

    Shapes: `input` and `target` (logits) (..., C, ...), floating point; the loss (), or without the dimension C without
    reduction.

    Args:
        dim: the dimension of the classes.
        reduction: "none", "mean" over distributions, or "sum".

    Raises:
        ValueError: an unknown reduction, or the shapes differ.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of two sets of logits."""
        same_shape(input=input, target=target)
        return self.reduce((input.softmax(self.dim) - target.softmax(self.dim)).abs().sum(self.dim) / 2)


@autogen_loss(reads="arguments")
class DistillationLoss(_DistributionLoss):
    """`(1 - hard) * T^2 * KL(softmax(teacher / T), softmax(input / T)) + hard * cross_entropy(input, target)`.

    Source: Hinton et al. (2015), "Distilling the knowledge in a neural network", arXiv:1503.02531.

    Shapes: `input` and `teacher` (logits) (..., C, ...), floating point; `target` (labels) without the dimension C,
    integers. The loss is (), or of the target's shape without reduction.

    Args:
        temperature: T; more than 0.
        hard: the weight of the labels, in [0, 1]; with 0 there are none.
        dim: the dimension of the classes.
        reduction: "none", "mean" over distributions, or "sum".

    Raises:
        ValueError: an argument out of its range, shapes that do not fit, labels without a weight, or the reverse.
    """

    def __init__(self, temperature: float = 2.0, hard: float = 0.0, dim: int = -1, reduction: str = "mean") -> None:
        super().__init__(dim, reduction)
        self.temperature = number_in("temperature", temperature, 0, strict=True)
        self.hard = number_in("hard", hard, 0, 1)

    def forward(self, input: Tensor, teacher: Tensor, target: Tensor | None = None) -> Tensor:
        """The loss of a student's logits."""
        same_shape(input=input, teacher=teacher)
        if (target is None) is bool(self.hard):  # Dynamo compares no symbol with a bool
            raise ValueError("labels must be given if, and only if, their weight `hard` is not 0")
        log_p = (input / self.temperature).log_softmax(self.dim)
        log_q = (teacher / self.temperature).log_softmax(self.dim)
        soft = self.temperature**2 * (log_q.exp() * (log_q - log_p)).sum(self.dim)
        if target is None:
            return self.reduce(soft)
        classes_second = input.movedim(self.dim, 1 if input.dim() > 1 else 0)
        return self.reduce(
            (1 - self.hard) * soft + self.hard * F.cross_entropy(classes_second, target, reduction="none")
        )
