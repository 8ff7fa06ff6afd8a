"""A few losses on kernels, against torch: what `make compat` asks of a version, beside `test_compat.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen
import autogen.losses
from autogen import autogen_loss, explain
from autogen.runtime import availability

pytestmark = pytest.mark.skipif(not availability.has_interpreter(), reason="runs in Triton's interpreter")


def numbers(*shape: int) -> Tensor:
    return torch.linspace(-2, 3, torch.Size(shape).numel()).reshape(shape)


def boxes(shift: float) -> Tensor:
    corner = numbers(5, 2) + shift
    return torch.cat([corner, corner + 1.5 + numbers(5, 2).abs()], 1)


def weighted(x: Tensor, y: Tensor) -> Tensor:
    return ((x - y).abs().log1p() * y.softmax(1)).sum(1).mean()


def giou(a: Tensor, b: Tensor) -> Tensor:
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    outer = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - inner
    return (1 - inner / union + (outer - union) / outer).mean()


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], tuple[Tensor, Tensor]]] = {
    "BCE with logits": (
        autogen.losses.BCEWithLogitsLoss(),
        nn.BCEWithLogitsLoss(),
        (numbers(4, 6), numbers(4, 6).sigmoid()),
    ),
    "cross entropy": (
        autogen.losses.CrossEntropyLoss(),
        nn.CrossEntropyLoss(),
        (numbers(4, 6), torch.tensor([0, 5, 2, 2])),
    ),
    "GIoU": (autogen.losses.GIoULoss(), giou, (boxes(0), boxes(0.7))),
    "a function": (
        autogen_loss(weighted),
        weighted,
        (numbers(4, 6), numbers(6, 4).t().contiguous()),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_torchs(name: str) -> None:
    loss, formula, (x, y) = CASES[name]
    for rows in (len(x), len(x) - 1, len(x)):  # of which the last is a call like the first
        given, same = (x[:rows].clone().requires_grad_() for _ in range(2))
        with autogen.policy("mandatory"):
            found = loss(given, y[:rows])
        expected = formula(same, y[:rows])
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
        torch.testing.assert_close(given.grad, same.grad)


@pytest.mark.parametrize("name", CASES)
def test_each_direction_is_one_launch(name: str) -> None:
    loss, _, (x, y) = CASES[name]
    report = explain(loss, x.requires_grad_(), y)
    assert report.path in ("generated", "handwritten")
    assert (report.forward.launches, report.backward.launches) == (1, 1)
