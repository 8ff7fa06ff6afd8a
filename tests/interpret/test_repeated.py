"""Losses whose steps read the step before at several places: what is read is stored before it grows out of hand."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, explain, policy


def diffused(u: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        u = u + 0.1 * (u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u)
    return u.square().mean()


def butterflies(x: Tensor, steps: int) -> Tensor:
    """A Walsh-Hadamard transform."""
    n, half = x.shape[1], 1
    for _ in range(steps):
        x = x.view(-1, n // (2 * half), 2, half)
        first, second = x[:, :, 0], x[:, :, 1]
        x = torch.stack([first + second, first - second], 2).reshape(-1, n)
        half *= 2
    return x.abs().mean()


def pyramid(x: Tensor, steps: int) -> Tensor:
    total = x.new_zeros(())
    for _ in range(steps):
        total, x = total + x.abs().mean(), (x[::2] + x[1::2]) / 2
    return total


@pytest.mark.interpreted  # measures how long it takes
@pytest.mark.parametrize(
    ("loss", "steps", "shape"),
    [(diffused, 5, (12, 12)), (butterflies, 3, (2, 8)), (pyramid, 5, (64, 3))],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_each_step_reads_the_one_before_at_several_places(
    loss: Callable[[Tensor, int], Tensor], steps: int, shape: tuple[int, int]
) -> None:
    x = torch.randn(shape, requires_grad=True)
    ours, begun = autogen_loss(lambda x: loss(x, steps)), time.process_time()
    found = []
    for each in (ours, lambda x: loss(x, steps)):
        with policy("mandatory"):
            value = each(x)
        found.append((value.detach(), *torch.autograd.grad(value, x)))
    torch.testing.assert_close(*found)
    assert time.process_time() - begun < 120  # where each step is computed anew, the last ones take hours


def test_a_few_such_steps_are_one_launch() -> None:
    assert explain(autogen_loss(lambda x: diffused(x, 1)), torch.randn(12, 12)).forward.launches == 1  # type: ignore[union-attr]
