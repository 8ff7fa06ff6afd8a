"""Lists and dictionaries that a loss is given: what it puts there, the caller finds."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autogen import autogen_loss, policy
from autogen.errors import StateChangeError
from tests.interpret.launches import Launches

X, Y = torch.linspace(-1, 2, 12).reshape(3, 4), torch.linspace(0, 1, 12).reshape(3, 4)


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


def overwritten(x: Tensor, y: Tensor, out: dict[str, Any]) -> Tensor:
    out["scale"] = out["scale"] * x.mean().detach()
    out["n"], out["mask"] = 3, None
    return (x - y).abs().mean() * out["scale"] + out["n"]


def by_numbers(x: Tensor, y: Tensor, out: tuple[dict[Any, Any], ...]) -> Tensor:
    for scale, each in enumerate(out):
        each["mean", scale] = (x * scale).mean().item()
        each["parts"] = [x.detach().sum(), {"y": y.mean()}]
    return (x - y).square().mean() * out[1]["mean", 1]


ASSIGNED: list[tuple[Callable[..., Tensor], Any]] = [
    (noted, {}),
    (noted, collections.OrderedDict()),
    (noted, collections.defaultdict(list)),
    (nested, {"train": {}}),
    (overwritten, {"scale": torch.tensor(0.5)}),
    (by_numbers, ({}, {("mean", 1): 2.0, "z": 1})),
]
REFUSED: list[tuple[Callable[..., Tensor], Any]] = [
    (counted, {"n": 1}),
    (appended, []),
    (queued, collections.deque(maxlen=2)),
    (sorted_ahead, [3.0, 0.5, 2.0]),
    (popped, ({"scale": 0.5}, 1)),
]


def call(loss: Callable[..., Tensor], given: Any) -> tuple[Tensor, Tensor]:
    x = X.clone().requires_grad_()
    value = loss(x, Y, logs=given) if loss.__name__ == "nested" else loss(x, Y, given)
    return value.detach(), *torch.autograd.grad(value, x)


def name_of(case: Any) -> str:
    return getattr(case, "__name__", type(case).__name__)


@pytest.mark.parametrize(("loss", "given"), ASSIGNED, ids=name_of)
def test_what_is_assigned_to_a_dictionary(loss: Callable[..., Tensor], given: Any, launches: Launches) -> None:
    decorated = autogen_loss(loss)
    for _ in range(3):
        mine, own = copy.deepcopy(given), copy.deepcopy(given)
        with policy("mandatory"):
            torch.testing.assert_close(call(decorated, mine), call(loss, own))
        torch.testing.assert_close(mine, own)
        assert pytree.tree_structure(mine) == pytree.tree_structure(own)
    assert launches.take() == 6


@pytest.mark.parametrize(("loss", "given"), REFUSED, ids=name_of)
def test_what_is_changed_otherwise(loss: Callable[..., Tensor], given: Any, launches: Launches) -> None:
    decorated = autogen_loss(loss)
    mine, own = copy.deepcopy(given), copy.deepcopy(given)
    for is_first in (True, False, False, False):
        torch.testing.assert_close(call(decorated, mine), call(loss, own))
        assert repr(mine) == repr(own)
        assert not is_first or launches.take() == 0  # later, there may be nothing to sort any more
    with policy("mandatory"), pytest.raises(StateChangeError, match=r"that it is given, which outlives"):
        call(autogen_loss(loss), copy.deepcopy(given))


def in_stages(end_points: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """A part of the loss that is read again, as losses of detection do it, and one that is not returned."""
    end_points["distance"] = (end_points["x"] - end_points["y"]).square().sum(-1)
    end_points["weight"] = (end_points["x"].detach() > 0).float().mean(-1)
    end_points["loss"] = (end_points["distance"] * end_points["weight"]).mean()
    return end_points["loss"] * 2, {"of rows": end_points["distance"]}


def test_what_is_assigned_has_its_graph(launches: Launches) -> None:
    ours = autogen_loss(in_stages)
    for size in (3, 3, 2):
        found: list[list[Tensor]] = []
        for loss in (ours, in_stages):
            x = X[:size].clone().requires_grad_()
            points = {"x": x, "y": Y[:size]}
            with policy("mandatory"):
                total, parts = loss(points)
            assert list(points) == ["x", "y", "distance", "weight", "loss"]
            assert points["x"] is x
            by = [total, points["loss"], points["distance"].sum(), parts["of rows"].sum() + points["loss"]]
            gradients = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in by]
            found.append([total, *points.values(), *parts.values(), *gradients])
        assert launches.take() >= 2
        torch.testing.assert_close(*found)


def test_what_is_given_twice_is_one(launches: Launches) -> None:
    def swapped(x: Tensor, a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        a["k"] = x.mean().detach()
        return (x * b["k"]).sum()

    ours = autogen_loss(swapped)
    for is_one in (False, True, False):
        first = {"k": torch.tensor(2.0)}
        second = first if is_one else {"k": torch.tensor(3.0)}
        x = X.clone().requires_grad_()
        torch.testing.assert_close(ours(x, first, second), (X * (X.mean() if is_one else 3)).sum())
        torch.testing.assert_close(first["k"], X.mean())
        assert launches.take() == (0 if is_one else 1)


def test_what_is_kept_elsewhere_too_is_torchs(launches: Launches) -> None:
    logs: dict[str, Tensor] = {}

    def summed(x: Tensor, y: Tensor, given: dict[str, Tensor]) -> Tensor:
        given["k"] = x.mean().detach()
        return (x - y).abs().mean() + len(logs)

    ours = autogen_loss(summed)
    for given in ({}, logs, {}):
        logs.clear()
        torch.testing.assert_close(ours(X, Y, given), (X - Y).abs().mean() + (given is logs))
        assert launches.take() == (given is not logs)


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
