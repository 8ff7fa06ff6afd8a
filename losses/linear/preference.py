"""Preference optimisation of a language model's head.

Answers are given as one batch, the chosen ones first and the rejected ones after them, in the same order, as a model is
called with them. The formulas are those of `autogen.losses.preference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss
from autogen.losses.linear._head import check_head, check_reference, check_rows, log_probs_of, logits_of
from autogen.losses.preference import DPO, IPO, KTO, ORPO, SimPO

__all__ = [
    "FusedLinearDPOLoss",
    "FusedLinearIPOLoss",
    "FusedLinearKTOLoss",
    "FusedLinearORPOLoss",
    "FusedLinearSimPOLoss",
]


class _Answers(ReducedLoss):
    """A loss of whole answers: of the sum of their labels' log-probabilities, or the mean."""

    ignore_index: int
    average: bool

    def _log_probs(
        self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, parts: int
    ) -> list[Tensor]:
        """The log-probability of each answer, in equal parts of the batch; without a label that counts it is 0."""
        rows = log_probs_of(logits_of(hidden, weight, bias), labels, self.ignore_index).chunk(parts)
        found = []
        for own, answers in zip(rows, labels.chunk(parts), strict=True):
            log_prob = own.view(answers.shape).sum(-1)
            lengths = (answers != self.ignore_index).sum(-1).clamp(min=1)
            found.append(log_prob / lengths if self.average else log_prob)
        return found


def _check_answers(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, *, are_pairs: bool = True
) -> None:
    check_head(hidden, weight, bias)
    check_rows(hidden, labels=labels)
    if hidden.dim() != 3 or (are_pairs and hidden.shape[0] % 2):
        expected = "(2N, T, H), chosen answers and as many rejected ones" if are_pairs else "(N, T, H)"
        raise ValueError(f"hidden must have the shape {expected}; got {tuple(hidden.shape)}")


class _Referenced(_Answers):
    """A loss of answers' log-probabilities beside those that a reference gives them."""

    def _reference(
        self,
        labels: Tensor,
        reference: Tensor | None,
        states: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        parts: int,
    ) -> Sequence[Tensor]:
        """The log-probabilities of the reference, which are not differentiated where they are computed here."""
        if reference is not None:
            return reference.chunk(parts)
        assert states is not None and weight is not None
        with torch.no_grad():
            return self._log_probs(states, weight, labels, bias, parts)


class _ReferencedPairs(_Referenced):
    compare: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        reference: Tensor | None = None,
        reference_hidden: Tensor | None = None,
        reference_weight: Tensor | None = None,
        bias: Tensor | None = None,
        reference_bias: Tensor | None = None,
    ) -> Tensor:
        """The loss of hidden states, chosen answers first."""
        _check_answers(hidden, weight, labels, bias)
        check_reference(hidden, hidden.shape[:1], reference, reference_hidden, reference_weight, reference_bias)
        chosen, rejected = self._log_probs(hidden, weight, labels, bias, 2)
        others = self._reference(labels, reference, reference_hidden, reference_weight, reference_bias, 2)
        return self.compare(chosen, rejected, *others)


class _Pairs(_Answers):
    compare: Callable[[Tensor, Tensor], Tensor]

    def forward(self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> Tensor:
        """The loss of hidden states, chosen answers first."""
        _check_answers(hidden, weight, labels, bias)
        return self.compare(*self._log_probs(hidden, weight, labels, bias, 2))


@autogen_loss(reads="arguments")
class FusedLinearDPOLoss(_ReferencedPairs, DPO):
    """`autogen.losses.DPOLoss` of the log-probabilities that a head gives to the labels of chosen and rejected answers.

    The reference's are given, or computed from its hidden states and weight, without gradients.

    Source: see `autogen.losses.DPOLoss`.

    Shapes: `hidden` (2N, T, H), chosen answers first, and `weight` (V, H), of one dtype; `bias` (V,); `labels` (2N, T),
    torch.int64; `reference` (2N,), log-probabilities of the same kind, or `reference_hidden` (2N, T, K),
    `reference_weight` (V, K) and, if any, `reference_bias` (V,). The loss is (), or (N,) without reduction, in single
    precision for halves.

    Args:
        beta: more than 0.
        label_smoothing: how often a preference is taken to be wrong; in [0, 0.5].
        ignore_index: the label of tokens that do not count.
        average: whether log-probabilities are averaged over the tokens of an answer, and not summed.
        reduction: "none", "mean" over pairs, or "sum".

    Raises:
        ValueError: an argument out of its range, shapes or a dtype of labels that do not fit, or not one reference.
    """

    def __init__(
        self,
        beta: float = 0.1,
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
        average: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(beta, label_smoothing, reduction)
        self.ignore_index, self.average = int(ignore_index), bool(average)


@autogen_loss(reads="arguments")
class FusedLinearIPOLoss(_ReferencedPairs, IPO):
    """`autogen.losses.IPOLoss` of the log-probabilities that a head gives to the labels of chosen and rejected answers.

    The reference's are given, or computed from its hidden states and weight, without gradients.

    Source: see `autogen.losses.IPOLoss`.

    Shapes: as of `FusedLinearDPOLoss`.

    Args:
        beta: more than 0.
        ignore_index: the label of tokens that do not count.
        average: whether log-probabilities are averaged over the tokens of an answer, and not summed.
        reduction: "none", "mean" over pairs, or "sum".

    Raises:
        ValueError: an argument out of its range, shapes or a dtype of labels that do not fit, or not one reference.
    """

    def __init__(
        self, beta: float = 0.1, ignore_index: int = -100, average: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(beta, reduction)
        self.ignore_index, self.average = int(ignore_index), bool(average)


@autogen_loss(reads="arguments")
class FusedLinearSimPOLoss(_Pairs, SimPO):
    """`autogen.losses.SimPOLoss` of the average log-probabilities that a head gives to the labels of answers.

    Source: see `autogen.losses.SimPOLoss`.

    Shapes: `hidden` (2N, T, H), chosen answers first, and `weight` (V, H), of one dtype; `bias` (V,); `labels` (2N, T),
    torch.int64. The loss is (), or (N,) without reduction, in single precision for halves.

    Args:
        beta: more than 0.
        gamma: the margin that is asked for; at least 0.
        ignore_index: the label of tokens that do not count.
        reduction: "none", "mean" over pairs, or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes or a dtype of labels that do not fit.
    """

    average = True

    def __init__(
        self, beta: float = 2.0, gamma: float = 1.0, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(beta, gamma, reduction)
        self.ignore_index = int(ignore_index)


@autogen_loss(reads="arguments")
class FusedLinearORPOLoss(_Pairs, ORPO):
    """`autogen.losses.ORPOLoss` of the average log-probabilities that a head gives to the labels of answers.

    Source: see `autogen.losses.ORPOLoss`.

    Shapes: as of `FusedLinearSimPOLoss`. An answer needs a label that counts, as a log-probability of 0 has no odds.

    Args:
        beta: the weight of the preference; more than 0.
        ignore_index: the label of tokens that do not count.
        reduction: "none", "mean" over pairs, or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes or a dtype of labels that do not fit.
    """

    average = True

    def __init__(self, beta: float = 0.1, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(beta, reduction)
        self.ignore_index = int(ignore_index)


@autogen_loss(reads="arguments")
class FusedLinearKTOLoss(_Referenced, KTO):
    """`autogen.losses.KTOLoss` of the log-probabilities that a head gives to the labels of answers.

    The reference's are given, or computed from its hidden states and weight, without gradients.

    Source: see `autogen.losses.KTOLoss`.

    Shapes: `hidden` (N, T, H) and `weight` (V, H), of one dtype; `bias` (V,); `labels` (N, T), torch.int64; `target`,
    whether an answer is desirable (bool), (N,); `reference` (N,), or `reference_hidden` (N, T, K), `reference_weight`
    (V, K) and, if any, `reference_bias` (V,); `mismatched`, the log-ratios of policy and reference for answers to other
    prompts, of any shape. The loss is (), or (N,) without reduction, in single precision for halves.

    Args:
        beta: more than 0.
        desirable_weight: the weight of desirable answers; at least 0.
        undesirable_weight: the weight of the others; at least 0.
        ignore_index: the label of tokens that do not count.
        average: whether log-probabilities are averaged over the tokens of an answer, and not summed.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, shapes or a dtype of labels that do not fit, or not one reference.
    """

    def __init__(
        self,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        ignore_index: int = -100,
        average: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(beta, desirable_weight, undesirable_weight, reduction)
        self.ignore_index, self.average = int(ignore_index), bool(average)

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        target: Tensor,
        reference: Tensor | None = None,
        reference_hidden: Tensor | None = None,
        reference_weight: Tensor | None = None,
        mismatched: Tensor | None = None,
        bias: Tensor | None = None,
        reference_bias: Tensor | None = None,
    ) -> Tensor:
        """The loss of hidden states."""
        _check_answers(hidden, weight, labels, bias, are_pairs=False)
        if target.shape != hidden.shape[:1]:
            raise ValueError(f"target must have the shape {tuple(hidden.shape[:1])}; got {tuple(target.shape)}")
        check_reference(hidden, hidden.shape[:1], reference, reference_hidden, reference_weight, reference_bias)
        (others,) = self._reference(labels, reference, reference_hidden, reference_weight, reference_bias, 1)
        (own,) = self._log_probs(hidden, weight, labels, bias, 1)
        return self.compare(own, others, target, mismatched)
