"""Losses that write in place, to arguments and buffers, and that assign variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, explain, policy
from tests.interpret.launches import Launches
from tests.interpret.stateful import C, Loss, N, Twins, inputs


def clamps(x: Tensor, t: Tensor) -> Tensor:
    t = t.clamp_(0, 1)
    return (x - t).abs().mean()


def marks(x: Tensor, t: Tensor) -> Tensor:
    t[t < 0] = -1.0
    t[:, 0] += 1
    t.T[1].mul_(2)
    return ((x - t) ** 2).sum()


def halves(x: Tensor, t: Tensor) -> Tensor:
    t.view(-1)[::2].zero_()
    return (x * t.exp()).sum()


ARGUMENTS: list[Callable[[Tensor, Tensor], Tensor]] = [clamps, marks, halves]


@pytest.mark.parametrize("function", ARGUMENTS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "columns", "double"])
def test_arguments_are_written(function: Callable[..., Tensor], layout: str, launches: Launches) -> None:
    loss = autogen_loss(function)
    with policy("mandatory"):
        for seed in range(3):
            results = []
            for each in (loss, function):
                x, t = inputs(seed)
                whole = torch.zeros(N, 2 * C)
                if layout == "transposed":
                    t = t.T.contiguous().T
                elif layout == "columns":
                    t = whole[:, ::2].copy_(t)
                elif layout == "double":
                    t = t.double()
                if layout in ("transposed", "columns") and function is halves:
                    t = t.contiguous()
                version = t._version
                value = each(x, t)
                value.backward()
                assert t._version > version
                results.append((value, x.grad, t, whole))
            assert launches.take() == 2
            for got, wanted in zip(*results, strict=True):
                torch.testing.assert_close(got, wanted)


def test_elements_that_share_memory_are_left_to_torch() -> None:
    loss = autogen_loss(clamps)
    x, _ = inputs(0)
    assert explain(loss, x[:3, :3], torch.zeros(5).unfold(0, 3, 1)).path == "eager"
    assert explain(loss, x[:3, :3], torch.zeros(7).unfold(0, 3, 2)).path == "eager"  # the last one is the next's first
    assert explain(loss, x[:3, :3], torch.zeros(9).view(3, 3).T).path == "generated"


LAST: Any = None


def test_variables_are_assigned() -> None:
    mean = torch.zeros(C)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        global LAST
        nonlocal mean
        value = (x - mean).abs().sum() if LAST is None else (x - LAST).abs().sum()
        mean = mean + t.mean(0)
        LAST = t.mean(0)
        return value

    fused = autogen_loss(loss)
    with policy("mandatory"):
        for seed in range(3):
            x, t = inputs(seed)
            wanted = (x - (mean if LAST is None else LAST)).abs().sum()
            before = mean
            torch.testing.assert_close(fused(x, t), wanted)
            torch.testing.assert_close(mean, before + t.mean(0))
            torch.testing.assert_close(LAST, t.mean(0))


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "uniform_": lambda b, t: b.uniform_(),
    "bernoulli_": lambda b, t: b.bernoulli_(0.5),
    "fill_": lambda b, t: b.fill_(2.0),
    "zero_": lambda b, t: b.zero_(),
    "index_add_": lambda b, t: b.index_add_(0, torch.tensor([0, 2, 2, 1, 0, 1]), t),
    "scatter_": lambda b, t: b.scatter_(0, t.argsort(0), t),
    "index_put_": lambda b, t: b.index_put_((torch.tensor([1, 3]), torch.tensor([0, 2])), t[0, :2]),
    "masked": lambda b, t: b.__setitem__(t > 0, 1.0),
    "out": lambda b, t: torch.add(b, t, alpha=0.5, out=b),
    "copy_": lambda b, t: b.copy_(t.double()),
    "where": lambda b, t: b.copy_(torch.where(b > t, b, t)),
    "rows": lambda b, t: b[2:4].add_(t[:2]),
    "twice": lambda b, t: (b.mul_(2), b.t().add_(t.T), b[0].zero_()),
    "clamp_": lambda b, t: b.clamp_(min=0).sqrt_(),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("is_first", [False, True])
def test_writes(name: str, is_first: bool) -> None:
    class Buffer(Loss):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            if is_first:
                WRITES[name](self.buffer, t)
            value = (x * self.buffer.clone()).sum() + x.exp().mean()
            if not is_first:
                WRITES[name](self.buffer, t)
            return value

    wanted = Buffer()
    wanted.register_buffer("buffer", torch.linspace(-1, 1, N * C).reshape(N, C))
    twins = Twins(wanted)
    with policy("mandatory"):
        for seed in range(3):
            twins.call(seed)


def test_memory_that_is_shared_is_left_to_torch() -> None:
    """A write to one tensor is one to the other, and a later call without such tensors runs on kernels again."""

    @autogen_loss
    def loss(x: Tensor, t: Tensor) -> Tensor:
        t.mul_(2)
        return (x * t).sum()

    for shared in (False, True, False):
        t = torch.arange(6.0)
        other = t[:5] if shared else t[:5].clone()
        assert explain(loss, other, t[1:]).path == ("eager" if shared else "generated")
        value = loss(other, t[1:])
        wanted = torch.arange(6.0)
        wanted[1:] *= 2
        assert t.equal(wanted)
        assert value == ((wanted if shared else torch.arange(6.0))[:5] * wanted[1:]).sum()
    report = explain(loss, t, t)
    assert report.path == "eager" and "share" in report.reason


def test_a_leaf_that_requires_a_gradient_is_torchs_to_refuse() -> None:
    loss = autogen_loss(clamps)
    x, t = inputs(0)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        loss(t, x)


def test_a_tensor_with_a_history_is_written_by_torch() -> None:
    results = []
    for each in (autogen_loss(clamps), clamps):
        x, t = inputs(0)
        history = t.requires_grad_() * 2
        (each(x, history) + history.sum()).backward()
        results.append((x.grad, t.grad, history))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_what_data_is_written_to_keeps_its_version(launches: Launches) -> None:
    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.5, 2.0, -1.0]))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.data.clamp_(0, 1)
            return (x * self.weight).square().mean()

    found = []
    for module in (Clamped(), autogen_loss(Clamped())):
        for _ in range(3):
            penalty = module.weight.square().sum()  # saves the weight for its backward
            (module(torch.ones(4, 3)) + penalty).backward()
        found.append((module.weight.detach(), module.weight.grad))
    torch.testing.assert_close(*found)
    assert launches.take() == 6
