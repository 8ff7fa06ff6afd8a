"""Decorated losses inside functions that the user compiles: one op of the graph around them, on kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from triton.runtime.interpreter import GridExecutor

import autogen
from autogen import autogen_loss, losses

BACKENDS = ("eager", "aot_eager", "inductor")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many kernels were launched since it was last asked."""
    count, launch = [0], GridExecutor.__call__

    def counted(executor: GridExecutor, *args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return launch(executor, *args, **kwargs)

    def take() -> int:
        taken, count[0] = count[0], 0
        return taken

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    return take


def formula(prediction: Tensor, target: Tensor, eps: float = 1e-3) -> Tensor:
    return torch.sqrt((prediction - target) ** 2 + eps).mean()


class Weighted(nn.Module):
    """A loss with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.linspace(0.5, 2, 5))

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return (self.weight * (prediction - target).abs()).mean()


@autogen_loss
class DecoratedWeighted(Weighted):
    pass


class Trainer:
    """An object whose method is a loss."""

    scale = 2.0

    def plain(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.scale * formula(prediction, target)

    loss = autogen_loss(plain)


def floats(rows: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 5, requires_grad=True), torch.rand(rows, 5)


def labels(rows: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 5, requires_grad=True), torch.randint(0, 5, (rows,))


def compare(run: Callable[..., Any], reference: Callable[..., Any], *args: Any) -> None:
    """Check results, and the gradients of the arguments that have one."""
    found = []
    for function in (run, reference):
        fresh = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in args]
        result = function(*fresh)
        results = [each for each in (result if isinstance(result, tuple) else (result,)) if isinstance(each, Tensor)]
        differentiable = [each.sum() for each in results if each.requires_grad]
        if differentiable:
            sum(differentiable).backward()
        found.append((result, [x.grad for x in fresh if isinstance(x, Tensor)]))
    torch.testing.assert_close(*found)


LOSSES = {
    "function": (autogen_loss(formula), formula, floats),
    "class": (DecoratedWeighted(), Weighted(), floats),
    "instance": (autogen_loss(nn.SmoothL1Loss(beta=0.7)), nn.SmoothL1Loss(beta=0.7), floats),
    "method": (Trainer().loss, Trainer().plain, floats),
    "BCEWithLogitsLoss": (losses.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(), floats),
    "CrossEntropyLoss": (
        losses.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        labels,
    ),
    "FocalLoss": (losses.FocalLoss(), losses.FocalLoss(use_autogen=False), labels),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LOSSES)
def test_is_one_launch_each_way(name: str, backend: str, launched: Callable[[], int]) -> None:
    loss, reference, arguments = LOSSES[name]
    step = torch.compile(lambda x, target: 3 * loss(2 * x, target), fullgraph=True, backend=backend)
    for rows in (6, 9, 13):  # the second size is a symbol from then on
        x, target = arguments(rows)
        compare(step, lambda x, target: 3 * reference(2 * x, target), x, target)
        assert launched() == 2
    with torch.no_grad():
        compare(step, lambda x, target: 3 * reference(2 * x, target), x, target)
    assert launched() == 1
