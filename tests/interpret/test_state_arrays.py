"""Arrays that a loss keeps, NumPy's and Python's: what is in them is seen, and a loss that writes there is torch's."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, explain, policy, trace_count
from autogen.errors import StateChangeError
from autogen.options import PLANS_VARIABLE
from autogen.runtime import build
from tests.interpret.launches import Launches

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 1, 12).reshape(3, 4)

KEPT: dict[str, Callable[[], Any]] = {
    "floats": lambda: np.zeros(2),
    "strided": lambda: np.zeros((2, 4), np.int32)[:, ::2],
    "large": lambda: np.zeros(2000),
    "a number in an array": lambda: np.zeros(()),
    "bytes": lambda: bytearray(2),
    "of Python": lambda: array.array("d", [0.0, 0.0]),
}


class Counting(nn.Module):
    def __init__(self, count: Any) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.count[() if np.ndim(self.count) == 0 else 0] += 1
        return ((x - y) ** 2).mean()


def second_derivative(loss: Any) -> Tensor:
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(x, Y), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_loss_writes(kind: str, launches: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written once for each call, whatever else is asked of the loss, also where plans are kept on disk."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(PLANS_VARIABLE)
    for _ in range(2):  # as in two processes
        loss, own = autogen_loss(Counting(KEPT[kind]())), Counting(KEPT[kind]())
        for _ in range(3):
            torch.testing.assert_close(loss(X, Y), own(X, Y))
            torch.testing.assert_close(second_derivative(loss), second_derivative(own))
        explain(loss, X, Y)
        assert np.array_equal(loss.count, own.count)
    assert launches.take() == 0
    with policy("mandatory"), pytest.raises(StateChangeError, match=r"changes a (ndarray|bytearray|array)"):
        loss(X, Y)


class Weighted(nn.Module):
    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean() * float(self.weights[0])


@pytest.mark.parametrize("kind", ["floats", "bytes", "of Python"])
def test_what_is_written_from_outside(kind: str, launches: Launches) -> None:
    """A call of the same content takes the short way."""
    loss, own = autogen_loss(Weighted(KEPT[kind]())), Weighted(KEPT[kind]())
    for value in (1, 1, 1, 2, 2, 1):
        loss.weights[0] = own.weights[0] = value
        torch.testing.assert_close(loss(X), own(X))
    assert launches.take() == 6 and trace_count(loss) == 2


class Picture:
    """Something that bytes can be made of, as of an image, and that has no length."""

    weight = 3.0

    def tobytes(self) -> bytes:
        return b"3"


def test_what_bytes_can_be_made_of(launches: Launches) -> None:
    picture = Picture()
    torch.testing.assert_close(autogen_loss(lambda x: (x * picture.weight).sum())(X), X.sum() * 3)
    assert launches.take() == 1
