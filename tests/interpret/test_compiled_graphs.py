"""Losses inside graphs of `torch.compile`: as ops that launch their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen
import autogen.losses
from autogen import autogen_loss
from autogen.dynamo import opaque
from autogen.runtime import prepared
from tests.interpret.compiled import LOWERING, UNTRACED, agree, compiled, labels, outcome, plain, x
from tests.interpret.launches import Launches
from tests.interpret.pairs import FIRST, pair
from tests.interpret.table import Row

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


@pytest.mark.parametrize("backend", LOWERING)
@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.loss)
def test_losses_of_torch(row: Row, backend: str, launches: Launches) -> None:
    ours, theirs, inputs = pair(row)
    if row.loss in UNTRACED:
        for loss in (theirs, ours):
            with pytest.raises(torch._dynamo.exc.UserError):
                compiled(loss, backend)(*inputs)
        return
    expected = outcome(compiled(theirs, backend), *inputs[:1], *inputs[1:])
    launches.take()
    value = compiled(ours, backend)(*inputs)
    assert launches.take() == 1
    gradients = torch.autograd.grad(value.sum(), inputs[0])
    assert launches.take() == 1
    torch.testing.assert_close([value.detach(), *gradients], expected[:2])


class Model(nn.Module):
    """A model that computes its own loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))
        self.loss = loss

    def forward(self, data: Tensor, *target: Tensor) -> Tensor:
        return self.loss(self.layers(data), *target) + 0.01 * self.layers[0].weight.square().sum()


def steps(loss: nn.Module, backend: str | None, *target: Tensor) -> list[Tensor]:
    """The parameters after two steps of training, whole in a graph but for the optimizer."""
    model = Model(loss)
    run = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(2):
        optimizer.zero_grad()
        run(x(7, 6, seed=k).detach(), *target).backward()
        optimizer.step()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize(
    "name, options, target",
    [
        ("CrossEntropyLoss", {"label_smoothing": 0.1, "weight": torch.linspace(0.5, 1.5, 5)}, labels(5, 7)),
        ("BCEWithLogitsLoss", {}, torch.rand(7, 5)),
        ("SmoothL1Loss", {"beta": 0.5}, torch.rand(7, 5)),
        ("KLDivLoss", {"reduction": "batchmean"}, torch.rand(7, 5)),
    ],
)
def test_training_in_inductor(name: str, options: Any, target: Tensor, launches: Launches) -> None:
    expected = steps(getattr(nn, name)(**options), None, target)
    launches.take()
    found = steps(getattr(autogen.losses, name)(**options), "inductor", target)
    assert launches.take() == 4
    torch.testing.assert_close(found, expected)


@autogen_loss
class Half(nn.MSELoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target) / 2


@autogen_loss
class Quarter(Half):
    """Derived from a decorated class, of which it calls the decorated method."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target) / 2


@pytest.mark.parametrize("backend", LOWERING)
def test_losses_that_are_made_in_the_graph(backend: str, launches: Launches) -> None:
    def step(a: Tensor, b: Tensor) -> Tensor:
        smooth = autogen.losses.SmoothL1Loss(beta=0.5)(a, b)
        return smooth + Quarter()(a, b) + autogen.losses.L1Loss(use_autogen=False)(a, b)

    run = compiled(step, backend)
    for rows in (3, 4):
        agree(launches, run, plain(step), x(rows, 4), x(rows, 4, seed=1), expected=4)


def test_classes_derived_from_decorated_ones(launches: Launches) -> None:
    loss = Quarter()
    agree(launches, compiled(lambda a, b: loss(a, b)), plain(loss), x(3, 4), x(3, 4, seed=1))


# The ops.


class Ops:
    """The calls of the two ops that a graph makes."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.forward = [node for node in graph.graph.nodes if node.target is torch.ops.autogen.forward.default]
        self.backward = [node for node in graph.graph.nodes if node.target is torch.ops.autogen.backward.default]
        self.others = [
            node for node in graph.graph.nodes if node.op == "call_function" and "autogen" not in str(node.target)
        ]


def lowered(loss: Callable[..., Tensor], *inputs: Tensor) -> list[Ops]:
    """The graphs that a backend is given, forward and backward."""
    from torch._dynamo.backends.common import aot_autograd

    found: list[Ops] = []

    def keep(graph: torch.fx.GraphModule, example: Any) -> Any:
        found.append(Ops(graph))
        return graph

    torch.compiler.reset()
    outcome(torch.compile(loss, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep), fullgraph=True), *inputs)
    return found


def test_what_is_in_the_graphs() -> None:
    """One op forward, one backward, and nothing of the formula."""
    forward, backward = lowered(autogen.losses.CrossEntropyLoss(), x(6, 5), labels(5, 6))
    assert (len(forward.forward), len(forward.backward)) == (1, 0)
    assert (len(backward.forward), len(backward.backward)) == (0, 1)
    assert {str(node.target) for node in (*forward.others, *backward.others)} <= {"<built-in function getitem>"}


def test_tokens() -> None:
    """The same kernels have the same token, after a reset too; others have another."""
    ours = autogen.losses.CrossEntropyLoss()
    tokens = [lowered(ours, x(n, 5), labels(5, n))[0].forward[0].args[1] for n in (6, 6, 7)]
    assert len(set(tokens)) == 1
    other = lowered(autogen.losses.CrossEntropyLoss(label_smoothing=0.1), x(6, 5), labels(5, 6))[0].forward[0].args[1]
    assert other != tokens[0] and "cross_entropy_loss" in other
    with pytest.raises(RuntimeError, match="of the process that compiled this graph"):
        torch.ops.autogen.forward([x(6, 5)], f"{other}0")


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "SmoothL1Loss"])
def test_opcheck(name: str) -> None:
    inputs = [x(6, 5), labels(5, 6) if name == "CrossEntropyLoss" else x(6, 5, seed=1)]
    forward = lowered(getattr(autogen.losses, name)(), *inputs)[0]
    token = forward.forward[0].args[1]
    results = torch.ops.autogen.forward(inputs, token)
    assert len(results) == (4 if name == "CrossEntropyLoss" else 1)  # with maxima, sums and a count for backward
    torch.library.opcheck(torch.ops.autogen.forward.default, (inputs, token))
    plain = [each.detach() for each in inputs]
    arguments = (plain, [each.detach() for each in results[1:]], [torch.ones_like(results[0])], token)
    torch.library.opcheck(torch.ops.autogen.backward.default, arguments)


def test_second_derivatives() -> None:
    """Those that the graph itself asks for: torch differentiates no compiled graph twice from outside."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("no graph of torch's has gradients")

    def penalised(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(a: Tensor, b: Tensor) -> Tensor:
            value = loss(a.sin(), b)
            (gradient,) = torch.autograd.grad(value, a, create_graph=True)
            return value + gradient.square().sum()

        return run

    ours = compiled(penalised(autogen.losses.SmoothL1Loss()))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = outcome(ours, x(3, 4), x(3, 4, seed=1).detach())
    torch.testing.assert_close(found, outcome(penalised(nn.SmoothL1Loss()), x(3, 4), x(3, 4, seed=1).detach()))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_kernel_that_triton_refuses(
    direction: str, monkeypatch: pytest.MonkeyPatch, launches: Launches, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's formula takes over, as outside of graphs."""
    ours, theirs = autogen_loss(nn.CrossEntropyLoss()), nn.CrossEntropyLoss()  # a loss of this test alone

    def refuse(*args: Any) -> Any:
        raise autogen.CompileError("cross_entropy_loss", cause=ValueError("no registers"))

    refusing = type("Refusing", (prepared.Prepared,), {"__init__": lambda *args, **options: None})
    monkeypatch.setattr(opaque, "Prepared", refusing if direction == "forward" else prepared.Prepared)
    monkeypatch.setattr(refusing, "forward", refuse, raising=False)
    if direction == "backward":
        monkeypatch.setattr(prepared.Prepared, "backward", refuse)
    run = compiled(lambda a, b: ours(a * 2, b))
    for expected in (int(direction == "backward"), 0):
        agree(launches, run, lambda a, b: theirs(a * 2, b), x(60, 5), labels(5, 60), expected=expected)
    assert caplog.text.count("cross_entropy_loss runs in torch") == 1


def test_the_formula_of_a_loss_that_returns_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opaque.OpaqueLoss, "_launches", lambda *_: None)

    def loss(a: Tensor) -> tuple[Tensor, int, Tensor]:
        return a.square().mean(), 2 * a.shape[0], a.abs().sum(1)

    run = compiled(autogen_loss(loss), dynamic=True)
    torch.testing.assert_close(run(x(4, 5)), loss(x(4, 5)))
    torch.testing.assert_close(outcome(lambda a: run(a)[2], x(4, 5)), outcome(lambda a: loss(a)[2], x(4, 5)))


def branching(x: Tensor, y: Tensor) -> Tensor:
    """A loss that is called between two graphs."""
    error = x - y
    return error.square().mean() if error.sum() > -1e9 else error.abs().mean()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("loss", [autogen.losses.MSELoss(), autogen_loss(branching)], ids=["op", "between"])
def test_backward_within_compiled_code(loss: Any, backend: str, launches: Launches) -> None:
    @torch.compile(backend=backend)
    def step(x: Tensor, y: Tensor) -> Tensor:
        value = loss(x * 2.0, y)
        value.backward()
        return value

    x, y = torch.randn(6, 5), torch.rand(6, 5)
    for _ in range(3):  # which the second and the third time takes a shortcut
        launches.take()
        own, their = (x.clone().requires_grad_() for _ in range(2))
        value, expected = step(own, y), nn.functional.mse_loss(their * 2.0, y)
        expected.backward()
        torch.testing.assert_close((value, own.grad), (expected, their.grad))
        assert launches.take() == 2
