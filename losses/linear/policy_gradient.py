"""GRPO of a language model's head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import number_in
from autogen.losses.linear._head import (
    HeadOutputs,
    check_head,
    check_reference,
    check_rows,
    chosen_outputs,
    entropy_of,
    log_probs_of,
    logits_of,
)
from autogen.losses.policy_gradient import GRPO

__all__ = ["FusedLinearGRPOLoss"]


@autogen_loss(reads="arguments")
class FusedLinearGRPOLoss(GRPO):
    """`autogen.losses.GRPOLoss` of the log-probabilities that a head gives to tokens.

    They are those of `softmax((hidden @ weight.t() + bias) / temperature)`. The reference's are given, or computed from
    its hidden states and weight, without gradients.

    Source: see `autogen.losses.GRPOLoss`.

    Shapes: `hidden` (N, T, H) and `weight` (V, H), of one dtype; `bias` (V,); `labels`, the tokens, (N, T),
    torch.int64; `advantage` (N,); `mask`, true for tokens that count, (N, T), by default all; `old`, the
    log-probabilities when the tokens were drawn, (N, T), by default those of now; `reference` (N, T), or
    `reference_hidden` (N, T, K), `reference_weight` (V, K) and, if any, `reference_bias` (V,); `num_items` as in
    `autogen.losses.GRPOLoss`. The loss is (), or (N,) or (N, T) without reduction, in single precision for halves. With
    `outputs`, a `HeadOutputs`: its `log_prob` and `entropy` (nats) are (N, T), 0 for tokens that do not count, and have
    no gradient.

    Args:
        clip: how much less likely a token may become with gradient; in [0, 1].
        clip_high: how much more likely; at least 0, by default `clip`.
        beta: the weight of the distance to the reference; at least 0, and with 0 there is none.
        temperature: more than 0.
        ignore_index: the label of tokens that do not count.
        reduction: "none", "mean", or "sum" over sequences or tokens.
        loss_type: "grpo", "bnpo", "dr_grpo", "dapo", "cispo" or "gspo".
        max_length: of "dr_grpo", by which a sequence is divided; at least 1, by default T.
        outputs: what to return beside the loss, of "log_prob" and "entropy".

    Raises:
        ValueError: an argument out of its range, shapes or a dtype of labels that do not fit, a reference without a
            weight, or the reverse, or `num_items` without a mean.
    """

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        beta: float = 0.0,
        temperature: float = 1.0,
        ignore_index: int = -100,
        reduction: str = "mean",
        loss_type: str = "grpo",
        max_length: int | None = None,
        outputs: str | Sequence[str] = (),
    ) -> None:
        super().__init__(clip, clip_high, beta, reduction, loss_type, max_length)
        self.temperature = number_in("temperature", temperature, 0, strict=True)
        self.ignore_index = int(ignore_index)
        self.outputs = chosen_outputs(outputs, ("log_prob", "entropy"))

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        advantage: Tensor,
        mask: Tensor | None = None,
        old: Tensor | None = None,
        reference: Tensor | None = None,
        reference_hidden: Tensor | None = None,
        reference_weight: Tensor | None = None,
        bias: Tensor | None = None,
        reference_bias: Tensor | None = None,
        num_items: Tensor | float | None = None,
    ) -> Tensor | HeadOutputs:
        """The loss of hidden states, and what else is asked for."""
        check_head(hidden, weight, bias)
        check_rows(hidden, labels=labels)
        self.check_tokens({"labels": labels, "mask": mask, "old": old}, advantage, num_items)
        has_reference = reference is not None or reference_hidden is not None
        self.check_reference(has_reference)
        if has_reference:
            check_reference(hidden, labels.shape, reference, reference_hidden, reference_weight, reference_bias)
        counted = labels != self.ignore_index
        if mask is not None:
            counted = counted & mask.bool()
        logits = logits_of(hidden, weight, bias) / self.temperature
        log_prob = log_probs_of(logits, labels, self.ignore_index).view(labels.shape)
        if reference_hidden is not None and reference_weight is not None:
            with torch.no_grad():
                others = logits_of(reference_hidden, reference_weight, reference_bias) / self.temperature
                reference = log_probs_of(others, labels, self.ignore_index).view(labels.shape)
        loss = self.of_tokens(log_prob, old, advantage, counted, reference, num_items)
        if not self.outputs:
            return loss
        found = {"log_prob": log_prob.detach(), "entropy": entropy_of(logits.detach()).view(labels.shape)}
        return HeadOutputs(loss, **{name: torch.where(counted, found[name], 0) for name in self.outputs})
