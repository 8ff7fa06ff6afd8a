"""Independent references for the losses beyond torch: loops over scalars, `torch.distributions`, textbook formulas.

Each takes the inputs in double precision and the options, and gives the losses without reduction; and which of them
count in a mean, if not all do. Gradients are autograd's. Here: what is compared with a truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, NegativeBinomial, Normal, StudentT, kl_divergence

Counted = tuple[Tensor, Tensor]


def each_of(formula: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """A formula of scalars, place by place."""
    flat = zip(*(tensor.flatten().unbind() for tensor in tensors), strict=True)
    return torch.stack([formula(*numbers) for numbers in flat]).view(tensors[0].shape)


def rows_of(tensor: Tensor, dim: int) -> Tensor:
    """(number of rows, length of the dimension)."""
    return tensor.movedim(dim, -1).reshape(-1, tensor.shape[dim])


# Classification


def sigmoid_focal(x: Tensor, t: Tensor, alpha: float | None = 0.25, gamma: float = 2.0) -> Tensor:
    def formula(x: Tensor, t: Tensor) -> Tensor:
        p = 1 / (1 + torch.exp(-x))
        entropy = -t * torch.log(p) - (1 - t) * torch.log(1 - p)
        p_t = p * t + (1 - p) * (1 - t)
        weight = 1.0 if alpha is None else alpha * t + (1 - alpha) * (1 - t)
        return weight * (1 - p_t) ** gamma * entropy

    return each_of(formula, x, t)


def _labelled(x: Tensor, target: Tensor, ignore_index: int, formula: Callable[[Tensor, int], Tensor]) -> Counted:
    """A formula of the label's probability and the label; labels that are ignored give 0."""
    found = []
    for row, label in zip(rows_of(x, 1), target.flatten().tolist(), strict=True):
        weights = torch.exp(row)
        found.append(row.sum() * 0 if label == ignore_index else formula(weights[label] / weights.sum(), label))
    return torch.stack(found).view(target.shape), target != ignore_index


def focal(
    x: Tensor, target: Tensor, alpha: Sequence[float] | None = None, gamma: float = 2.0, ignore_index: int = -100
) -> Counted:
    def formula(p: Tensor, label: int) -> Tensor:
        return -((1 - p) ** gamma) * torch.log(p) * (1 if alpha is None else alpha[label])

    return _labelled(x, target, ignore_index, formula)


def poly(x: Tensor, target: Tensor, epsilon: float = 1.0, ignore_index: int = -100) -> Counted:
    return _labelled(x, target, ignore_index, lambda p, _: -torch.log(p) + epsilon * (1 - p))


def vocab_parallel(
    x: Tensor, target: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> Counted:
    counted = target != ignore_index
    log_normalizer = torch.log(torch.exp(x).sum(-1))
    logs = x - log_normalizer.unsqueeze(-1)
    one_hot = (torch.where(counted, target, 0).unsqueeze(-1) == torch.arange(x.shape[-1])).double()
    weight = (1 - label_smoothing) * one_hot + label_smoothing / x.shape[-1]
    return torch.where(counted, -(weight * logs).sum(-1) + z_loss * log_normalizer**2, 0), counted


def asymmetric(x: Tensor, t: Tensor, gamma_neg: float = 4.0, gamma_pos: float = 1.0, clip: float = 0.05) -> Tensor:
    def formula(x: Tensor, t: Tensor) -> Tensor:
        p = torch.special.expit(x)
        if t == 1:
            return -((1 - p) ** gamma_pos) * torch.log(p)
        return x * 0 if p < clip else -((p - clip) ** gamma_neg) * torch.log(1 - p + clip)

    return each_of(formula, x, t)


def arcface(cosines: Tensor, target: Tensor, margin: float = 0.5, scale: float = 64.0) -> Tensor:
    found = []
    for row, label in zip(cosines, target.tolist(), strict=True):
        angle = torch.acos(row[label])
        own = torch.cos(angle + margin) if angle + margin < math.pi else row[label] - margin * math.sin(margin)
        others = torch.cat([row[:label], row[label + 1 :]])
        found.append(torch.log(1 + torch.exp(scale * (others - own)).sum()))
    return torch.stack(found)


# Segmentation


def _overlaps(x: Tensor, t: Tensor, activation: str, batch: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Per sample and class the sums of p * t, p and t."""
    if activation == "softmax":
        p = Categorical(logits=x.movedim(1, -1)).probs.movedim(-1, 1)
        t = torch.eye(x.shape[1], dtype=x.dtype)[t].movedim(-1, 1)
    else:
        p = torch.special.expit(x) if activation == "sigmoid" else x
    if batch:
        p, t = p.transpose(0, 1).flatten(1), t.transpose(0, 1).flatten(1)
    else:
        p, t = p.flatten(2).flatten(0, 1), t.flatten(2).flatten(0, 1)
    return [(p_row @ t_row, p_row.sum(), t_row.sum()) for p_row, t_row in zip(p, t, strict=True)]


def dice(x: Tensor, t: Tensor, activation: str = "sigmoid", smooth: float = 1.0, batch: bool = False) -> Tensor:
    found = [1 - (2 * both + smooth) / (p + t + smooth) for both, p, t in _overlaps(x, t, activation, batch)]
    return torch.stack(found).view(x.shape[batch:2])


def tversky(
    x: Tensor,
    t: Tensor,
    alpha: float = 0.3,
    beta: float = 0.7,
    activation: str = "sigmoid",
    smooth: float = 1.0,
    batch: bool = False,
) -> Tensor:
    found = []
    for both, p, t_ in _overlaps(x, t, activation, batch):
        found.append(1 - (both + smooth) / (both + alpha * (p - both) + beta * (t_ - both) + smooth))
    return torch.stack(found).view(x.shape[batch:2])


def focal_tversky(x: Tensor, t: Tensor, gamma: float = 4 / 3, **options: Any) -> Tensor:
    return torch.exp(torch.log(tversky(x, t, **options)) / gamma)


# Boxes


def _box_loss(penalty: Callable[..., Any]) -> Callable[..., Tensor]:
    """`1 - IoU` plus a penalty, of pairs of boxes by their corners."""

    def loss(first: Tensor, second: Tensor, eps: float = 1e-7) -> Tensor:
        found = []
        for a, b in zip(first.reshape(-1, 4), second.reshape(-1, 4), strict=True):
            inside = [min(a[2 + k], b[2 + k]) - max(a[k], b[k]) for k in (0, 1)]
            both = inside[0] * inside[1] if inside[0] > 0 and inside[1] > 0 else a.sum() * 0
            union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
            around = [max(a[2 + k], b[2 + k]) - min(a[k], b[k]) for k in (0, 1)]
            iou = both / (union + eps)
            found.append(1 - iou + penalty(a, b, iou, union, around, eps))
        return torch.stack(found).view(first.shape[:-1])

    return loss


def _empty(a: Tensor, b: Tensor, iou: Tensor, union: Tensor, around: Sequence[Tensor], eps: float) -> Tensor:
    return 1 - (union + eps) / (around[0] * around[1] + eps)


def _apart(a: Tensor, b: Tensor, iou: Tensor, union: Tensor, around: Sequence[Tensor], eps: float) -> Tensor:
    centres = [(box[:2] + box[2:]) / 2 for box in (a, b)]
    return ((centres[0] - centres[1]) ** 2).sum() / (around[0] ** 2 + around[1] ** 2 + eps)


def _apart_and_askew(a: Tensor, b: Tensor, iou: Tensor, union: Tensor, around: Sequence[Tensor], eps: float) -> Tensor:
    angles = [torch.atan2(box[2] - box[0], box[3] - box[1] + eps) for box in (a, b)]
    v = (2 / math.pi * (angles[0] - angles[1])) ** 2
    return _apart(a, b, iou, union, around, eps) + v * (v / (1 - iou + v + eps)).item()


iou = _box_loss(lambda *_: 0)
giou = _box_loss(_empty)
diou = _box_loss(_apart)
ciou = _box_loss(_apart_and_askew)


# Regression


def log_cosh(x: Tensor, t: Tensor) -> Tensor:
    return torch.log(torch.cosh(x - t))


def charbonnier(x: Tensor, t: Tensor, eps: float = 1e-3) -> Tensor:
    return torch.hypot(x - t, torch.full_like(x, eps))


def quantile(x: Tensor, t: Tensor, quantiles: float | Sequence[float] = 0.5) -> Tensor:
    if isinstance(quantiles, float):
        return each_of(lambda x, t: quantiles * (t - x) if t > x else (1 - quantiles) * (x - t), x, t)
    return torch.stack([quantile(x[..., k], t, q) for k, q in enumerate(quantiles)], -1)


def wing(x: Tensor, t: Tensor, omega: float = 10.0, epsilon: float = 2.0) -> Tensor:
    def formula(x: Tensor, t: Tensor) -> Tensor:
        d = abs(x - t)
        bend = omega * math.log(1 + omega / epsilon)
        return omega * torch.log(1 + d / epsilon) if d < omega else d - omega + bend

    return each_of(formula, x, t)


# Likelihoods


def negative_binomial(mean: Tensor, target: Tensor, dispersion: Tensor, full: bool = False) -> Tensor:
    nll = -NegativeBinomial(dispersion, logits=torch.log(mean) - torch.log(dispersion)).log_prob(target)
    return nll if full else nll - torch.lgamma(target + 1)


def student_t(x: Tensor, target: Tensor, scale: Tensor, df: Tensor) -> Tensor:
    return -StudentT(df, x, scale).log_prob(target)


def evidential(
    x: Tensor, target: Tensor, evidence: Tensor, alpha: Tensor, beta: Tensor, coefficient: float = 0.01
) -> Tensor:
    """The predictive distribution is Student's."""
    scale = (beta * (1 + evidence) / (evidence * alpha)).sqrt()
    nll = -StudentT(2 * alpha, x, scale).log_prob(target)
    return nll + coefficient * (x - target).abs() * (2 * evidence + alpha)


def vae(
    x: Tensor, target: Tensor, mean: Tensor, log_variance: Tensor, likelihood: str = "normal", beta: float = 1.0
) -> Tensor:
    if likelihood == "normal":
        nll = -Normal(x, 1.0).log_prob(target) - math.log(2 * math.pi) / 2
    else:
        nll = -target * torch.log(torch.special.expit(x)) - (1 - target) * torch.log(torch.special.expit(-x))
    prior = Normal(torch.zeros_like(mean), torch.ones_like(mean))
    kl = kl_divergence(Normal(mean, torch.exp(log_variance / 2)), prior)
    return torch.stack([a.sum() + beta * b.sum() for a, b in zip(nll, kl, strict=True)])
