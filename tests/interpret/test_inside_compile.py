"""Decorated losses inside functions that the user compiles: each is one op of the graph around it, on kernels."""

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

Function = Callable[..., Any]

BACKENDS = ("eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow))
on_all_backends = pytest.mark.parametrize("backend", BACKENDS)


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


def floats(rows: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 5, requires_grad=True), torch.rand(rows, 5)


def labels(rows: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 5, requires_grad=True), torch.randint(0, 5, (rows,))


def compare(run: Function, reference: Function, *args: Any) -> None:
    """Check results, and the gradients of the arguments that have one."""
    found = []
    for function in (run, reference):
        fresh = [each.detach().requires_grad_(each.requires_grad) for each in args]
        result = function(*fresh)
        results = [each for each in (result if isinstance(result, tuple) else (result,)) if isinstance(each, Tensor)]
        differentiable = [each.sum() for each in results if each.requires_grad]
        if differentiable:
            sum(differentiable).backward()
        found.append((result, [each.grad for each in fresh]))
    torch.testing.assert_close(*found)


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


SMOOTHED = {"label_smoothing": 0.1}
LOSSES = {
    "function": (autogen_loss(formula), formula, floats),
    "class": (DecoratedWeighted(), Weighted(), floats),
    "instance": (autogen_loss(nn.SmoothL1Loss(beta=0.7)), nn.SmoothL1Loss(beta=0.7), floats),
    "method": (Trainer().loss, Trainer().plain, floats),
    "BCEWithLogitsLoss": (losses.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(), floats),
    "CrossEntropyLoss": (losses.CrossEntropyLoss(**SMOOTHED), nn.CrossEntropyLoss(**SMOOTHED), labels),
    "FocalLoss": (losses.FocalLoss(), losses.FocalLoss(use_autogen=False), labels),
}


@on_all_backends
@pytest.mark.parametrize("name", LOSSES)
def test_is_one_launch_each_way(name: str, backend: str, launched: Callable[[], int]) -> None:
    loss, reference, arguments = LOSSES[name]
    run = torch.compile(lambda x, target: 3 * loss(2 * x, target), fullgraph=True, backend=backend)
    for rows in (6, 9, 13):  # the second size makes it a symbol
        compare(run, lambda x, target: 3 * reference(2 * x, target), *arguments(rows))
        assert launched() == 2
    with torch.no_grad():
        compare(run, lambda x, target: 3 * reference(2 * x, target), *arguments())
    assert launched() == 1


def several(x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (x - 1).abs().mean(), ((x - target) ** 2).sum(-1).sqrt(), x.detach().mean()


def of_rows(x: Tensor, target: Tensor, rows: int) -> Tensor:
    return ((x - target) ** 2).view(rows, -1).sum(-1).sqrt().mean()


def with_number(x: Tensor, target: Tensor) -> tuple[Tensor, float]:
    return formula(x, target), (x > target).sum().item()


def with_autocast(loss: Function, x: Tensor, target: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss(x @ torch.eye(5), target)  # of a bfloat16


def with_breaks(loss: Function, x: Tensor, target: Tensor) -> Any:
    x = x.sin()
    torch._dynamo.graph_break()
    found = loss(x, target)
    torch._dynamo.graph_break()
    return found * 2


PART = autogen_loss(formula)
STEPS: dict[str, tuple[Function, Function, Function, int]] = {
    "two": (formula, autogen_loss(formula), lambda loss, x, t: loss(x, t) + loss(2 * x, t), 4),
    "one_in_another": (
        lambda x, t: formula(x, t) + (x * t).mean(),
        autogen_loss(lambda x, t: PART(x, t) + (x * t).mean()),
        lambda loss, x, t: loss(x.sin(), t),
        2,
    ),
    "several_results": (several, autogen_loss(several), lambda loss, x, t: loss(t + x, 2 * x), 2),
    "first_of_several": (several, autogen_loss(several), lambda loss, x, t: loss(t + x, 2 * x)[::2], 2),
    "sizes": (
        *(of_rows, autogen_loss(of_rows)),
        *(lambda loss, x, t: loss(x[1:].flatten(), t[:-1].flatten(), x.shape[0] - 1), 2),
    ),
    "strides": (formula, autogen_loss(formula), lambda loss, x, t: loss(2 * t.t(), x.t()), 2),
    "autocast": (formula, autogen_loss(formula), with_autocast, 2),
    "breaks_around": (formula, autogen_loss(formula), with_breaks, 2),
    "breaks_inside": (with_number, autogen_loss(with_number), lambda loss, x, t: loss(2 * x, t), 2),
}


@on_all_backends
@pytest.mark.parametrize("name", STEPS)
def test_step(name: str, backend: str, launched: Callable[[], int]) -> None:
    reference, loss, step, count = STEPS[name]
    run = torch.compile(lambda x, target: step(loss, x, target), fullgraph="breaks" not in name, backend=backend)
    for rows in (6, 9):
        compare(run, lambda x, target: step(reference, x, target), *floats(rows))
        assert launched() == count


@on_all_backends
def test_training_is_as_in_torch(backend: str, launched: Callable[[], int]) -> None:
    def train(loss: Function, **options: Any) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(5, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        step = torch.compile(lambda x, target: loss(model(x), target), **options)
        for _ in range(3):
            optimizer.zero_grad()
            step(torch.randn(6, 5), torch.rand(6, 5)).backward()
            optimizer.step()
        return [each.detach() for each in model.parameters()]

    found = train(autogen_loss(formula), fullgraph=True, backend=backend)
    torch.testing.assert_close(found, train(formula, disable=True))
    assert launched() == 6


def test_policies(launched: Callable[[], int]) -> None:
    loss, plain = autogen_loss(formula), losses.L1Loss(use_autogen=False)
    run = torch.compile(lambda x, target: loss(2 * x, target), fullgraph=True, backend="aot_eager")
    for policy, count in (("disabled", 0), ("default", 2), ("mandatory", 2)):
        with autogen.policy(policy):
            compare(run, lambda x, target: formula(2 * x, target), *floats())
        assert launched() == count
    compare(torch.compile(plain, fullgraph=True, backend="aot_eager"), F.l1_loss, *floats())
    assert launched() == 0


REFUSED = {
    "random": (lambda x, t: formula(F.dropout(x, 1.0), t), floats(), "it draws random numbers"),
    "number": (with_number, floats(), "it returns a number"),
    "view": (lambda x, t: (formula(x, t), x.view(-1)), floats(), "or returns a view"),
    "complex": (
        lambda x, t: (x - t).abs().mean(),
        (torch.randn(6, dtype=torch.complex64, requires_grad=True), torch.randn(6)),
        "reads a tensor that is complex64",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_torch_runs_what_has_no_op(name: str, launched: Callable[[], int]) -> None:
    """Where kernels are mandatory, it is an error."""
    reference, given, why = REFUSED[name]
    loss = autogen_loss(reference)
    run = torch.compile(lambda x, target: loss(2 * x, target), fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compare(run, lambda x, target: reference(2 * x, target), *given)
        assert launched() == 0
        with autogen.policy("mandatory"), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=why) as caught:
            run(*given)
    assert isinstance(caught.value.inner_exception, autogen.AutogenError)


class Counting(nn.Module):
    """A loss that sets attributes, which no graph inside of another does, and one that writes to a buffer."""

    def __init__(self, is_attribute: bool) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.is_attribute = is_attribute

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        if self.is_attribute:
            self.calls = self.calls + 1
        else:
            self.calls.add_(1)
        return formula(x, target)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("is_attribute", [False, True])
@on_all_backends
def test_state(backend: str, is_attribute: bool, fullgraph: bool) -> None:
    loss = autogen_loss(Counting(is_attribute))
    run = torch.compile(lambda x, target: loss(2 * x, target), fullgraph=fullgraph, backend=backend)
    for calls in (1, 2):
        compare(run, lambda x, target: formula(2 * x, target), *floats())
        assert loss.calls == calls


@on_all_backends
def test_transforms_are_torchs(backend: str) -> None:
    def curvature(loss: Function) -> Function:
        def run(x: Tensor, target: Tensor) -> Tensor:
            (slope,) = torch.autograd.grad(loss(x, target), x, create_graph=True)
            return torch.autograd.grad(slope.square().sum(), x)[0]

        return run

    for transform in (curvature, torch.vmap):
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            run = torch.compile(transform(autogen_loss(formula)), fullgraph=True, backend=backend)
            compare(run, transform(formula), *floats())


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_of_torchs_operations(strict: bool) -> None:
    class Model(nn.Module):
        loss = staticmethod(autogen_loss(formula))

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return self.loss(x, target)

    graph = str(torch.export.export(Model(), floats(), strict=strict).graph)
    assert "aten.sqrt" in graph and "autogen" not in graph
