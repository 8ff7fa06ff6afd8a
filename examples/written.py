"""Losses as people write them around a softmax or a mean, at the sizes of language models and of speech.

Each reads what it is given once, if its kernel does not wait for one reduction of a row to make another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

VOCABULARY = 128_256
ROWS = 2048


def logsumexp(logits: Tensor) -> Tensor:
    return logits.logsumexp(-1).mean()


def with_z_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy, and the square of the logarithm of its normalizer (PaLM, 2022)."""
    return F.cross_entropy(logits, labels) + 1e-4 * logits.logsumexp(-1).square().mean()


def by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy as reinforcement learning writes it."""
    return (logits.logsumexp(-1) - logits.gather(-1, labels[:, None]).squeeze(-1)).mean()


def causal(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the next token, as in Hugging Face's models."""
    shifted = logits.float()[..., :-1, :].contiguous()
    return F.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels[..., 1:].contiguous().view(-1))


def preferred(logits: Tensor, labels: Tensor) -> Tensor:
    """DPO of chosen and rejected answers, one after the other in a batch (Rafailov and others, 2023)."""
    log_prob = logits.log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1).sum(-1)
    chosen, rejected = log_prob.chunk(2)
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def distilled(student: Tensor, teacher: Tensor) -> Tensor:
    """The divergence of two softmaxes at a temperature of 2 (Hinton and others, 2015)."""
    return 4 * F.kl_div((student / 2).log_softmax(-1), (teacher / 2).softmax(-1), reduction="batchmean")


def with_accuracy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(logits, labels), (logits.argmax(-1) == labels).float().mean()


def entropy(logits: Tensor) -> Tensor:
    log_prob = logits.log_softmax(-1)
    return -(log_prob.exp() * log_prob).sum(-1).mean()


def jensen_shannon(one: Tensor, other: Tensor) -> Tensor:
    """Of two softmaxes: what is between them is no sum over a row that could be taken before its normalizers."""
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    mean = torch.logsumexp(torch.stack([p, q]), 0) - math.log(2)
    to_one, to_other = (F.kl_div(mean, each, log_target=True, reduction="batchmean") for each in (p, q))
    return 0.5 * (to_one + to_other)


def spread(embeddings: Tensor) -> Tensor:
    """The variance term of VICReg (Bardes and others, 2022)."""
    return F.relu(1 - torch.sqrt(embeddings.var(0) + 1e-4)).mean()


def signal_to_distortion(estimate: Tensor, signal: Tensor) -> Tensor:
    """SI-SDR, negated, in dB (Le Roux and others, 2019)."""
    estimate, signal = (each - each.mean(-1, keepdim=True) for each in (estimate, signal))
    scale = ((estimate * signal).sum(-1, keepdim=True) + 1e-8) / (signal.square().sum(-1, keepdim=True) + 1e-8)
    target = scale * signal
    rest = estimate - target
    return -10 * ((target.square().sum(-1) + 1e-8) / (rest.square().sum(-1) + 1e-8)).log10().mean()


def calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable[..., object], Callable[[], tuple[Tensor, ...]]]]:
    """The name of each loss, the loss, and what makes its inputs, which are not filled: sizes are all that counts."""

    def real(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, requires_grad=True)

    def labels(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.long)

    rows = (ROWS, VOCABULARY)
    yield "logsumexp", logsumexp, lambda: (real(*rows),)
    yield "with_z_loss", with_z_loss, lambda: (real(*rows), labels(ROWS))
    yield "by_hand", by_hand, lambda: (real(*rows), labels(ROWS))
    yield "causal", causal, lambda: (real(2, ROWS // 2, VOCABULARY), labels(2, ROWS // 2))
    yield "preferred", preferred, lambda: (real(4, ROWS // 4, VOCABULARY), labels(4, ROWS // 4))
    yield "distilled", distilled, lambda: (real(*rows), real(*rows).detach())
    yield "with_accuracy", with_accuracy, lambda: (real(*rows), labels(ROWS))
    yield "entropy", entropy, lambda: (real(*rows),)
    yield "jensen_shannon", jensen_shannon, lambda: (real(*rows), real(*rows))
    yield "spread", spread, lambda: (real(4096, 256),)
    yield "signal_to_distortion", signal_to_distortion, lambda: (real(8, 64_000), real(8, 64_000).detach())
    yield "few_rows", F.cross_entropy, lambda: (real(8, VOCABULARY), labels(8))
