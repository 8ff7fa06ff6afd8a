"""Losses written in PyTorch that are tested in the interpreter, compiled for real targets, and measured on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def dice(dims: tuple[int, ...] = (0, 2, 3)) -> Callable[[Tensor, Tensor], Tensor]:
    """Of logits (N, C, H, W) and labels (N, H, W): nested reductions, the inner ones over `dims`."""

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        prob = logits.softmax(1)
        hot = F.one_hot(target, logits.shape[1]).movedim(-1, 1).to(prob.dtype)
        overlap, total = (prob * hot).sum(dims), (prob + hot).sum(dims)
        return 1 - ((2 * overlap + 1) / (total + 1)).mean()

    return loss


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Sums of what sums are subtracted from."""
    a, b = a - a.mean(), b - b.mean()
    return 1 - (a * b).sum() / (a.norm() * b.norm() + 1e-8)


def clip(image: Tensor, text: Tensor) -> Tensor:
    """Of embeddings (N, C): a product of torch's, then softmaxes over its rows and its columns."""
    logits = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).t() * 10
    own = torch.arange(image.shape[0], device=image.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2


def lovasz(margin: Tensor, sign: Tensor) -> Tensor:
    """Of margins (N,) and their signs: sorted and scanned by torch."""
    errors, order = (1 - margin * sign).sort(0, descending=True)
    truth = (sign[order] > 0).to(margin.dtype)
    overlap, union = truth.sum() - truth.cumsum(0), truth.sum() + (1 - truth).cumsum(0)
    jaccard = 1 - overlap / union
    jaccard[1:] = jaccard[1:] - jaccard[:-1]
    return torch.dot(errors.relu(), jaccard)


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    """Of points (B, N, 3) and (B, M, 3): how far each is from the nearest of the others."""
    distance = (a[:, :, None] - b[:, None]).square().sum(-1)
    return distance.amin(2).mean() + distance.amin(1).mean()


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """Of points (N, 3) and (M, 3): a kernel of all pairs, those of the same points too."""

    def alike(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-(a[:, None] - b).square().sum(-1)).mean()

    return alike(a, a) + alike(b, b) - 2 * alike(a, b)


def ranked(score: Tensor, order: Tensor) -> Tensor:
    """Of scores (B, N) and the order that they should have: a logistic loss of each pair."""
    is_above = (order[:, :, None] > order[:, None]).to(score.dtype)
    return (F.softplus(score[:, None] - score[:, :, None]) * is_above).sum() / is_above.sum()


def earth_movers(p: Tensor, q: Tensor) -> Tensor:
    """Of ratings (NIMA)."""
    distance = torch.abs(torch.cumsum(p, dim=1) - torch.cumsum(q, dim=1))
    return torch.pow(torch.mean(torch.pow(distance, 2), dim=1), 0.5).mean()


def radiance(density: Tensor, color: Tensor) -> Tensor:
    """Volume rendering along rays."""
    alpha = 1 - torch.exp(-F.relu(density) * 0.1)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
    weight = alpha * through
    return ((weight * color).sum(-1) - 0.3).square().mean() + 0.01 * (weight.sum(-1) - 1).square().mean()
