"""Integers that change from call to call, such as the number of an epoch: kernels are given them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import autogen_loss, explain, trace_count


def _squares(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square()


# Losses of an integer from 2 to 9, and how many traces a loss has of its nine values, the first two being their own.
ANNEALED: dict[str, tuple[Callable[[Tensor, Tensor, int], Any], int]] = {
    "a factor": (lambda x, y, n: _squares(x, y).mean() * n, 3),
    "a ramp": (lambda x, y, n: _squares(x, y).mean() * min(1.0, n / 5), 4),
    "a decay": (lambda x, y, n: _squares(x, y).mean() * 0.9**n + 0.5 * (1 + math.cos(math.pi * n / 20)), 3),
    "an exponent": (lambda x, y, n: ((x - y).abs() ** n).mean(), 3),
    "a base": (lambda x, y, n: (n ** (x - y).clamp(-1, 1)).mean(), 3),
    "a branch": (lambda x, y, n: _squares(x, y).mean() if n < 5 else (x - y).abs().mean(), 4),
    "every third": (lambda x, y, n: _squares(x, y).mean() * (2 if n % 3 == 0 else 1), 4),
    "a slice": (lambda x, y, n: _squares(x, y)[:n].mean(), 4),  # of all, in the end
    "a place": (lambda x, y, n: _squares(x, y)[:, n // 3 - 1].mean(), 3),
    "a class": (lambda x, y, n: F.nll_loss(x, y.argmax(1), ignore_index=n - 5), 3),
    "a table": (lambda x, y, n: _squares(x, y).mean() * (0.0, 1.0, 2.0)[n % 3], 5),
    "a loop": (lambda x, y, n: sum(_squares(x, y)[k].mean() for k in range(n % 3 + 1)), 5),
    "a pad": (lambda x, y, n: F.pad(x - y, (n, 0)).square().mean(), 3),
    "a result": (lambda x, y, n: (_squares(x, y).mean(), n + 1, n / 2), 3),
}


@pytest.mark.parametrize("case", ANNEALED)
def test_one_trace_for_all_values(case: str) -> None:
    loss, traces = ANNEALED[case]
    ours = autogen_loss(lambda x, y, n: loss(x, y, n))
    for n in (2, 3, 4, 5, 6, 7, 8, 9, 3):
        x, y = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3)
        expected, found = loss(x, y, n), ours(x, y, n)
        if isinstance(expected, tuple):
            assert found[1:] == expected[1:]
            assert list(map(type, found)) == list(map(type, expected))
            expected, found = expected[0], found[0]
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-7)
        gradients = [torch.autograd.grad(each, x)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=5e-6, atol=1e-6)
    assert explain(ours, x, y, n).path == "generated"
    assert trace_count(ours) == traces


def test_sizes_of_what_torch_makes_alone() -> None:
    def loss(x: Tensor, w: Tensor, n: int) -> Tensor:
        return (x.topk(n, 1).values @ w[:n]).square().mean()

    ours = autogen_loss(loss)
    for n in (2, 3, 4, 5, 6, 4, 7, 5, 6):
        x, w = (torch.randn(*shape, requires_grad=True) for shape in ((6, 8), (8, 5)))
        expected, found = loss(x, w, n), ours(x, w, n)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(each, (x, w)) for each in (found, expected)]
        torch.testing.assert_close(*gradients)
    assert explain(ours, x, w, n).path == "partial"
    assert trace_count(ours) == 3


@pytest.mark.parametrize("number", [0, -3, True, 2.5, 2**31, 2**53 + 1], ids=str)
def test_numbers_of_another_kind(number: Any) -> None:
    def loss(x: Tensor, n: int) -> Tensor:
        return (x * n).mean() + n // 2

    ours, x = autogen_loss(loss), torch.rand(5) + 1
    for n in (2, 3, 4, number, 5, number):
        torch.testing.assert_close(ours(x, n), loss(x, n))


def test_division_by_zero_is_pythons_error() -> None:
    ours, x = autogen_loss(lambda x, n: x.sum() / (1 / (n - 4))), torch.rand(5)
    for n in (1, 2, 3, 5, 6):
        torch.testing.assert_close(ours(x, n), x.sum() * (n - 4))
    with pytest.raises(ZeroDivisionError):
        ours(x, 4)
    torch.testing.assert_close(ours(x, 7), x.sum() * 3)


def test_numbers_that_are_the_same_now_and_then() -> None:
    def loss(x: Tensor, a: int, b: int, *more: int, c: int = 2) -> Tensor:
        return x.mean() * a + b * 10 + more[0] * 100 + more[1] * 1000 + c * 10000

    ours, x = autogen_loss(loss), torch.rand(5)
    for numbers in ((1, 1, 1, 2), (1, 2, 2, 2), (2, 2, 1, 3), (3, 1, 3, 3), (1, 2, 3, 1), (4, 4, 4, 4), (5, 4, 3, 5)):
        torch.testing.assert_close(ours(x, *numbers, c=numbers[0]), loss(x, *numbers, c=numbers[0]))
    assert trace_count(ours) <= 5


def test_a_module_whose_counter_others_set() -> None:
    class Loss(nn.Module):
        epoch = 0

        def forward(self, x: Tensor) -> Tensor:
            return x.square().mean() * math.exp(-self.epoch / 10)

    theirs, ours = Loss(), autogen_loss(Loss())
    for epoch in range(8):
        ours.epoch = theirs.epoch = epoch
        x = torch.randn(4)
        torch.testing.assert_close(ours(x), theirs(x))
    assert trace_count(ours) == 3
