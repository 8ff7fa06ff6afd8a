"""Which rows of a matrix product losses take, and whether they are then computed in chunks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss
from tests.interpret.agreement import agree, draw, labels
from tests.interpret.test_chunks import CLASSES, WIDTH, Loss, chunks_of


def test_pairs_of_rows() -> None:
    """The diagonal of a product: a column is the row that it is in."""

    def loss(q: Tensor, k: Tensor) -> Tensor:
        own = torch.arange(q.shape[0])
        return F.cross_entropy(q @ k.t(), own) + F.cross_entropy(k @ q.t(), own)

    agree(loss, draw("real", 40, WIDTH), draw("real", 40, WIDTH, seed=1), launches=None, chunk=16)
    assert chunks_of(autogen_loss(loss, chunk=16), draw("real", 40, WIDTH), draw("real", 40, WIDTH, seed=1))


def test_rows_that_a_mask_chooses() -> None:
    """Where it chooses none, there is no chunk."""

    def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        counted = y != -100
        return F.cross_entropy(x[counted] @ w.t(), y[counted], reduction="sum")

    decorated, w, x = autogen_loss(loss, chunk=16), draw("real", CLASSES, WIDTH, seed=1), draw("real", 60, WIDTH)
    y = labels(CLASSES, 60)
    y[::3] = -100
    for target in (y, torch.full_like(y, -100), y):
        for own, their in zip(
            torch.autograd.grad(decorated(x, w, target), (x, w)),
            torch.autograd.grad(loss(x, w, target), (x, w)),
            strict=True,
        ):
            torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-5)
    assert chunks_of(decorated, x, w, y)


def of_tokens(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def of_sequences(logits: Tensor, y: Tensor) -> Tensor:
    """The log-probability of each sequence."""
    return logits.log_softmax(-1).gather(-1, y[..., None]).squeeze(-1).sum(1)


def standardised(logits: Tensor, y: Tensor) -> Tensor:
    row = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return ((row - row.mean()) / (row.std() + 1e-5)).pow(3).sum()


def neighbours(logits: Tensor, y: Tensor) -> Tensor:
    p = logits.softmax(-1)
    return (p[:, 1:] * p[:, :-1].log()).sum()


# Losses of logits (B, T, V) and labels (B, T), and whether they are computed in chunks.
TOKENS: dict[str, tuple[Loss, bool]] = {
    "all but the first": (lambda x, y: of_tokens(x[:, 1:], y[:, 1:]), True),
    "the first two": (lambda x, y: of_tokens(x[:, :2], y[:, :2]), True),
    "other sequences": (lambda x, y: of_tokens(x[1:], y[1:]), True),
    "turned": (lambda x, y: of_tokens(x.transpose(0, 1), y.t()), True),
    "classes in the middle": (lambda x, y: F.cross_entropy(x.transpose(1, 2), y), True),
    "of sequences": (lambda x, y: of_sequences(x, y).exp().sum(), True),
    "standardised": (standardised, True),
    "largest": (lambda x, y: x.amax(-1).sum(), True),
    "running sum": (lambda x, y: x.softmax(-1).cumsum(-1).square().sum(), True),
    "share": (lambda x, y: x.softmax(-1).mean((0, 1)).square().sum(), True),
    "spread": (lambda x, y: x.var(-1).sum(), True),
    "every second": (lambda x, y: of_tokens(x[:, ::2], y[:, ::2]), False),
    "backwards": (lambda x, y: of_tokens(x.flip(1), y), False),
    "the last": (lambda x, y: of_tokens(x[:, -1], y[:, -1]), False),
    "neighbours": (neighbours, False),
    "share of a sequence": (lambda x, y: x.softmax(-1).mean(1).square().sum(), False),
    "share of some": (lambda x, y: x[:, 1:].softmax(-1).mean((0, 1)).square().sum(), False),
    "likeliest": (lambda x, y: x.topk(3, -1).values.sum(), False),
}


@pytest.mark.parametrize("name", TOKENS)
def test_rows_as_losses_choose_them(name: str) -> None:
    of_logits, in_chunks = TOKENS[name]

    def loss(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return of_logits(x @ w.t(), y)

    x, w = draw("real", 5, 9, WIDTH, dtype=torch.float64), draw("real", 20, WIDTH, dtype=torch.float64, seed=1)
    y, decorated = labels(20, 5, 9), autogen_loss(loss, chunk=8)
    assert bool(chunks_of(decorated, x, w, y)) == in_chunks
    value, expected = decorated(x, w, y), loss(x, w, y)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    for scale in (1.75, -0.5):  # the second finds nothing kept
        upstream = torch.tensor(scale, dtype=torch.float64)
        found = torch.autograd.grad(value, (x, w), upstream, retain_graph=True)
        for own, their in zip(found, torch.autograd.grad(expected, (x, w), upstream, retain_graph=True), strict=True):
            torch.testing.assert_close(own, their, rtol=1e-9, atol=1e-12)
