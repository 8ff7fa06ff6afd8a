"""On a real GPU: losses as ops in the graphs of Inductor, and in CUDA graphs made of these.

torch's own loss, compiled in the same way, is the judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.losses
from autogen.dynamo import opaque

pytestmark = pytest.mark.hardware

MODES = [None, "reduce-overhead"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(5)).cuda()


def scores(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(6)).cuda()


CALLS: dict[str, tuple[dict[str, Any], Callable[[], Tensor]]] = {
    "CrossEntropyLoss": ({"label_smoothing": 0.1}, lambda: labels(1000, 256)),
    "BCEWithLogitsLoss": ({}, lambda: scores(256, 1000)),
    "SmoothL1Loss": ({"beta": 0.5}, lambda: scores(256, 1000)),
}


class Model(nn.Module):
    """Layers, and the loss of what they compute."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 1000)).cuda()
        self.loss = loss

    def forward(self, data: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.layers(data), target)


def steps(loss: nn.Module, mode: str | None, target: Tensor, count: int = 5) -> list[Tensor]:
    """The losses of some steps of training, and the parameters after them."""
    model = Model(loss)
    run = torch.compile(model, fullgraph=True, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values = []
    for seed in range(count):
        optimizer.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        value = run(torch.randn(256, 64, generator=torch.Generator().manual_seed(seed)).cuda(), target)
        value.backward()
        values.append(value.detach().clone())
        optimizer.step()
    return [*values, *(each.detach() for each in model.parameters())]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_training(name: str, mode: str | None) -> None:
    options, target = CALLS[name]
    expected = steps(getattr(nn, name)(**options), mode, target())
    torch.compiler.reset()
    found = steps(getattr(autogen.losses, name)(**options), mode, target())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CALLS)
def test_launches(name: str, mode: str | None) -> None:
    """Counted by the profiler: one kernel each way, replayed ones too."""
    options, target = CALLS[name]
    model = Model(getattr(autogen.losses, name)(**options))
    run = torch.compile(model, fullgraph=True, mode=mode)
    data, wanted = torch.randn(256, 64, device="cuda"), target()

    def step() -> None:
        model.zero_grad()  # a graph's gradients are overwritten by its next replay: nothing may be added to them
        torch.compiler.cudagraph_mark_step_begin()
        run(data, wanted).backward()

    for _ in range(4):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    ours = {"CrossEntropyLoss": "cross_entropy", "BCEWithLogitsLoss": "bce_with", "SmoothL1Loss": "smooth_l1"}[name]
    kernels = sorted(event.name for event in profile.events() if event.name.startswith(ours))
    assert len(kernels) == 2 and "backward" in kernels[0] and "forward" in kernels[1], kernels


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_batch_size_that_changes(dynamic: bool | None) -> None:
    ours, theirs = autogen.losses.CrossEntropyLoss(), nn.CrossEntropyLoss()
    run = torch.compile(ours, fullgraph=True, dynamic=dynamic)
    for n in (64, 100, 1, 4096, 7):
        x = torch.randn(n, 100, generator=torch.Generator().manual_seed(n)).cuda().requires_grad_()
        found = torch.autograd.grad(run(x, labels(100, n)), x)
        torch.testing.assert_close(found, torch.autograd.grad(theirs(x, labels(100, n)), x), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["InfoNCELoss", "SupConLoss"])
def test_handwritten_kernels(name: str, mode: str | None) -> None:
    """The value and gradient that the loss has outside of graphs, for batches of several sizes."""
    loss, layer = getattr(autogen.losses, name)(), nn.Linear(64, 128, device="cuda")
    run = torch.compile(lambda x, other: loss(layer(x), other), fullgraph=True, mode=mode)
    for n in (64, 100, 1024):
        x = torch.randn(n, 64, generator=torch.Generator().manual_seed(n)).cuda()
        other = torch.randn(n, 128, generator=torch.Generator().manual_seed(0)).cuda()
        other = other if name == "InfoNCELoss" else labels(10, n)
        torch.compiler.cudagraph_mark_step_begin()
        value = run(x, other)
        found = [value.detach().clone(), *torch.autograd.grad(value, layer.weight)]
        expected = loss(layer(x), other)
        torch.testing.assert_close(
            found, [expected.detach(), *torch.autograd.grad(expected, layer.weight)], rtol=1e-3, atol=1e-5
        )
    assert any(token.startswith(name.removesuffix("Loss")) for token in opaque._registered)
