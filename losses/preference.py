"""Preference-optimisation losses, from the log-probabilities that models give to whole answers.

A *chosen* answer is preferred to a *rejected* one. Log-probabilities are summed over the tokens of an answer, or
averaged where a loss says so.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, same_shape, smallest

__all__ = ["DPOLoss", "IPOLoss", "KTOLoss", "ORPOLoss", "SimPOLoss"]


class _PreferenceLoss(ReducedLoss):
    """A loss with the strength `beta`."""

    def __init__(self, beta: float, reduction: str) -> None:
        super().__init__(reduction)
        self.beta = number_in("beta", beta, 0, strict=True)


def _margin(chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor) -> Tensor:
    """How much more the policy prefers the chosen answer than the reference does."""
    same_shape(
        chosen=chosen,
        rejected=rejected,
        reference_chosen=reference_chosen,
        reference_rejected=reference_rejected,
    )
    return (chosen - reference_chosen) - (rejected - reference_rejected)


class DPO(_PreferenceLoss):
    """What is compared, and how, without where log-probabilities come from; likewise the classes below."""

    def __init__(self, beta: float, label_smoothing: float, reduction: str) -> None:
        super().__init__(beta, reduction)
        self.label_smoothing = number_in("label_smoothing", label_smoothing, 0, 0.5)

    def compare(self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor) -> Tensor:
        """The loss of log-probabilities."""
        logit = self.beta * _margin(chosen, rejected, reference_chosen, reference_rejected)
        loss = -F.logsigmoid(logit)
        if self.label_smoothing:
            loss = (1 - self.label_smoothing) * loss - self.label_smoothing * F.logsigmoid(-logit)
        return self.reduce(loss)


@autogen_loss(reads="arguments")
class DPOLoss(DPO):
    """`-(1 - e) * log(sigmoid(beta * h)) - e * log(sigmoid(-beta * h))`, with e the label smoothing.

    `h = (chosen - reference_chosen) - (rejected - reference_rejected)`.

    Source: Rafailov et al. (2023), "Direct preference optimization: your language model is secretly a reward model",
    arXiv:2305.18290.

    Shapes: all four log-probabilities (...), floating point; the loss (), or (...) without reduction.

    Args:
        beta: more than 0.
        label_smoothing: how often a preference is taken to be wrong; in [0, 0.5].
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, beta: float = 0.1, label_smoothing: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(beta, label_smoothing, reduction)

    def forward(self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor) -> Tensor:
        """The loss of the policy's and the reference's log-probabilities."""
        return self.compare(chosen, rejected, reference_chosen, reference_rejected)


class IPO(_PreferenceLoss):
    def compare(self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor) -> Tensor:
        """The loss of log-probabilities."""
        margin = _margin(chosen, rejected, reference_chosen, reference_rejected)
        return self.reduce((margin - 1 / (2 * self.beta)) ** 2)


@autogen_loss(reads="arguments")
class IPOLoss(IPO):
    """`(h - 1 / (2 * beta))^2`, with `h = (chosen - reference_chosen) - (rejected - reference_rejected)`.

    Source: Azar et al. (2023), "A general theoretical paradigm to understand learning from human preferences",
    arXiv:2310.12036.

    Shapes: all four log-probabilities (...), floating point; the loss (), or (...) without reduction.

    Args:
        beta: more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, beta: float = 0.1, reduction: str = "mean") -> None:
        super().__init__(beta, reduction)

    def forward(self, chosen: Tensor, rejected: Tensor, reference_chosen: Tensor, reference_rejected: Tensor) -> Tensor:
        """The loss of the policy's and the reference's log-probabilities."""
        return self.compare(chosen, rejected, reference_chosen, reference_rejected)


class SimPO(_PreferenceLoss):
    def __init__(self, beta: float, gamma: float, reduction: str) -> None:
        super().__init__(beta, reduction)
        self.gamma = number_in("gamma", gamma, 0)

    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """The loss of log-probabilities."""
        same_shape(chosen=chosen, rejected=rejected)
        return self.reduce(-F.logsigmoid(self.beta * (chosen - rejected) - self.gamma))


@autogen_loss(reads="arguments")
class SimPOLoss(SimPO):
    """`-log(sigmoid(beta * (chosen - rejected) - gamma))`, without a reference.

    Source: Meng et al. (2024), "SimPO: simple preference optimization with a reference-free reward", arXiv:2405.14734.

    Shapes: `chosen` and `rejected`, log-probabilities averaged over tokens, (...), floating point; the loss is (), or
    (...) without reduction.

    Args:
        beta: more than 0.
        gamma: the margin that is asked for; at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, beta: float = 2.0, gamma: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(beta, gamma, reduction)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """The loss of the policy's log-probabilities."""
        return self.compare(chosen, rejected)


def _log_odds(log_prob: Tensor) -> Tensor:
    """`log(p / (1 - p))` of `log(p) < 0`."""
    # Each form of log(1 - p) where it does not cancel; the bounds keep the other one's slope finite.
    near_one = (-torch.expm1(log_prob.clamp(min=-math.log(2)))).clamp(min=smallest(log_prob)).log()
    far_off = torch.log1p(-log_prob.clamp(max=-math.log(2)).exp())
    return log_prob - torch.where(log_prob > -math.log(2), near_one, far_off)


class ORPO(_PreferenceLoss):
    def compare(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """The loss of log-probabilities."""
        same_shape(chosen=chosen, rejected=rejected)
        return self.reduce(-chosen - self.beta * F.logsigmoid(_log_odds(chosen) - _log_odds(rejected)))


@autogen_loss(reads="arguments")
class ORPOLoss(ORPO):
    """`-chosen - beta * log(sigmoid(odds(chosen) - odds(rejected)))`, with `odds(log(p)) = log(p / (1 - p))`.

    Source: Hong et al. (2024), "ORPO: monolithic preference optimization without reference model", arXiv:2403.07691.

    Shapes: `chosen` and `rejected`, log-probabilities averaged over tokens, less than 0, (...), floating point; the
    loss (), or (...) without reduction.

    Args:
        beta: the weight of the preference; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, beta: float = 0.1, reduction: str = "mean") -> None:
        super().__init__(beta, reduction)

    def forward(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        """The loss of the policy's log-probabilities."""
        return self.compare(chosen, rejected)


class KTO(_PreferenceLoss):
    def __init__(self, beta: float, desirable_weight: float, undesirable_weight: float, reduction: str) -> None:
        super().__init__(beta, reduction)
        self.desirable_weight = number_in("desirable_weight", desirable_weight, 0)
        self.undesirable_weight = number_in("undesirable_weight", undesirable_weight, 0)

    def compare(self, input: Tensor, reference: Tensor, target: Tensor, mismatched: Tensor | None) -> Tensor:
        """The loss of log-probabilities."""
        same_shape(input=input, reference=reference, target=target)
        reward = input - reference
        if mismatched is not None:
            reward = reward - mismatched.detach().mean().clamp(min=0)
        is_desirable = target.bool()
        # 1 - sigmoid(x) = sigmoid(-x)
        unhappiness = torch.where(is_desirable, -self.beta * reward, self.beta * reward).sigmoid()
        weighted = (self.desirable_weight * unhappiness, self.undesirable_weight * unhappiness)
        return self.reduce(torch.where(is_desirable, *weighted))


@autogen_loss(reads="arguments")
class KTOLoss(KTO):
    """`w * (1 - sigmoid(s * beta * (input - reference - z)))`; s is 1 for desirable answers, -1 for others.

    The weight w is that of their kind. `z = max(0, mean(mismatched))`, without gradient, estimates how far the policy
    is from the reference.

    Source: Ethayarajh et al. (2024), "KTO: model alignment as prospect theoretic optimization", arXiv:2402.01306.

    Shapes: `input` and `reference`, the log-probabilities of the policy and of the reference, and `target`, whether an
    answer is desirable (bool), (...). `mismatched`, the log-ratios of policy and reference for answers to other
    prompts, of any shape; without it z is 0. Floating point; the loss (), or (...) without reduction.

    Args:
        beta: more than 0.
        desirable_weight: w of desirable answers; at least 0.
        undesirable_weight: w of the others; at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(
        self,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(beta, desirable_weight, undesirable_weight, reduction)

    def forward(self, input: Tensor, reference: Tensor, target: Tensor, mismatched: Tensor | None = None) -> Tensor:
        """The loss of the policy's and the reference's log-probabilities."""
        return self.compare(input, reference, target, mismatched)
