"""Calls that take a shortcut, of losses that are given what torch finds ahead of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss
from autogen.dispatch.plans import Plan
from autogen.runtime.prepared import Prepared
from tests.interpret.launches import Launches
from tests.interpret.stateful import Loss, N, Twins, inputs
from tests.interpret.test_state import Bank


def chosen(x: Tensor, t: Tensor) -> Tensor:
    rows = (t[:, 0] > 0).nonzero()[:, 0]
    return (x[rows] ** 2).sum() / max(len(rows), 1)


def counted(x: Tensor, t: Tensor) -> Tensor:
    count = (t > 0).sum().item()
    return x.flatten()[:count].abs().sum() / (count + 1)  # type: ignore[misc]


def hardest(x: Tensor, t: Tensor) -> Tensor:
    count = max(2, int((t[:, 0] > 0).sum()))
    return (x - t).abs().mean(1).topk(count).values.mean()


def scaled(x: Tensor, t: Tensor) -> Tensor:
    largest = t.max().item()
    return (x * largest).sum() if largest > 1 else (x / (1 + abs(largest))).pow(2).sum()


def of_classes(x: Tensor, t: Tensor) -> Tensor:
    labels = (t * 2).long().clamp(0, 2)[:, 0]
    kinds = labels.unique()
    return F.mse_loss(x[:, : len(kinds)], kinds.float().expand(len(x), -1)) + x.exp().mean()


LOSSES: list[Callable[[Tensor, Tensor], Tensor]] = [chosen, counted, hardest, scaled, of_classes]


def gradients(loss: Callable[..., Any], *given: Any) -> list[Tensor]:
    """The value, and the gradient of the first input."""
    value = loss(*given)
    return [value.detach(), *torch.autograd.grad(value, given[0])]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_later_calls_are_not_taken_apart(loss: Callable[..., Tensor], binds: list[str], launches: Launches) -> None:
    ours = autogen_loss(loss)
    for seed in range(24):
        x, t = inputs(seed)
        torch.testing.assert_close(gradients(ours, x, t), gradients(loss, x, t))
        assert launches.take() > 0
        if seed == 11:
            del binds[:]
    assert len(binds) <= 1  # a branch that has not come before


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_each_mode_and_geometry(loss: Callable[..., Tensor], binds: list[str]) -> None:
    ours = autogen_loss(loss)
    for seed in range(16):
        x, t = inputs(seed, rows=(N, N, 4, 9)[seed % 4])
        torch.testing.assert_close(gradients(ours, x, t), gradients(loss, x, t))
        with torch.no_grad():
            torch.testing.assert_close(ours(x, t), loss(x, t))
        with torch.inference_mode():
            assert ours(x, t).is_inference()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
def test_backward_of_earlier_calls_twice_and_again(loss: Callable[..., Tensor], binds: list[str]) -> None:
    results = []
    for each in (autogen_loss(loss), loss):
        values = [(each(x, t), x) for x, t in map(inputs, range(8))]
        found = []
        for value, x in values:
            found += [torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2)]
            (first,) = torch.autograd.grad(value, x, create_graph=True)
            found.append(first.detach())
            if first.requires_grad:
                found.append(torch.autograd.grad(first.pow(2).sum(), x, allow_unused=True)[0])
        results.append(found)
    torch.testing.assert_close(*results)


def test_floats_that_vary(binds: list[str]) -> None:
    def loss(x: Tensor, t: Tensor, limit: float) -> Tensor:
        rows = (t[:, 0] > limit).nonzero()[:, 0]
        return (x[rows] * limit).pow(2).sum() + (x.sum() if limit > 0.5 else 0.0)

    ours = autogen_loss(loss)
    for seed in range(20):
        x, t = inputs(seed)
        limit = seed / 20
        torch.testing.assert_close(gradients(ours, x, t, limit), gradients(loss, x, t, limit))
        if seed == 14:
            del binds[:]
    assert not binds


def test_floats_decide_between_traces(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a plan; nothing is taken apart, or prepared again, where they take turns."""

    def loss(x: Tensor, t: Tensor, limit: float) -> Tensor:
        return (x * limit).sum() if limit > 0.5 else (x - t).pow(2).sum() * limit

    prepared: list[Any] = []
    init = Prepared.__init__
    monkeypatch.setattr(Prepared, "__init__", lambda self, *args: (prepared.append(args), init(self, *args))[1])
    ours = autogen_loss(loss)
    for seed in range(20):
        x, t = inputs(seed)
        limit = (seed % 4 + seed / 100) / 4
        torch.testing.assert_close(gradients(ours, x, t, limit), gradients(loss, x, t, limit))
        if seed == 9:
            del binds[:], prepared[:]
    assert not binds and not prepared


class Ring(Loss):
    """What is found ahead is a part of what is written."""

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        rows = (self.bank[:, 0] > 0.2).nonzero()[:, 0]
        value = (x.mean(0) * self.bank.clone()[rows]).sum()
        with torch.no_grad():
            self.bank[: len(x)] = t
            self.count += 1
        return value


@pytest.mark.parametrize("kind", [Bank, Ring])
def test_with_a_state(kind: type[Loss], binds: list[str]) -> None:
    twins = Twins(kind())
    for seed in range(16):
        twins.call(seed)
        if seed == 7:
            del binds[:]
    assert len(binds) <= 2
    with torch.no_grad():
        twins.call(16)


def test_no_more_sizes_are_kept_than_there_is_room_for(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autogen.dispatch.plans._MOST_ALIKE", 2)
    plans: list[Plan] = []
    taken = Plan.taken
    monkeypatch.setattr(Plan, "taken", lambda self, *args: (plans.append(self), taken(self, *args))[1])
    ours = autogen_loss(counted)
    for seed in range(12):
        x, t = inputs(seed)
        torch.testing.assert_close(gradients(ours, x, t), gradients(counted, x, t))
    assert max(len(each.alike) for each in plans) == 2


def test_a_check_beside_what_is_found(binds: list[str]) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        if (t > 9).any():
            raise ValueError("too large")
        rows = (t[:, 0] > 0).nonzero()[:, 0]
        return (x[rows].pow(2)).sum() if t[0, 0] > 0 else x[rows].exp().sum() + x.sum()

    ours = autogen_loss(loss)
    for seed in range(16):
        x, t = inputs(seed)
        torch.testing.assert_close(gradients(ours, x, t), gradients(loss, x, t))
        if seed % 3 == 2:
            with pytest.raises(ValueError, match="too large"):
                ours(x, t + 20)


def test_more_is_found_than_one_program_can_hold(launches: Launches) -> None:
    """Kernels are for all sizes up to a limit: how much is found decides which of a loss's kernels run."""

    def standardised(x: Tensor, t: Tensor) -> Tensor:
        chosen = x[(t > 0).nonzero()[:, 0]]
        return ((chosen - chosen.mean()) / chosen.std()).abs().mean()

    ours, counts = autogen_loss(standardised), []
    for found in (100, 101, 102, 17000, 17001, 17000, 101):
        x, t = torch.randn(17001, requires_grad=True), torch.full((17001,), -1.0)
        t[:found] = 1
        torch.testing.assert_close(gradients(ours, x, t), gradients(standardised, x, t))
        counts.append(launches.take())
    assert counts == [2, 2, 2, 4, 4, 4, 2]
