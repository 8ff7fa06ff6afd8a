"""Numbers that a loss keeps: counters, weights that decay, averages of what it reads of its tensors."""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from torch import Tensor, nn

from autogen import StateChangeError, autogen_loss, explain, policy, trace_count
from tests.interpret.launches import Launches


def _squares(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square()


class Counting(nn.Module):
    """Warms up, and keeps a weight that decays."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.seen = {"rows": 0, "share": 1.0}

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.step += 1
        self.seen["rows"] += x.shape[0]
        self.seen["share"] *= 0.9
        return _squares(x, y).mean() * min(1.0, self.step / 6) + self.seen["share"]


def test_a_loss_that_counts_its_calls(launches: Launches) -> None:
    theirs = Counting()
    ours = autogen_loss(copy.deepcopy(theirs))
    for rows in (5, 5, 5, 5, 4, 3, 6, 5, 5, 2):
        x, y = torch.randn(rows, 3, requires_grad=True), torch.randn(rows, 3)
        launches.take()
        found = ours(x, y)
        is_generated = launches.take() == 1
        torch.testing.assert_close(found, theirs(x, y))
        assert (ours.step, ours.seen) == (theirs.step, theirs.seen)
        assert type(ours.step) is int
    assert is_generated
    assert explain(ours, x, y).path == "generated"
    assert (ours.step, trace_count(ours)) == (10, 4)


def test_an_error_says_when_numbers_have_kernels() -> None:
    with policy("mandatory"), pytest.raises(StateChangeError, match="when it has changed twice"):
        autogen_loss(Counting())(torch.ones(5, 3), torch.ones(5, 3))


def test_sizes_as_keys() -> None:
    kept: dict[str, dict[object, float]] = {"theirs": {}, "ours": {}}

    def loss(x: Tensor, name: str) -> Tensor:
        scales, key = kept[name], (x.shape[0], int(x.shape[1]))
        if key not in scales:
            scales[key] = 1.0 / key[0]
        scales[x.shape[0]] = scales.get(x.shape[0], 0) + 1
        return x.square().sum() * scales[key]

    ours = autogen_loss(loss)
    for rows in (4, 5, 4, 6, 4, 5, 4):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(ours(x, "ours"), loss(x, "theirs"))
        assert kept["ours"] == kept["theirs"]
    assert {type(each) for key in kept["ours"] for each in (key if isinstance(key, tuple) else (key,))} == {int}


class Balanced(nn.Module):
    """Divides by a moving average, and keeps metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.average, self.positives, self.last = 1.0, 0, 0.0
        self.logs: dict[str, float] = collections.defaultdict(float)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        error = _squares(x, y).mean()
        self.average = 0.9 * self.average + 0.1 * error.item()
        self.positives += int((y > 0).sum())
        self.last = self.logs["mse"] = float(error)
        self.logs["rows"] = len(x)
        return error / self.average + (x - y).abs().mean()

    def numbers(self) -> list[float]:
        return [self.average, self.positives, self.last, *self.logs.values()]


def test_numbers_that_are_read_of_tensors(launches: Launches) -> None:
    theirs, generated = Balanced(), 0
    ours = autogen_loss(copy.deepcopy(theirs))
    for rows in (5, 5, 4, 5, 4, 3, 6, 5):
        x, y = torch.randn(rows, 3, requires_grad=True), torch.randn(rows, 3)
        launches.take()
        found, expected = ours(x, y), theirs(x, y)
        generated += launches.take()
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-7)
        gradients = [torch.autograd.grad(each, x)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=5e-6, atol=1e-6)
        assert ours.logs.keys() == theirs.logs.keys()
        torch.testing.assert_close(ours.numbers(), theirs.numbers(), rtol=2e-6, atol=0)
        assert list(map(type, ours.numbers())) == list(map(type, theirs.numbers()))
    assert explain(ours, x, y).path == "generated"
    assert generated >= 4
    with torch.no_grad():
        assert ours(x, y) > 0
    assert ours.average != theirs.average
