"""Losses of scores, survival, radiance and rewards, as people write them: their scans are in one launch each way.

One that looks for the largest of a running sum stores it first, so that backward finds where it was.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.losses import earth_movers, radiance
from tests.interpret.agreement import agree, draw, labels


def ranked_probability(logits: Tensor, label: Tensor) -> Tensor:
    classes = logits.shape[1]
    difference = logits.softmax(1).cumsum(1) - F.one_hot(label, classes).cumsum(1)
    return (difference**2)[:, :-1].sum(1).mean() / (classes - 1)


def continuous_ranked_probability(logits: Tensor, value: Tensor) -> Tensor:
    bins = torch.linspace(0, 1, logits.shape[1])
    return ((logits.softmax(1).cumsum(1) - (bins[None] >= value[:, None]).float()) ** 2).mean()


def wasserstein(a: Tensor, b: Tensor) -> Tensor:
    return (a.softmax(-1).cumsum(-1) - b.softmax(-1).cumsum(-1)).abs().sum(-1).mean()


def ordinal(x: Tensor, label: Tensor) -> Tensor:
    """Thresholds that are in order, as each is a step above the one before."""
    thresholds = torch.cat([x[:, :1], F.softplus(x[:, 1:])], 1).cumsum(1)
    is_above = (torch.arange(x.shape[1])[None] < label[:, None]).float()
    return F.binary_cross_entropy_with_logits(-thresholds, is_above)


def hazards(logits: Tensor, time: Tensor) -> Tensor:
    """Survival in discrete time."""
    hazard = logits.sigmoid()
    survived = torch.cumprod(1 - hazard, dim=1).gather(1, time[:, None])
    at_event = hazard.gather(1, time[:, None])
    return -(survived.clamp(min=1e-7).log() + (at_event / (1 - at_event)).log()).mean()


def incidence_ranking(logits: Tensor, time: Tensor) -> Tensor:
    incidence = logits.softmax(1).cumsum(1)
    return torch.exp((incidence[:, :1] - incidence.gather(1, time[:, None])) / 0.1).mean()


def partial_likelihood(risk: Tensor, event: Tensor) -> Tensor:
    """Cox's, of subjects in the order of their times."""
    return -((risk - risk.logcumsumexp(0)) * (event > 0.5)).sum() / (event > 0.5).sum()


def list_likelihood(score: Tensor, _: Tensor) -> Tensor:
    """ListMLE, of documents in the order of their relevance."""
    shifted = score - score.max(dim=1, keepdim=True)[0]
    rest = torch.cumsum(shifted.exp().flip(dims=[1]), dim=1).flip(dims=[1])
    return (torch.log(rest + 1e-10) - shifted).sum(dim=1).mean()


def distortion(logits: Tensor, step: Tensor) -> Tensor:
    """Of mip-NeRF 360, in linear time."""
    weight, step = logits.softmax(-1), step.detach()
    place = step.cumsum(-1)
    weighted = weight * place
    before, weighted_before = weight.cumsum(-1) - weight, weighted.cumsum(-1) - weighted
    between = (weight * (place * before - weighted_before)).sum(-1)
    return (2 * between + (weight.square() * step).sum(-1) / 3).mean()


def noisy_or(logits: Tensor, label: Tensor) -> Tensor:
    """A bag is positive if one of its instances is."""
    bag = 1 - torch.prod(1 - logits.sigmoid(), dim=1)
    return F.binary_cross_entropy(bag.clamp(1e-6, 1 - 1e-6), (label > 9).to(bag.dtype))


def discounted(reward: Tensor, value: Tensor) -> Tensor:
    discount = 0.99 ** torch.arange(reward.shape[1])
    returns = (reward * discount).flip(1).cumsum(1).flip(1) / discount
    return (returns - value).square().mean()


def furthest_astray(x: Tensor, y: Tensor) -> Tensor:
    return torch.cumsum(x - y, 1).abs().amax(1).mean()


LOSSES: dict[Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]] = {
    earth_movers: (draw("unit", 16, 10), draw("unit", 16, 10, seed=1)),
    ranked_probability: (draw("real", 16, 11), labels(11, 16)),
    continuous_ranked_probability: (draw("real", 16, 40), draw("unit", 16, seed=2).detach()),
    wasserstein: (draw("real", 16, 50), draw("real", 16, 50, seed=1)),
    ordinal: (draw("real", 16, 12), labels(12, 16)),
    hazards: (draw("real", 16, 20), labels(20, 16)),
    incidence_ranking: (draw("real", 16, 20), labels(20, 16)),
    partial_likelihood: (draw("real", 40), draw("unit", 40, seed=1).detach()),
    list_likelihood: (draw("real", 16, 30), draw("real", 16, 30, seed=1).detach()),
    radiance: (draw("real", 16, 64), draw("unit", 16, 64, seed=1)),
    distortion: (draw("real", 16, 64), draw("unit", 16, 64, seed=1)),
    noisy_or: (draw("real", 16, 30), labels(20, 16)),
    discounted: (draw("unit", 8, 50), draw("unit", 8, 50, seed=1)),
    furthest_astray: (draw("unit", 8, 50), draw("unit", 8, 50, seed=1)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_as_torch(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    agree(loss, *LOSSES[loss], launches=(2, 1) if loss is furthest_astray else (1, 1))
