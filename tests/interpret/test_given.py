"""Lists and dictionaries that a loss is given: what it puts there, the caller finds."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, policy
from autogen.errors import StateChangeError
from tests.interpret.launches import Launches

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 1, 12).reshape(3, 4)


def counted(x: Tensor, y: Tensor, logs: dict[str, int]) -> Tensor:
    logs["n"] = logs.get("n", 0) + 1
    return (x - y).abs().sum() * logs["n"]


def noted(x: Tensor, y: Tensor, logs: dict[str, Tensor]) -> Tensor:
    loss = (x - y).square().mean()
    logs["mse"] = loss.detach()
    return loss + (x - y).abs().mean()


def appended(x: Tensor, y: Tensor, history: list[Tensor]) -> Tensor:
    loss = (x - y).square().mean()
    history.append(loss.detach())
    return loss


def queued(x: Tensor, y: Tensor, history: collections.deque[Tensor]) -> Tensor:
    history.append(x.mean().detach())
    return (x - y).abs().mean() + torch.stack(list(history)).sum()


def nested(x: Tensor, y: Tensor, *, logs: dict[str, dict[str, Tensor]]) -> Tensor:
    logs["train"]["mean"] = x.mean().detach()
    return (x - y).abs().mean()


def sorted_ahead(x: Tensor, y: Tensor, weights: list[float]) -> Tensor:
    weights.sort()
    return (x - y).abs().mean() * weights[0] - x.sum() * weights[-1]


def popped(x: Tensor, y: Tensor, options: tuple[dict[str, float], int]) -> Tensor:
    return (x - y).abs().mean() * options[0].pop("scale", 2.0)


CASES: list[tuple[Callable[..., Tensor], Any]] = [
    (counted, {}),
    (noted, {}),
    (noted, collections.OrderedDict()),
    (noted, collections.defaultdict(list)),
    (appended, []),
    (queued, collections.deque(maxlen=2)),
    (nested, {"train": {}}),
    (sorted_ahead, [3.0, 0.5, 2.0]),
    (popped, ({"scale": 0.5}, 1)),
]


def call(loss: Callable[..., Tensor], given: Any) -> tuple[Tensor, Tensor]:
    x = X.clone().requires_grad_()
    value = loss(x, Y, logs=given) if loss.__name__ == "nested" else loss(x, Y, given)
    return value.detach(), *torch.autograd.grad(value, x)


@pytest.mark.parametrize(("loss", "given"), CASES, ids=lambda each: getattr(each, "__name__", type(each).__name__))
def test_what_is_changed(loss: Callable[..., Tensor], given: Any, launches: Launches) -> None:
    decorated = autogen_loss(loss)
    mine, own = copy.deepcopy(given), copy.deepcopy(given)
    for is_first in (True, False, False, False):
        torch.testing.assert_close(call(decorated, mine), call(loss, own))
        assert repr(mine) == repr(own)
        assert not is_first or launches.take() == 0  # later, there may be nothing to sort any more
    with policy("mandatory"), pytest.raises(StateChangeError, match=r"that it is given, which outlives"):
        call(decorated, copy.deepcopy(given))


def test_what_is_only_read_has_kernels(launches: Launches) -> None:
    def weighted(x: Tensor, y: Tensor, weights: dict[str, Any]) -> Tensor:
        return (x - y).abs().mean() * weights["scale"] + (x * weights["per_column"]).sum()

    given = {"scale": 0.5, "per_column": torch.arange(4.0)}
    torch.testing.assert_close(call(autogen_loss(weighted), given), call(weighted, given))
    assert launches.take() == 2


class Keeping(nn.Module):
    """A loss that may be given a list or a dictionary that it has."""

    given = "options"

    def __init__(self) -> None:
        super().__init__()
        self.options = {"shift": torch.zeros(4)}
        self.scales = [2.0, 3.0]
        self.history: list[Tensor] = []


class Writing(Keeping):
    def forward(self, x: Tensor, options: dict[str, Tensor]) -> Tensor:
        self.options["shift"] = x.detach().mean(0)
        return (x - options["shift"]).square().sum()


class Asking(Keeping):
    def forward(self, x: Tensor, options: dict[str, Tensor]) -> Tensor:
        return (x - options["shift"]).square().sum() * (2.0 if options is self.options else 3.0)


class AskingForNumbers(Keeping):
    given = "scales"

    def forward(self, x: Tensor, scales: list[float]) -> Tensor:
        return x.square().sum() * scales[0 if scales is self.scales else 1]


class Counting(Keeping):
    given = "history"

    def forward(self, x: Tensor, history: list[Tensor]) -> Tensor:
        self.history.append(x.mean().detach())
        return x.sum() * len(history)


@pytest.mark.parametrize("kind", [Writing, Asking, AskingForNumbers, Counting])
def test_what_the_loss_has_itself(kind: type[Keeping], launches: Launches) -> None:
    ours, torchs = autogen_loss(kind()), kind()
    for is_own in (False, True, False, True):
        for k in range(3):
            values = []
            for module in (ours, torchs):
                own = getattr(module, kind.given)
                values.append(module(X + k, own if is_own else copy.copy(own)))
            torch.testing.assert_close(*values)
    assert launches.take() > 0 or kind is Counting
