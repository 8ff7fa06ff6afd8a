"""What changes between two calls of a loss counts in the second: nothing is kept that the loss would read anew."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.dispatch.compilations
from autogen import autogen_loss, explain, policy

THIS = sys.modules[__name__]
X = torch.linspace(-1, 1, 8)
SCALE: float | None = None


class Options:
    is_squared = False


def weigh(x: Tensor) -> Tensor:
    return 2 * x


@autogen_loss
class Loss(nn.Module):
    power = 1

    def __init__(self) -> None:
        super().__init__()
        self.table: Any = [1.0, [2.0]]

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.table[1][0]

    def forward(self, x: Tensor) -> Tensor:
        y = weigh(self.scaled(x)) ** self.power
        y = y * y if Options.is_squared else y
        return y.sum() if SCALE is None else y.sum() * SCALE


CHANGES: list[tuple[Any, str, Any]] = [
    (THIS, "SCALE", 3.0),
    (THIS, "weigh", lambda x: 5 * x),
    (Options, "is_squared", True),
    (Loss, "power", 2),
    (Loss, "scaled", lambda self, x: x - 1),
]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize(("owner", "name", "value"), CHANGES, ids=[name for _, name, _ in CHANGES])
def test_a_change_counts(owner: Any, name: str, value: Any, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Loss()
    with policy("mandatory"):
        for _ in range(2):
            for _ in range(calls):
                torch.testing.assert_close(loss(X), Loss(use_autogen=False)(X))  # type: ignore[call-arg]
            monkeypatch.setattr(owner, name, value)
        for _ in range(calls):
            torch.testing.assert_close(loss(X), Loss(use_autogen=False)(X))  # type: ignore[call-arg]


def test_a_negative_view_is_torchs() -> None:
    negative = torch.complex(torch.zeros(8), torch.ones(8)).conj().imag
    assert negative.is_neg()
    loss = autogen_loss(lambda x: (x * 2).sum())
    assert explain(loss, negative).path == "eager"
    for _ in range(3):
        assert loss(torch.ones(8)) == 16
        assert loss(negative) == -16


def test_a_loss_that_counts_its_calls_on_its_class_runs_in_torch() -> None:
    @autogen_loss
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x.sum() * self.calls

    loss = Counting()
    assert [float(loss(torch.ones(8))) for _ in range(3)] == [8, 16, 24]


def test_what_differs_in_every_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.compilations, "MOST_UNUSED", 3)
    steps = {"count": 0}

    def loss(x: Tensor) -> Tensor:
        return x.sum() * steps["count"]

    ours = autogen_loss(loss)
    for count in range(8):
        steps["count"] = count
        assert ours(torch.ones(8)) == 8 * count
    assert explain(ours, torch.ones(8)).path == "eager"
    with policy("mandatory"), pytest.raises(autogen.TooManyTracesError):
        ours(torch.ones(8))
