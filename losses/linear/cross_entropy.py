"""Cross entropy of a language model's head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in
from autogen.losses.linear._head import HeadOutputs, check_head, check_rows, chosen_outputs, entropy_of, logits_of

__all__ = ["FusedLinearCrossEntropyLoss"]


@autogen_loss(reads="arguments")
class FusedLinearCrossEntropyLoss(ReducedLoss):
    """`cross_entropy(x, labels) + z_loss * logsumexp(x)^2` of the logits `x = hidden @ weight.t() + bias`.

    With a `softcap` c, the logits are `c * tanh(x / c)`. The weight is an argument, that of the model's head;
    `torch.nn.LinearCrossEntropyLoss` has one of its own. Labels are those of the same position: for a causal model they
    are shifted already.

    The mean is the sum over the number of labels that count, over the sum of their token weights, or over `num_items`
    (tokens of all micro-batches that one step accumulates, or of all processes); 0 if none counts.

    Source: `torch.nn.functional.cross_entropy`; z-loss of Chowdhery et al. (2022), "PaLM: scaling language modeling
    with pathways", arXiv:2204.02311; caps of Gemma Team (2024), "Gemma 2: improving open language models at a practical
    size", arXiv:2408.00118.

    Shapes: `hidden` (..., H) and `weight` (V, H), of one dtype; `bias` (V,); `labels` (...), torch.int64;
    `token_weight` (...), floating point; `num_items` a number or (). The loss is (), or (...) without reduction, in
    single precision for halves. With `outputs`, a `HeadOutputs`: its `lse`, `entropy` (nats) and `token_loss` are
    (...), `accuracy` is (); they have no gradient.

    Args:
        ignore_index: the label of tokens that do not count.
        label_smoothing: the share of a label that all classes are given; in [0, 1].
        z_loss: the weight of the squared logarithm of the softmax's denominator; at least 0.
        softcap: what bounds the size of logits; more than 0, and without it there is no bound.
        reduction: "none", "mean" or "sum".
        outputs: what to return beside the loss, of "lse", "entropy", "accuracy" and "token_loss".

    Raises:
        ValueError: an argument out of its range, shapes or a dtype of labels that do not fit, or `num_items` without a
            mean.
    """

    def __init__(
        self,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        reduction: str = "mean",
        outputs: str | Sequence[str] = (),
    ) -> None:
        super().__init__(reduction)
        self.ignore_index = int(ignore_index)
        self.label_smoothing = number_in("label_smoothing", label_smoothing, 0, 1)
        self.z_loss = number_in("z_loss", z_loss, 0)
        self.softcap = None if softcap is None else number_in("softcap", softcap, 0, strict=True)
        self.outputs = chosen_outputs(outputs, ("lse", "entropy", "accuracy", "token_loss"))

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        token_weight: Tensor | None = None,
        num_items: Tensor | float | None = None,
    ) -> Tensor | HeadOutputs:
        """The loss of hidden states, and what else is asked for."""
        check_head(hidden, weight, bias)
        check_rows(hidden, labels=labels, token_weight=token_weight)
        self.only_for_means(num_items)
        counted = labels != self.ignore_index
        if token_weight is not None and num_items is None:
            weights = torch.where(counted, token_weight, 0).sum()
            num_items = torch.where(weights == 0, 1, weights)
        logits = logits_of(hidden, weight, bias)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        entropies = F.cross_entropy(
            logits,
            labels.flatten(),
            ignore_index=self.ignore_index,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        loss = token_loss = entropies.view(labels.shape)
        if self.z_loss:
            loss = token_loss = loss + self.z_loss * logits.logsumexp(-1).square().view(labels.shape)
        if token_weight is not None:
            loss = loss * token_weight
        loss = self.reduce(loss, counted, num_items)
        if not self.outputs:
            return loss
        logits = logits.detach()
        hits = (logits.argmax(-1).view(labels.shape) == labels) & counted
        found = {
            "lse": logits.logsumexp(-1).view(labels.shape),
            "entropy": entropy_of(logits).view(labels.shape),
            "accuracy": hits.sum() / counted.sum().clamp(min=1),
            "token_loss": torch.where(counted, token_loss.detach(), 0),
        }
        return HeadOutputs(loss, **{name: found[name] for name in self.outputs})
