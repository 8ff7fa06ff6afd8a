"""Training steps beside torch's: a loss of a prediction and a target, its gradient, and what follows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

N, C = 4, 3


class Cuts(torch.autograd.Function):
    """No gradient goes on from here."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> None:
        return None


def inputs(seed: int, rows: int = N) -> tuple[Tensor, Tensor]:
    """A prediction that asks for its gradient, and a target."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, C, generator=generator, requires_grad=True), torch.randn(rows, C, generator=generator)


def compare(ours: nn.Module, theirs: nn.Module, seed: int, rows: int = N) -> None:
    """A step of both: the loss, and the gradient of the prediction."""
    found = []
    for each in (ours, theirs):
        x, t = inputs(seed, rows)
        value = each(x, t)
        value.backward()
        found.append((value, x.grad))
    torch.testing.assert_close(*found)
