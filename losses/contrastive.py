"""Contrastive losses, which pull embeddings of one kind together and push others apart."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses import handwritten
from autogen.losses._base import ReducedLoss, lowest, number_in, same_shape

__all__ = ["CircleLoss", "InfoNCELoss", "SupConLoss"]


@autogen_loss(reads="arguments", handwritten=handwritten.make_info_nce)
class InfoNCELoss(ReducedLoss):
    """Cross entropy of the cosines over `temperature`, in which each query is to find its positive.

    Among all positives of the batch; or, if `negatives` are given, among its own and these. Where that is faster, and
    of more than 2^28 pairs of up to 256 dimensions, no matrix of all pairs is kept.

    Source: van den Oord et al. (2018), "Representation learning with contrastive predictive coding", arXiv:1807.03748.

    Shapes: `query` and `positive` (N, D), `negatives` (M, D), floating point; they need not be of length 1. The loss is
    (), or (N,) without reduction.

    Args:
        temperature: what the cosines are divided by; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(self, temperature: float = 0.07, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.temperature = number_in("temperature", temperature, 0, strict=True)

    def forward(self, query: Tensor, positive: Tensor, negatives: Tensor | None = None) -> Tensor:
        """The loss of embeddings."""
        same_shape(query=query, positive=positive)
        if query.dim() != 2:
            raise ValueError(f"query must have the shape (N, D); got {tuple(query.shape)}")
        query, positive = F.normalize(query), F.normalize(positive)
        own = (query * positive).sum(1) / self.temperature
        if negatives is None:
            logits = query @ positive.t() / self.temperature
            return self.reduce(logits.logsumexp(1) - own)
        if negatives.dim() != 2 or negatives.shape[1] != query.shape[1]:
            raise ValueError(f"negatives must have the shape (M, {query.shape[1]}); got {tuple(negatives.shape)}")
        others = (query @ F.normalize(negatives).t() / self.temperature).logsumexp(1)
        return self.reduce(-F.logsigmoid(own - others))


@autogen_loss(reads="arguments", handwritten=handwritten.make_sup_con)
class SupConLoss(ReducedLoss):
    """Of each embedding, the mean over those of its label, the positives, of `-log(softmax(cosines / temperature))`.

    The softmax is over all embeddings but its own. One without a positive counts neither in the mean nor in the sum.
    Where that is faster, and of more than 2^28 pairs of up to 256 dimensions, no matrix of all pairs is kept.

    Source: Khosla et al. (2020), "Supervised contrastive learning", arXiv:2004.11362, equation 2.

    Shapes: `input` (N, D), or (N, V, D) with V views of each sample, floating point; they need not be of length 1;
    `target` (labels) (N,). The loss is (), or (N * V,) without reduction.

    Args:
        temperature: what the cosines are divided by; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(self, temperature: float = 0.1, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.temperature = number_in("temperature", temperature, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of embeddings."""
        if input.dim() not in (2, 3) or target.shape != input.shape[:1]:
            shapes = f"{tuple(input.shape)} and {tuple(target.shape)}"
            raise ValueError(f"input and target must have the shapes (N, D) or (N, V, D), and (N,); got {shapes}")
        if input.dim() == 3:
            target = target.unsqueeze(1).expand(input.shape[:2]).flatten()
            input = input.flatten(0, 1)
        embedding = F.normalize(input)
        place = torch.arange(input.shape[0], device=input.device)
        is_other = place.unsqueeze(1) != place.unsqueeze(0)
        is_positive = (target.unsqueeze(1) == target.unsqueeze(0)) & is_other
        logits = embedding @ embedding.t() / self.temperature
        log_prob = torch.where(is_other, logits, lowest(logits)).log_softmax(1)
        positives = is_positive.sum(1)
        loss = -torch.where(is_positive, log_prob, 0).sum(1) / positives.clamp(min=1)
        return self.reduce(loss, positives > 0)


@autogen_loss(reads="arguments")
class CircleLoss(ReducedLoss):
    """`log(1 + sum(exp(scale * a_n * (s_n - m))) * sum(exp(-scale * a_p * (s_p - 1 + m))))`, per anchor.

    Over the similarities s_n of its negative and s_p of its positive pairs, with the margin m and the weights
    `a_n = max(0, s_n + m)` and `a_p = max(0, 1 + m - s_p)`, which have no gradient. An anchor without positives, or
    without negatives, gives 0.

    Source: Sun et al. (2020), "Circle loss: a unified perspective of pair similarity optimization", arXiv:2002.10857.

    Shapes: `input` (similarities) (..., M), floating point; `target`, true for positive pairs, and `mask`, true for
    pairs that count, likewise, bool. The loss is (), or (...) without reduction.

    Args:
        margin: m; at least 0.
        scale: more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, margin: float = 0.25, scale: float = 256.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = number_in("margin", margin, 0)
        self.scale = number_in("scale", scale, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of similarities."""
        same_shape(input=input, target=target, **({} if mask is None else {"mask": mask}))
        target = target.bool()
        is_positive = target if mask is None else target & mask.bool()
        is_negative = ~target if mask is None else ~target & mask.bool()
        weight_p = (1 + self.margin - input).detach().clamp(min=0)
        weight_n = (input + self.margin).detach().clamp(min=0)
        logit_p = -self.scale * weight_p * (input - 1 + self.margin)
        logit_n = self.scale * weight_n * (input - self.margin)
        total_p = torch.where(is_positive, logit_p, lowest(input)).logsumexp(-1)
        total_n = torch.where(is_negative, logit_n, lowest(input)).logsumexp(-1)
        return self.reduce(-F.logsigmoid(-(total_p + total_n)))
