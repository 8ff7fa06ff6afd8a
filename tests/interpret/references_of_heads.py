"""References for the losses of a head, from hidden states and a weight, token by token.

What is given beside the losses is what a mean divides by.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Categorical

from tests.interpret import references_of_pairs as pairs
from tests.interpret.references import Counted


def _distributions(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float = 1.0) -> list[Categorical]:
    """Of each token, from sums of products."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    rows = [torch.stack([(h * w).sum() for w in weight]) + (0 if bias is None else bias) for h in flat]
    return [Categorical(logits=row / temperature) for row in rows]


def _total(counted: Tensor, num_items: Tensor | float | None) -> Tensor:
    return counted.sum().clamp(min=1).double() if num_items is None else torch.as_tensor(num_items).double()


def _view(found: list[Tensor], like: Tensor, source: Tensor) -> Tensor:
    return torch.stack(found).view(like.shape) if found else source.sum() * torch.zeros(like.shape)


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    token_weight: Tensor | None = None,
    num_items: Tensor | float | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Counted:
    flat, found = hidden.reshape(-1, hidden.shape[-1]), []
    for h, label in zip(flat, labels.flatten().tolist(), strict=True):
        x = torch.stack([(h * w).sum() for w in weight]) + (0 if bias is None else bias)
        if softcap is not None:
            x = softcap * (torch.exp(2 * x / softcap) - 1) / (torch.exp(2 * x / softcap) + 1)
        total = torch.exp(x).sum()
        surprise = -torch.log(torch.exp(x) / total)
        own = 0 if label == ignore_index else surprise[label]
        loss = (1 - label_smoothing) * own + label_smoothing * surprise.mean() + z_loss * torch.log(total) ** 2
        found.append(loss * (label != ignore_index))
    losses, counted = _view(found, labels, hidden), labels != ignore_index
    if token_weight is None:
        return losses, _total(counted, num_items)
    weighted = [w * loss for w, loss in zip(token_weight.flatten(), losses.flatten(), strict=True)]
    total = (token_weight * counted).sum() if num_items is None else _total(counted, num_items)
    return _view(weighted, labels, hidden), total


def distillation(
    hidden: Tensor,
    weight: Tensor,
    teacher_hidden: Tensor,
    teacher_weight: Tensor,
    labels: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    num_items: Tensor | float | None = None,
    divergence: str = "forward_kl",
    beta: float = 0.5,
    temperature: float = 1.0,
    hard: float = 0.0,
    ignore_index: int = -100,
) -> Counted:
    counted = torch.ones(hidden.shape[:-1], dtype=torch.bool) if mask is None else mask
    if labels is not None:
        counted = counted & (labels != ignore_index)
    sharp = _distributions(hidden, weight, bias)
    students = _distributions(hidden, weight, bias, temperature)
    teachers = _distributions(teacher_hidden, teacher_weight, teacher_bias, temperature)
    found = []
    for k, (student, teacher) in enumerate(zip(students, teachers, strict=True)):
        p, q = student.probs, teacher.probs
        if divergence == "jsd":
            distance = pairs.jsd_of(p, q, beta)
        else:
            distance = (q * (torch.log(q) - torch.log(p)) if divergence == "forward_kl" else p * torch.log(p / q)).sum()
        loss = (1 - hard) * temperature**2 * distance
        if hard and labels is not None and counted.flatten()[k]:
            loss = loss - hard * sharp[k].log_prob(labels.flatten()[k])
        found.append(loss * counted.flatten()[k])
    return _view(found, counted, hidden), _total(counted, num_items)


def _answers(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, ignore_index: int, average: bool
) -> Tensor:
    """The log-probability of each answer."""
    found = []
    for states, own in zip(hidden, labels, strict=True):
        given = _distributions(states, weight, bias)
        terms = [p.log_prob(label) for p, label in zip(given, own, strict=True) if label != ignore_index]
        found.append(sum(terms, states.sum() * 0) / (len(terms) or 1 if average else 1))
    return _view(found, hidden[:, 0, 0], hidden)


def _referenced(formula: Callable[..., Tensor]) -> Callable[..., Counted]:
    def loss(
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        reference: Tensor | None = None,
        reference_hidden: Tensor | None = None,
        reference_weight: Tensor | None = None,
        bias: Tensor | None = None,
        reference_bias: Tensor | None = None,
        ignore_index: int = -100,
        average: bool = False,
        **options: float,
    ) -> Counted:
        own = _answers(hidden, weight, labels, bias, ignore_index, average)
        if reference_hidden is not None and reference_weight is not None:
            reference = _answers(reference_hidden, reference_weight, labels, reference_bias, ignore_index, average)
            reference = reference.detach()
        assert reference is not None
        n = len(own) // 2
        return formula(own[:n], own[n:], reference[:n], reference[n:], **options), torch.tensor(n)

    return loss


def _free(formula: Callable[..., Tensor]) -> Callable[..., Counted]:
    def loss(
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        bias: Tensor | None = None,
        ignore_index: int = -100,
        **options: float,
    ) -> Counted:
        own = _answers(hidden, weight, labels, bias, ignore_index, average=True)
        n = len(own) // 2
        return formula(own[:n], own[n:], **options), torch.tensor(n)

    return loss


dpo, ipo = _referenced(pairs.dpo), _referenced(pairs.ipo)
simpo, orpo = _free(pairs.simpo), _free(pairs.orpo)


def kto(
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
    ignore_index: int = -100,
    average: bool = False,
    **options: float,
) -> Counted:
    own = _answers(hidden, weight, labels, bias, ignore_index, average)
    if reference_hidden is not None and reference_weight is not None:
        reference = _answers(reference_hidden, reference_weight, labels, reference_bias, ignore_index, average).detach()
    assert reference is not None
    return pairs.kto(own, reference, target, mismatched, **options), torch.tensor(len(own))


def grpo(
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
    temperature: float = 1.0,
    ignore_index: int = -100,
    **options: float,
) -> Counted:
    counted = (labels != ignore_index) & (True if mask is None else mask)

    def log_probs(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        given = _distributions(hidden, weight, bias, temperature)
        found = [p.log_prob(label.clamp(min=0)) for p, label in zip(given, labels.flatten(), strict=True)]
        return _view(found, labels, hidden)

    own = log_probs(hidden, weight, bias)
    if reference_hidden is not None and reference_weight is not None:
        reference = log_probs(reference_hidden, reference_weight, reference_bias).detach()
    old = own.detach() if old is None else old
    return pairs.grpo(own, old, advantage, counted, reference, num_items, **options)


def entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """In nats, of each token."""
    found = [
        -sum(p * math.log(p) for p in each.probs.tolist()) for each in _distributions(hidden, weight, bias, temperature)
    ]
    return torch.tensor(found, dtype=torch.float64).view(hidden.shape[:-1])
