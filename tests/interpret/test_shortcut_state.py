"""Calls of losses with a state that take a shortcut: they leave everything as torch leaves it."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss
from tests.interpret.stateful import C, Dino, Loss, N, Twins, inputs, tensors_in
from tests.interpret.test_state import (
    Branch,
    Centre,
    CentreInPlace,
    Columns,
    Data,
    Drawn,
    Elsewhere,
    Given,
    Kept,
    Lazy,
    Mixed,
    UpdatedFirst,
    Weights,
)


class Queue(Loss):
    """What a step of torch has made is assigned, is written, and stays what it is."""

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        with torch.no_grad():
            order = t.sort(0).values
            self.last, self.previous = order, order.detach()
            self.bank[:N] = order if len(t) == N else 0.0
        return (x.cumsum(1) * self.bank.mean(0)).sum()


class Tracker(Loss):
    """What the loss itself does not read."""

    def change(self, x: Tensor, t: Tensor) -> None:
        with torch.no_grad():
            self.center.lerp_(t.mean(0, keepdim=True), 0.1)
            self.count += 1


SHORT: list[type[Loss]] = [
    Centre,
    CentreInPlace,
    Columns,
    Data,
    Dino,
    Elsewhere,
    Given,
    Lazy,
    Mixed,
    Queue,
    Tracker,
    UpdatedFirst,
    Weights,
]
"""Losses of which no value decides which way they go."""


@pytest.mark.parametrize("kind", SHORT)
def test_later_calls_are_not_taken_apart(kind: type[Loss], binds: list[str]) -> None:
    twins = Twins(kind())
    for seed in range(10):
        twins.call(seed)
        if seed == 3:
            del binds[:]
    assert not binds


@pytest.mark.parametrize("kind", [*SHORT, Branch, Drawn, Kept])
def test_each_mode_and_geometry(kind: type[Loss], binds: list[str]) -> None:
    twins = Twins(kind())
    for seed in range(30):
        mode = (torch.enable_grad, torch.no_grad)[seed // 2 % 2]
        for each in twins:
            each.train(seed % 5 != 4)
            each.is_updated = each.training
        with mode():
            twins.call(seed, rows=(N, N, 3)[seed % 3])


@pytest.mark.parametrize("kind", [Centre, CentreInPlace, Dino, UpdatedFirst, Mixed, Tracker, Weights, Columns, Queue])
def test_what_is_written_in_place_stays_the_same_tensor(kind: type[Loss], binds: list[str]) -> None:
    """With a version of its own, by which autograd knows that it has changed; what is assigned is another one."""
    results = []
    for each in Twins(kind()):
        found = []
        for seed in range(6):
            before = {
                name: (item, item._version) for name, item in tensors_in(each).items() if isinstance(item, Tensor)
            }
            each(*inputs(seed))
            after = tensors_in(each)
            found.append({
                name: (after[name] is item, after[name] is item and item._version > version)
                for name, (item, version) in before.items()
            })  # fmt: skip
        results.append(found)
    assert results[0] == results[1]
    assert len(binds) < 5


@pytest.mark.parametrize("kind", [Centre, CentreInPlace, Dino])
def test_gradients_after_later_calls(kind: type[Loss], binds: list[str]) -> None:
    """What was saved for backward is as it was, whatever later calls have written to."""
    results = []
    for each in Twins(kind()):
        values = [(each(x, t), x) for x, t in map(inputs, range(8))]
        results.append([torch.autograd.grad(value, [x, each.weight]) for value, x in values])
    torch.testing.assert_close(*results)
    assert len(binds) == 2


@pytest.mark.parametrize("kind", [Centre, CentreInPlace, Dino, Lazy, Mixed, Drawn, Elsewhere, Queue])
def test_second_derivatives_leave_the_state_alone(kind: type[Loss], binds: list[str]) -> None:
    """And are those of the call that they belong to."""
    results = []
    for each in Twins(kind()):
        torch.manual_seed(0)
        values = [(each(x, t), x) for x, t in map(inputs, range(6))]
        if kind in (Mixed, Queue):  # torch has saved the state itself, and finds it changed
            values = values[-1:]
        after = copy.copy(tensors_in(each))
        each.margin = 1.0  # which came later
        each.is_updated = False
        found: list[Tensor] = []
        for value, x in reversed(values):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            (second,) = torch.autograd.grad((gradient**2).sum(), x)
            found += [value, gradient, second]
        now = tensors_in(each)
        assert all(now[name] is item for name, item in after.items() if isinstance(item, Tensor))
        assert each.margin == 1.0 and not each.is_updated
        results.append(found + [each for each in now.values() if isinstance(each, Tensor)])
    torch.testing.assert_close(*results)
    assert len(binds) < 6 or kind is Drawn


def test_a_graph_that_is_retained(binds: list[str]) -> None:
    results = []
    for each in Twins(Dino()):
        for seed in range(4):
            x, t = inputs(seed)
            value = each(x, t)
        found = [torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(3)]
        for _ in range(2):  # each of which runs the loss in torch
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            found += [gradient, *torch.autograd.grad(gradient.pow(2).sum(), x, retain_graph=True)]
        results.append([*found, each.center])
    torch.testing.assert_close(*results)


def test_objects_are_the_same_as_in_torch(binds: list[str]) -> None:
    class Same(Loss):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            loss = (x * t).sum(1)
            self.last, self.previous = loss, loss.detach()
            self.mean = self.other = t.mean()
            self.argument, self.seen, self.apart = x, t.detach(), self.mean.detach()
            return loss

    for each in Twins(Same()):
        for seed in range(6):
            x, t = inputs(seed)
            value = each(x, t)
            assert each.last is value and each.mean is each.other and each.argument is x
            assert each.previous.data_ptr() == value.data_ptr() and not each.previous.requires_grad
            assert each.seen.data_ptr() == t.data_ptr() and each.apart.data_ptr() == each.mean.data_ptr()
            value.sum().backward()
            torch.testing.assert_close(x.grad, t)
    assert len(binds) < 6


def test_what_is_kept_has_memory_of_its_own(binds: list[str]) -> None:
    class Sorted(Loss):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            order = x.sort(0)
            self.last = order.indices.clone()  # which backward reads
            return (order.values * t).sum()

    results = []
    for each in Twins(Sorted()):
        for seed in range(5):
            x, t = inputs(seed)
            value = each(x, t)
            each.last.zero_()
            results.append([value, *torch.autograd.grad(value, x)])
    torch.testing.assert_close(results[:5], results[5:])
    assert len(binds) < 5


def test_what_has_a_graph_of_its_own_keeps_it(binds: list[str]) -> None:
    """On the long way."""

    class Spread(Loss):
        def change(self, x: Tensor, t: Tensor) -> Tensor:
            self.spread = (x**3).mean(0)
            return x.sum()

    results = []
    for each in Twins(Spread()):
        for seed in range(5):
            x, t = inputs(seed)
            total = each(x, t) + (each.spread**2).sum()
            results.append(torch.autograd.grad(total, x)[0])
    torch.testing.assert_close(results[:5], results[5:])
    assert len(binds) == 5


MEAN: Any = torch.zeros(C)


def test_variables_and_containers(binds: list[str]) -> None:
    class Lists(dict[str, Any]):
        """A dictionary of the user's own."""

    mean, table = torch.zeros(C), {"mean": torch.zeros(C)}
    ordered, own = collections.OrderedDict(mean=torch.zeros(C)), Lists(mean=torch.zeros(C))

    def loss(x: Tensor, t: Tensor) -> Tensor:
        global MEAN
        nonlocal mean
        value = (x - mean - MEAN - table["mean"] - ordered["mean"] - own["mean"]).abs().sum()
        mean, MEAN = mean + t.mean(0), t.mean(0)
        table["mean"], ordered["mean"], own["mean"] = t[0] * 1, t[1] * 2, t[2] * 3
        return value

    fused = autogen_loss(loss)
    for seed in range(6):
        x, t = inputs(seed)
        before, wanted = mean, (x - mean - MEAN - table["mean"] - ordered["mean"] - own["mean"]).abs().sum()
        torch.testing.assert_close(fused(x, t), wanted)
        found = [mean, MEAN, table["mean"], ordered["mean"], own["mean"]]
        torch.testing.assert_close(found, [before + t.mean(0), t.mean(0), t[0], t[1] * 2, t[2] * 3])
    assert len(binds) == 2


def test_arguments_are_written(binds: list[str]) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        t.clamp_(0, 1).T[1].mul_(2)
        return ((x - t) ** 2).sum()

    fused = autogen_loss(loss)
    for seed in range(6):
        results = []
        for each in (fused, loss):
            x, t = inputs(seed)
            whole = torch.zeros(N, 2 * C)
            t = whole[:, ::2].copy_(t) if seed % 2 else t
            version = t._version
            value = each(x, t)
            assert t._version > version
            results.append([value, *torch.autograd.grad(value, x), t, whole])
        torch.testing.assert_close(*results)
    assert len(binds) == 2


def test_memory_that_is_shared_is_seen_at_each_call() -> None:
    """Geometry tells nothing of it."""

    @autogen_loss
    def loss(x: Tensor, t: Tensor) -> Tensor:
        t.mul_(2)
        return (x * t).sum()

    for call in range(12):
        is_shared = call > 3 and call % 2 == 1
        t = torch.arange(6.0)
        other = t[:5] if is_shared else t[:5].clone()
        value = loss(other, t[1:])
        wanted = torch.arange(6.0)
        wanted[1:] *= 2
        assert t.equal(wanted)
        assert value == ((wanted if is_shared else torch.arange(6.0))[:5] * wanted[1:]).sum()


def test_elements_that_share_memory() -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        return (x - t.clamp_(0, 1)).abs().mean()

    fused = autogen_loss(loss)
    for call in range(8):
        results = []
        for each in (fused, loss):
            x, t = inputs(call)[0][:3, :3], torch.linspace(-1, 2, 9)
            t = t.unfold(0, 3, 1)[:3] if call % 3 == 2 else t.view(3, 3)
            results.append((each(x, t), t))
        torch.testing.assert_close(*results)


def replaced(loss: Any) -> None:
    loss.center = torch.full((1, C), 0.5)


def loaded(loss: Any) -> None:
    loss.load_state_dict({**loss.state_dict(), "center": torch.full((1, C), 0.25)})


def moved(loss: Any) -> None:
    loss.center = loss.center.double() if loss.center.dtype == torch.float32 else loss.center.float()


def cut_out(loss: Any) -> None:
    loss.center = torch.zeros(3, C)[1:2]


def expanded(loss: Any) -> None:
    loss.center = torch.zeros(C, 1).t()


@pytest.mark.parametrize("kind", [Centre, CentreInPlace, Dino])
@pytest.mark.parametrize("change", [replaced, loaded, moved, cut_out, expanded])
def test_a_buffer_is_replaced(kind: type[Loss], change: Callable[[Any], None], binds: list[str]) -> None:
    twins = Twins(kind())
    for seed in range(12):
        if seed % 4 == 3:
            for each in twins:
                change(each)
        twins.call(seed)


def test_a_copy_has_a_state_of_its_own(binds: list[str]) -> None:
    class Own(Dino):
        """A class that is decorated."""

    ours, plain = autogen_loss(Own)(), Dino()
    for seed in range(4):
        ours(*inputs(seed)), plain(*inputs(seed))
    other, kept = copy.deepcopy(ours), plain.center.clone()
    for seed in range(4, 8):
        other(*inputs(seed)), plain(*inputs(seed))
    torch.testing.assert_close([ours.center, other.center], [kept, plain.center])
