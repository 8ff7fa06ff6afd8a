"""References for losses that compare answers, embeddings, distributions or orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, kl_divergence

from tests.interpret.references import Counted, each_of, rows_of

# Distillation


def _distributions(x: Tensor, dim: int) -> list[Tensor]:
    return [torch.exp(row) / torch.exp(row).sum() for row in rows_of(x, dim)]


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return kl_divergence(Categorical(probs=p), Categorical(probs=q))


def _pairwise(distance: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def loss(x: Tensor, t: Tensor, dim: int = -1, **options: float) -> Tensor:
        pairs = zip(_distributions(x, dim), _distributions(t, dim), strict=True)
        return torch.stack([distance(p, q, **options) for p, q in pairs]).view(x.select(dim, 0).shape)

    return loss


def jsd_of(p: Tensor, q: Tensor, beta: float = 0.5) -> Tensor:
    between = (1 - beta) * p + beta * q
    return (1 - beta) * _kl(p, between) + beta * _kl(q, between)


jsd = _pairwise(jsd_of)


@_pairwise
def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """The largest difference of probabilities that an event can have: of all classes that are likelier in one."""
    return torch.stack([a - b for a, b in zip(p, q, strict=True) if a > b]).sum()


def distillation(
    x: Tensor, teacher: Tensor, target: Tensor | None = None, temperature: float = 2.0, hard: float = 0.0
) -> Tensor:
    student, teacher = (torch.stack(_distributions(each / temperature, -1)) for each in (x, teacher))
    found = (1 - hard) * temperature**2 * _kl(teacher, student)
    return found if target is None else found - hard * Categorical(logits=x).log_prob(target)


# Contrastive


def _cosines(a: Tensor, b: Tensor) -> list[list[Tensor]]:
    return [[row @ other / (row @ row).sqrt() / (other @ other).sqrt() for other in b] for row in a]


def info_nce(query: Tensor, positive: Tensor, negatives: Tensor | None = None, temperature: float = 0.07) -> Tensor:
    cosines = _cosines(query, positive)
    found = []
    for k, row in enumerate(cosines):
        own = torch.exp(row[k] / temperature)
        others = row if negatives is None else [row[k], *_cosines(query[k : k + 1], negatives)[0]]
        found.append(-torch.log(own / sum(torch.exp(each / temperature) for each in others)))
    return torch.stack(found)


def sup_con(x: Tensor, target: Tensor, temperature: float = 0.1) -> Counted:
    if x.dim() == 3:
        x, target = torch.cat(list(x)), target.repeat_interleave(x.shape[1])
    cosines, found, counted = _cosines(x, x), [], []
    for i, row in enumerate(cosines):
        total = sum(torch.exp(each / temperature) for j, each in enumerate(row) if j != i)
        positives = [j for j in range(len(x)) if j != i and target[j] == target[i]]
        terms = [-torch.log(torch.exp(row[j] / temperature) / total) for j in positives]
        found.append(torch.stack(terms).mean() if terms else x.sum() * 0)
        counted.append(bool(terms))
    return torch.stack(found), torch.tensor(counted)


def circle(x: Tensor, target: Tensor, mask: Tensor | None = None, margin: float = 0.25, scale: float = 256.0) -> Tensor:
    """The sum over all pairs of a negative and a positive."""
    found = []
    for i, row in enumerate(x):
        kept = [j for j in range(len(row)) if mask is None or mask[i, j]]
        total = 1 + x.sum() * 0
        for n, p in itertools.product(kept, kept):
            if target[i, p] and not target[i, n]:
                a_n, a_p = max(0.0, row[n].item() + margin), max(0.0, 1 + margin - row[p].item())
                total = total + torch.exp(scale * (a_n * (row[n] - margin) - a_p * (row[p] - 1 + margin)))
        found.append(torch.log(total))
    return torch.stack(found)


# Preferences


def _log_ratio(*log_probs: Tensor) -> Tensor:
    """How much likelier the chosen answer is, by the policy over the reference."""
    chosen, rejected, reference_chosen, reference_rejected = map(torch.exp, log_probs)
    return torch.log((chosen / reference_chosen) / (rejected / reference_rejected))


def dpo(*log_probs: Tensor, beta: float = 0.1, label_smoothing: float = 0.0) -> Tensor:
    preferred = Bernoulli(logits=beta * _log_ratio(*log_probs))
    right, wrong = (-preferred.log_prob(torch.tensor(each, dtype=torch.float64)) for each in (1.0, 0.0))
    return (1 - label_smoothing) * right + label_smoothing * wrong


def ipo(*log_probs: Tensor, beta: float = 0.1) -> Tensor:
    h = _log_ratio(*log_probs)
    return h**2 - h / beta + 1 / (4 * beta**2)


def simpo(chosen: Tensor, rejected: Tensor, beta: float = 2.0, gamma: float = 1.0) -> Tensor:
    win = torch.exp(beta * chosen) / (torch.exp(beta * chosen) + torch.exp(beta * rejected + gamma))
    return -torch.log(win)


def orpo(chosen: Tensor, rejected: Tensor, beta: float = 0.1) -> Tensor:
    odds = [torch.exp(each) / (1 - torch.exp(each)) for each in (chosen, rejected)]
    return -chosen - beta * torch.log(odds[0] / (odds[0] + odds[1]))


def kto(
    x: Tensor,
    reference: Tensor,
    target: Tensor,
    mismatched: Tensor | None = None,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    z = 0.0 if mismatched is None else max(0.0, sum(mismatched.tolist()) / len(mismatched))
    found = []
    for reward, desirable in zip(x - reference, target.tolist(), strict=True):
        value = torch.special.expit(beta * (reward - z) if desirable else beta * (z - reward))
        weight = desirable_weight if desirable else undesirable_weight
        found.append(weight - weight * value)
    return torch.stack(found)


# Policy gradients


def _clipped(x: Tensor, old: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """By cases: which sign the advantage has, and on which side of the bounds the ratio is."""
    ratio = torch.exp(x) / torch.exp(old)
    if advantage > 0 and ratio > 1 + high:
        return -(1 + high) * advantage + 0 * x
    if advantage < 0 and ratio < 1 - low:
        return -(1 - low) * advantage + 0 * x
    return -ratio * advantage


def ppo_clip(
    x: Tensor,
    old: Tensor,
    advantage: Tensor,
    mask: Tensor | None = None,
    clip: float = 0.2,
    clip_high: float | None = None,
) -> Tensor | Counted:
    high = clip if clip_high is None else clip_high
    found = each_of(lambda *each: _clipped(*each, clip, high), x, old, advantage)
    return found if mask is None else (found * mask, mask)


def grpo(
    x: Tensor,
    old: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    reference: Tensor | None = None,
    num_items: Tensor | float | None = None,
    clip: float = 0.2,
    clip_high: float | None = None,
    beta: float = 0.0,
    loss_type: str = "grpo",
    max_length: int | None = None,
) -> Counted:
    """The losses of sequences, or tokens, and by what a mean divides."""
    high = clip if clip_high is None else clip_high
    old = x.detach() if old is None else old
    found = []
    for i, row in enumerate(x):
        tokens = [j for j in range(len(row)) if mask[i, j]]
        terms = {}
        for j in tokens:
            own, before = x[i, j], old[i, j]
            if loss_type == "gspo":
                own, before = x[i, tokens].mean(), old[i, tokens].mean()
            if loss_type == "cispo":
                weight = min(max(math.exp((own - before).item()), 1 - clip), 1 + high)
                terms[j] = -weight * advantage[i] * own
            else:
                terms[j] = _clipped(own, before, advantage[i], clip, high)
            if reference is not None:
                share = torch.exp(reference[i, j]) / torch.exp(x[i, j])
                terms[j] = terms[j] + beta * (share - torch.log(share) - 1)
        nothing = row.sum() * 0
        if loss_type in ("grpo", "gspo"):
            found.append(sum(terms.values(), nothing) / max(1, len(tokens)))
        else:
            found += [terms.get(j, nothing) for j in range(len(row))]
    if loss_type in ("grpo", "gspo"):
        return torch.stack(found), torch.as_tensor(len(x) if num_items is None else num_items)
    total = len(x) * (max_length or x.shape[1]) if loss_type == "dr_grpo" else max(1, int(mask.sum()))
    return torch.stack(found).view(x.shape), torch.as_tensor(total if num_items is None else num_items)


# Survival and audio


def cox(x: Tensor, time: Tensor, event: Tensor) -> Counted:
    found = []
    for i in range(len(x)):
        at_risk = [j for j in range(len(x)) if time[j] >= time[i]]
        found.append(-torch.log(torch.exp(x[i]) / torch.exp(x[at_risk]).sum()) if event[i] else x[i] * 0)
    return torch.stack(found), event


def si_sdr(x: Tensor, target: Tensor, zero_mean: bool = True, eps: float = 1e-8) -> Tensor:
    found = []
    for a, b in zip(rows_of(x, -1), rows_of(target, -1), strict=True):
        if zero_mean:
            a, b = a - a.mean(), b - b.mean()
        signal = torch.dot(a, b) / (torch.dot(b, b) + eps) * b
        noise = a - signal
        found.append(-10 * torch.log((signal @ signal + eps) / (noise @ noise + eps)) / math.log(10))
    return torch.stack(found)
