"""Calls of losses with a state that take a shortcut: in other modes, with floats and flags; that fail; in threads."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import CompileError, autogen_loss, explain, policy
from autogen.calls.surroundings import Surroundings
from autogen.errors import GraphChangedError
from autogen.runtime.prepared import Direction
from tests.interpret.stateful import Dino, Loss, Twins, assert_same, inputs
from tests.interpret.test_state import Centre, CentreInPlace, Given, Lazy


def test_modes(binds: list[str]) -> None:
    twins = Twins(Dino())
    for seed in range(12):
        for each in twins:
            x, t = inputs(seed)
            mode = torch.inference_mode() if seed % 3 == 1 else torch.autocast("cpu", enabled=seed % 3 == 2)
            with mode:
                each(x, t)
        assert_same(twins.loss, twins.wanted)


def test_policies(binds: list[str]) -> None:
    twins = Twins(Dino())
    for seed in range(9):
        with policy("disabled" if seed % 3 == 2 else "mandatory"):
            twins.call(seed)
    with policy("aggressive"):
        twins.call(9)


def test_explain_changes_nothing(binds: list[str]) -> None:
    twins = Twins(Dino())
    for seed in range(4):
        twins.call(seed)
    assert explain(twins.loss, *inputs(4)).path == "generated"
    assert_same(twins.loss, twins.wanted)
    twins.call(5)


def test_several_results_floats_and_branches(binds: list[str]) -> None:
    class Annealed(Loss):
        def __init__(self) -> None:
            super().__init__()
            self.momentum = 0.5

        def forward(self, x: Tensor, t: Tensor, scale: float = 1.0) -> Any:
            if self.count > 2:
                scale = scale * 2
            with torch.no_grad():
                self.count.add_(1)
                self.center.mul_(self.momentum).add_(t.mean(0, keepdim=True))
                self.last = t.sum() * scale
            first = ((x - self.center.clone()) ** 2 * self.weight).mean() * scale
            return {"loss": first, "rows": (x @ t.t()).exp().sum(1), "largest": t.max(), "n": len(x)}

    results: list[list[Any]] = []
    for each in Twins(Annealed()):
        found = []
        for call in range(16):
            each.momentum = 0.5 + call / 100
            x, t = inputs(call)
            value = each(x, t, 1 + call / 10)
            total = value["loss"] + (value["rows"].sum() if call % 2 else 0.0)
            found.append([value, torch.autograd.grad(total, [x, each.weight]), each.center.clone(), each.last])
            if call == 8:
                del binds[:]
        results.append(found)
    torch.testing.assert_close(*results)
    assert len(binds) < 8


def test_second_derivatives_of_floats_that_vary(binds: list[str]) -> None:
    class Annealed(Loss):
        def __init__(self) -> None:
            super().__init__()
            self.margin = 0.5

        def forward(self, x: Tensor, t: Tensor, power: float = 1.0) -> Tensor:
            value = ((x + self.margin) ** 3 * power * self.center.clone()).sum()
            with torch.no_grad():
                self.center.add_(t.mean(0, keepdim=True)).mul_(self.margin)
            return value

    results = []
    for each in Twins(Annealed()):
        values = []
        for call in range(9):
            each.margin = 0.5 + call / 10
            x, t = inputs(call)
            values.append((each(x, t, 1.0 + call), x))
        found = []
        for value, x in values:
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            found.append(torch.autograd.grad(gradient.sum(), x)[0])
        assert each.margin == 0.5 + 8 / 10
        results.append(found)
    torch.testing.assert_close(*results)


def test_a_flag_that_alternates(binds: list[str]) -> None:
    """Each call is replayed with the flag that it has found."""

    class Alternating(Loss):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            value = ((x * self.center.exp()) ** (3 if self.is_started else 2)).sum()
            self.is_started = not self.is_started
            self.center = self.center * 0.5 + t.mean(0, keepdim=True)
            return value

    results = []
    for each in Twins(Alternating()):
        values = [(each(x, t), x) for x, t in map(inputs, range(9))]
        found = []
        for value, x in values:
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            found.append([value, gradient, *torch.autograd.grad(gradient.sum(), x)])
        results.append(found)
        assert each.is_started
    torch.testing.assert_close(*results)
    assert len(binds) < 6


def test_a_launch_that_fails_changes_nothing(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Dino):
        """A class whose kernels fail."""

    twins = Twins(Own())
    for seed in range(4):
        twins.call(seed)
    before = twins.loss.center.clone()
    version = twins.loss.center._version

    def fail(*args: Any) -> Any:
        raise CompileError("forward", cause=ValueError("too large"))

    with monkeypatch.context() as patch:
        patch.setattr(Direction, "__call__", fail)
        patch.setattr("autogen.runtime.compiled.CompiledLoss.run_forward", fail)
        with pytest.raises(CompileError):
            twins.loss(*inputs(4))
        assert twins.loss.center.equal(before) and twins.loss.center._version == version
        with policy("default"):
            twins.call(4)  # in torch, once
    with policy("default"):
        twins.call(5)


def test_a_backward_that_does_not_compile_is_torchs(binds: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Dino):
        """A class whose kernels fail."""

    results = []
    for each in Twins(Own()):
        values = [(each(x, t), x) for x, t in map(inputs, range(5))]

        def fail(*args: Any) -> Any:
            raise CompileError("backward", cause=ValueError("too large"))

        monkeypatch.setattr("autogen.runtime.prepared.Prepared.backward", fail)
        with policy("default"):
            results.append([torch.autograd.grad(value, x)[0] for value, x in values] + [each.center])
    torch.testing.assert_close(*results)


def test_one_graph_for_all_calls(binds: list[str]) -> None:
    plain, ours = Dino(), autogen_loss(Dino(), static_graph=True)
    for seed in range(5):
        torch.testing.assert_close(ours(*inputs(seed)), plain(*inputs(seed)))
    torch.testing.assert_close(ours.center, plain.center)
    assert len(binds) == 2
    ours.is_updated = False
    with pytest.raises(GraphChangedError):
        ours(*inputs(5))
    again = autogen_loss(Dino(), retrace="every")
    del binds[:]
    for seed in range(5):
        again(*inputs(seed))
    torch.testing.assert_close(again.center, plain.center)
    assert len(binds) == 5


@pytest.mark.parametrize("kind", [Centre, Dino, Given, Lazy])
def test_earlier_calls_and_modules_are_forgotten(kind: type[Loss], binds: list[str]) -> None:
    loss = autogen_loss(type("Own", (kind,), {}))()
    seen: list[weakref.ref[Any]] = []
    for seed in range(8):
        x, t = inputs(seed)
        seen.append(weakref.ref(x))
        value = loss(x, t)
        value.backward()
        del x, t
    gc.collect()
    assert sum(each() is not None for each in seen) <= 1
    seen = [weakref.ref(loss), weakref.ref(loss.center)]
    del loss, value
    gc.collect()
    assert [each() for each in seen] == [None, None]


def test_a_tensor_that_is_not_read_is_not_connected(binds: list[str]) -> None:
    """Such as what was kept of an earlier call, whose graph is gone; with a state and without."""
    for kind in (Loss, CentreInPlace):
        results = []
        for each in Twins(kind()):
            for seed in range(5):
                y = torch.ones(3, requires_grad=True)
                each.last = (y**2).sum()
                each.last.backward()
                x, t = inputs(seed)
                each(x, t).backward()
                results.append([x.grad, y.grad])
        torch.testing.assert_close(results[:5], results[5:])
    assert len(binds) < 8


def test_what_is_assigned_while_another_thread_replays_stays(binds: list[str]) -> None:
    """The replay takes out what it has put in, and puts back what was there."""
    twins = Twins(Centre())
    for seed in range(4):
        twins.call(seed)
    x, t = inputs(4)
    value = twins.loss(x, t)
    twins.wanted(x, t)
    begun, launched = threading.Event(), threading.Event()
    swapped, call = Surroundings.swapped, Direction.__call__

    def launch(*args: Any) -> Any:
        launched.set()
        assert begun.wait(10)
        return call(*args)

    @contextlib.contextmanager
    def swapped_for_long(*args: Any) -> Iterator[None]:
        assert launched.wait(10)
        with swapped(*args):
            begun.set()
            time.sleep(0.3)
            yield

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as other:
        patch.setattr(Direction, "__call__", launch)
        patch.setattr(Surroundings, "swapped", swapped_for_long)
        second = other.submit(twins.loss, *inputs(5))
        torch.autograd.grad(value, x, create_graph=True)
        second.result()
    twins.wanted(*inputs(5))
    assert_same(twins.loss, twins.wanted)


def test_a_module_in_a_module(binds: list[str]) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.weight = Dino(), nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            return self.inner(x, t) * self.weight

    twins = Twins(Outer())
    for seed in range(6):
        twins.call(seed)
    assert len(binds) == 2
