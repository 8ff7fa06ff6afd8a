"""A kernel of backward that cannot be built: torch's formula gives the gradients, and one warning says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.errors import OutOfResources

import autogen.emission.emit
import autogen.scheduling.schedule
from autogen import CompileError, FallbackWarning, autogen_loss, explain, policy
from autogen.errors import InternalError
from autogen.runtime import build
from autogen.runtime.launch import Launch
from tests.interpret.agreement import draw
from tests.interpret.launches import Launches

X, W = draw("real", 6, 8), draw("real", 8, seed=1)


def plain(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).tanh().pow(2).mean(1)


def random(x: Tensor, w: Tensor) -> Tensor:
    return F.dropout(x * w, 0.5).pow(2).mean(1)


def refuse_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton refuses every kernel of a gradient."""
    launch = Launch.__call__

    def refused(self: Launch, *args: Any) -> None:
        if "backward" in self._source.name:
            raise CompileError(self._source.name, cause=RuntimeError("no"))
        launch(self, *args)

    monkeypatch.setattr(Launch, "__call__", refused)


def lack_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has not enough shared memory for a kernel of a gradient."""
    original = Launch.__call__

    class Refused:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            raise OutOfResources(300_000, 232_448, "shared memory")

    def launch(self: Launch, *args: Any) -> None:
        if "backward" in self._source.name:
            self._function = Refused()
        original(self, *args)

    monkeypatch.setattr(Launch, "__call__", launch)


def break_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning fails for gradients that autograd hands over in a layout of their own."""
    schedule = autogen.scheduling.schedule.backward_of

    def broken(plan: Any, buffers: Any, *rest: Any) -> Any:
        if buffers:
            raise RuntimeError("no")
        return schedule(plan, buffers, *rest)

    monkeypatch.setattr(autogen.scheduling.schedule, "backward_of", broken)


def break_printing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant for other sizes cannot be printed."""

    def broken(*args: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(autogen.emission.emit, "emit", broken)


def break_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not take the text of a gradient."""
    module = build._module

    def broken(path: Path, text: str) -> Any:
        return module(path, text + ("\n)" if "backward" in path.name else ""))

    monkeypatch.setattr(build, "_functions", {})
    monkeypatch.setattr(build, "_module", broken)


FAILURES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], type[Exception]]] = {
    "Triton": (refuse_backward, CompileError),
    "device": (lack_memory, CompileError),
    "planning": (break_layouts, InternalError),
    "text": (break_text, CompileError),
}


def gradients(loss: Callable[..., Tensor], *, twice: bool = False) -> list[Tensor]:
    torch.manual_seed(2)
    value = loss(X, W)
    found = list(torch.autograd.grad(value.sum(), (X, W), create_graph=twice))  # an upstream gradient of stride 0
    if twice:
        found += torch.autograd.grad(sum(each.pow(2).sum() for each in found), (X, W))
    return [value.detach(), *found, torch.rand(1)]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("function", [plain, random])
@pytest.mark.parametrize("before", [0, 3])  # of which the last took a shortcut
def test_torch_takes_over(
    before: int,
    function: Callable[..., Tensor],
    failure: str,
    monkeypatch: pytest.MonkeyPatch,
    launches: Launches,
) -> None:
    FAILURES[failure][0](monkeypatch)
    loss, expected = autogen_loss(function), gradients(function)
    for _ in range(before):
        loss(X, W)
    with pytest.warns(FallbackWarning, match="runs in torch") as warned:
        torch.testing.assert_close(gradients(loss), expected)
        assert launches.take() >= 1  # of forward
        torch.testing.assert_close(gradients(loss), expected)
        torch.testing.assert_close(gradients(loss, twice=True), gradients(function, twice=True))
    assert launches.take() == 0
    assert len([each for each in warned if each.category is FallbackWarning]) == 1
    assert explain(loss, X, W).path == "eager"


@pytest.mark.parametrize("failure", FAILURES)
def test_it_raises_when_mandatory(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAILURES[failure][0](monkeypatch)
    with policy("mandatory"):
        value = autogen_loss(plain)(X, W)
    with pytest.raises(FAILURES[failure][1]):
        value.sum().backward()


def test_a_variant_that_cannot_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for longer rows are printed when the first of them comes."""
    loss = autogen_loss(lambda x: x.softmax(1).pow(2).sum())
    loss(X)
    break_printing(monkeypatch)
    longer = draw("real", 2, 40_000)
    torch.testing.assert_close(loss(longer), longer.softmax(1).pow(2).sum())
