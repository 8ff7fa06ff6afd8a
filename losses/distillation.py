"""Distillation losses: distances between the distributions of two sets of logits, along one dimension."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, bounded, number_in, same_shape

__all__ = ["DistillationLoss", "JSDLoss", "TotalVariationLoss"]


def kl_divergence(logits: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """`KL(p, q) = sum(p * log(p / q))` in nats, of `p = softmax(logits)` and `q = softmax(other)`.

    A class of logit -inf has the probability 0: in p it adds nothing, in q alone it makes the sum infinite.
    """
    log_p = bounded(logits).log_softmax(dim)
    # log q is `other` less what is the same for all classes.
    compared = torch.where(logits > -math.inf, other, 0)
    return (log_p.exp() * (log_p - compared)).sum(dim) + other.logsumexp(dim)


def jensen_shannon(input: Tensor, target: Tensor, dim: int = -1, beta: float = 0.5) -> Tensor:
    """`(1 - beta) * KL(p, m) + beta * KL(q, m)` in nats; `p`, `q` softmaxes of logits, `m = (1 - beta) * p + beta * q`.

    A class of logit -inf has the probability 0, and adds nothing where it has that in both.
    """
    log_p, log_q = bounded(input).log_softmax(dim), bounded(target).log_softmax(dim)
    odds = (1 - beta) / beta
    # log(p / m) = -log(1 - beta) - log(1 + q / (odds * p))
    log_ratio = log_p - log_q + math.log(odds)
    first = log_p.exp() * (F.logsigmoid(log_ratio) - math.log(1 - beta))
    second = log_q.exp() * (F.logsigmoid(-log_ratio) - math.log(beta))
    return beta * (odds * first + second).sum(dim)


class _DistributionLoss(ReducedLoss):
    """A distance of two softmaxes."""

    def __init__(self, dim: int = -1, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.dim = int(dim)


@autogen_loss(reads="arguments")
class JSDLoss(_DistributionLoss):
    """The Jensen-Shannon divergence in nats, between 0 and log(2), or a generalised one.

    `(1 - beta) * KL(p, m) + beta * KL(q, m)` with `p = softmax(input)`, `q = softmax(target)` and
    `m = (1 - beta) * p + beta * q`. A class of logit -inf has the probability 0.

    Source: Lin (1991), "Divergence measures based on the Shannon entropy"; with another `beta`, Agarwal et al. (2024),
    "On-policy distillation of language models: learning from self-generated mistakes", arXiv:2306.13649.

    Shapes: `input` and `target` (logits) (..., C, ...), floating point; the loss (), or without the dimension C without
    reduction.

    Args:
        dim: the dimension of the classes.
        reduction: "none", "mean" over distributions, or "sum".
        beta: the weight of the target; in (0, 1).

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, dim: int = -1, reduction: str = "mean", beta: float = 0.5) -> None:
        super().__init__(dim, reduction)
        self.beta = number_in("beta", beta, 0, 1, strict=True)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of two sets of logits."""
        same_shape(input=input, target=target)
        return self.reduce(jensen_shannon(input, target, self.dim, self.beta))


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

    A class that the teacher excludes, by the logit -inf, adds nothing; one that the student alone excludes makes the
    loss infinite.

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
        cooled = input / self.temperature
        soft = self.temperature**2 * kl_divergence(teacher / self.temperature, cooled, self.dim)
        if target is None:
            return self.reduce(soft)
        classes_second = input.movedim(self.dim, 1 if input.dim() > 1 else 0)
        return self.reduce(
            (1 - self.hard) * soft + self.hard * F.cross_entropy(classes_second, target, reduction="none")
        )
