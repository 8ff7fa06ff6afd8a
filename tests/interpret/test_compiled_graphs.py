"""Losses inside graphs of `torch.compile`: kernels where they can run, torch's formula elsewhere, never another value."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import autogen
import autogen.losses
from autogen import autogen_loss, opaque, policy
from tests.interpret.launches import Launches
from tests.interpret.table import ROWS, Row
from tests.interpret.test_transforms import FIRST, pair

pytestmark = pytest.mark.filterwarnings("ignore")

UNTRACED = {"GaussianNLLLoss"}  # torch's, too: it takes a number into Python
LOWERING = ["eager", "aot_eager"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def labels(classes: int, *shape: int) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(5))


def compiled(loss: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Callable[..., Any]:
    return torch.compile(loss, backend=backend, fullgraph=True, **options)


def outcome(loss: Callable[..., Tensor], *inputs: Any) -> list[Tensor]:
    """The value, and the gradients of all inputs that ask for one."""
    value = loss(*inputs)
    wanted = [each for each in inputs if isinstance(each, Tensor) and each.requires_grad]
    return [value.detach(), *torch.autograd.grad(value.sum(), wanted)]


def agree(launches: Launches, ours: Any, theirs: Any, *inputs: Any, expected: int = 2) -> None:
    """Equal values and gradients, in so many launches."""
    wanted = outcome(theirs, *inputs)
    launches.take()
    found = outcome(ours, *inputs)
    assert launches.take() == expected
    torch.testing.assert_close(found, wanted)


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


INDUCTOR = [row for row in FIRST if row.loss in ("CrossEntropyLoss", "SmoothL1Loss", "BCEWithLogitsLoss", "KLDivLoss")]


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


# What a loss reads: Dynamo looks at it before each call.


@autogen_loss
class Margin(nn.Module):
    """A loss with a number, a buffer, a parameter and a plain tensor."""

    def __init__(self, margin: float = 0.5, power: int = 2) -> None:
        super().__init__()
        self.margin, self.power = margin, power
        self.register_buffer("weight", torch.linspace(0.5, 1.5, 4))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.shift = torch.linspace(-1, 1, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        far = (a - b + self.shift).abs() - self.margin
        return (self.weight * self.scale * far**self.power).mean()


def plain(loss: Any) -> Callable[..., Any]:
    """The loss in torch alone."""

    def run(*args: Any) -> Any:
        with policy("disabled"):
            return loss(*args)

    return run


@pytest.mark.parametrize("backend", LOWERING)
def test_changed_attributes(backend: str, launches: Launches) -> None:
    loss = Margin()
    run = compiled(loss, backend)
    for change in (
        {},
        {"power": 3},
        {"margin": 0.25},
        {"shift": torch.zeros(4)},
        {"weight": torch.ones(4)},
        {"scale": nn.Parameter(torch.tensor(3.0))},
    ):
        for name, value in change.items():
            setattr(loss, name, value)
        agree(launches, run, plain(loss), x(3, 4), x(3, 4, seed=1))


@pytest.mark.parametrize("backend", LOWERING)
def test_a_number_that_changes_with_each_call(backend: str, launches: Launches) -> None:
    """Kernels are compiled for some values; then torch's formula takes any, and nothing is compiled again."""
    loss = Margin()
    run = compiled(loss, backend)
    ran = []
    for k in range(14):
        loss.margin = k / 10
        expected = outcome(plain(loss), x(3, 4), x(3, 4, seed=1))
        launches.take()
        torch.testing.assert_close(outcome(run, x(3, 4), x(3, 4, seed=1)), expected)
        ran.append(launches.take())
    assert ran[0] == 2


FACTOR = 2.0


@autogen_loss
def scaled(a: Tensor, b: Tensor) -> Tensor:
    return FACTOR * (a - b).square().mean()


def test_globals_and_closures(monkeypatch: pytest.MonkeyPatch, launches: Launches) -> None:
    power, weight = 2, torch.linspace(0, 1, 4)

    @autogen_loss
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return scaled(a, b) + (weight * (a - b).abs() ** power).sum()

    run = compiled(loss)
    agree(launches, run, plain(loss), x(3, 4), x(3, 4, seed=1))
    power = 3
    agree(launches, run, plain(loss), x(3, 4), x(3, 4, seed=1))
    weight = torch.ones(4)
    agree(launches, run, plain(loss), x(3, 4), x(3, 4, seed=1))
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    agree(launches, run, plain(loss), x(3, 4), x(3, 4, seed=1))


@pytest.mark.parametrize("backend", LOWERING)
def test_an_attribute_that_the_graph_itself_changes(backend: str, launches: Launches) -> None:
    loss = Margin()

    def run(margin: float, a: Tensor, b: Tensor) -> Tensor:
        loss.margin = margin
        return loss(a, b)

    expected = outcome(functools.partial(plain(run), 0.75), x(3, 4), x(3, 4, seed=1))
    loss.margin = 0.0
    launches.take()
    torch.testing.assert_close(
        outcome(functools.partial(compiled(run, backend), 0.75), x(3, 4), x(3, 4, seed=1)), expected
    )
    assert launches.take() == 2


@pytest.mark.parametrize("backend", LOWERING)
def test_gradients_of_parameters_of_the_loss(backend: str, launches: Launches) -> None:
    loss = Margin()
    found = []
    for run in (plain(loss), compiled(loss, backend)):
        loss.zero_grad()
        launches.take()
        run(x(3, 4), x(3, 4, seed=1).detach()).backward()
        found.append(loss.scale.grad)
    assert launches.take() == 2
    torch.testing.assert_close(found[1], found[0])


def test_two_modules_of_one_class(launches: Launches) -> None:
    first, second, third = Margin(), Margin(), Margin(0.1, 4)
    second.scale.data.fill_(-2.0)
    run = compiled(lambda a, b: first(a, b) + 2 * second(a, b) - third(a, b))
    agree(
        launches,
        run,
        plain(lambda a, b: first(a, b) + 2 * second(a, b) - third(a, b)),
        x(3, 4),
        x(3, 4, seed=1),
        expected=6,
    )
    one = compiled(lambda loss, a, b: loss(a, b))
    for loss in (first, second, third, first):
        agree(launches, functools.partial(one, loss), plain(loss), x(3, 4), x(3, 4, seed=1))


# Sizes.


@pytest.mark.parametrize("backend", LOWERING)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_batch_size_that_changes(dynamic: bool | None, backend: str, launches: Launches) -> None:
    ours, theirs = autogen.losses.CrossEntropyLoss(), nn.CrossEntropyLoss()
    run = compiled(ours, backend, dynamic=dynamic)
    for n in (6, 9, 1, 2, 33, 7, 1, 300):
        agree(launches, run, theirs, x(n, 5), labels(5, n))


@autogen_loss
def normalised(a: Tensor, b: Tensor) -> Tensor:
    """In one program while it is small; cut into kernels beyond."""
    return (a / a.norm() - b / b.norm()).square().sum()


@pytest.mark.parametrize("backend", LOWERING)
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_at_which_the_plan_changes(dynamic: bool | None, backend: str, launches: Launches) -> None:
    run = compiled(normalised, backend, dynamic=dynamic)
    ran = []
    for n in (40, 60, 128, 129, 300, 17, 128, 2000, 3):
        expected = outcome(plain(normalised), x(n, 128), x(n, 128, seed=1))
        launches.take()
        found = outcome(run, x(n, 128), x(n, 128, seed=1))
        ran.append(launches.take())
        torch.testing.assert_close(found, expected)
    assert ran[2] < ran[3] and ran[0] == ran[1] == ran[2] and 0 not in ran, ran


@pytest.mark.parametrize("backend", [*LOWERING, "inductor"])
def test_layouts(backend: str, launches: Launches) -> None:
    """Transposed, expanded and sliced, as inputs and inside the graph; an upstream gradient of a strange layout."""
    ours, theirs = autogen.losses.MSELoss(reduction="none"), nn.MSELoss(reduction="none")

    def around(loss: nn.Module) -> Callable[..., Tensor]:
        return lambda a, b: (loss(a.t() * 2, b[:, ::2].expand(4, 3)).t()[::2] * torch.arange(4.0)).sum(0)

    a, b = x(6, 4).detach()[::2].requires_grad_(), x(1, 6)
    agree(launches, compiled(around(ours), backend), around(theirs), a, b)
    agree(launches, compiled(ours, backend), theirs, x(3, 4).detach().t().requires_grad_(), x(4, 3, seed=2))


# What is around the loss.


@pytest.mark.parametrize("backend", [*LOWERING, "inductor"])
def test_several_outputs_of_which_some_are_used(backend: str, launches: Launches) -> None:
    @autogen_loss
    def loss(a: Tensor, b: Tensor) -> dict[str, Any]:
        far = (a - b).square()
        return {"mean": far.mean(), "each": far.sum(1), "best": far.detach().amin(), "name": "far", "count": len(a)}

    def chosen(*names: str) -> Callable[..., Tensor]:
        def run(a: Tensor, b: Tensor) -> Tensor:
            found = loss(a, b)
            return sum((found[name].sum() for name in names), a.new_zeros(()))

        return run

    for names in (("mean",), ("each", "best"), ("mean", "each", "best")):
        torch.compiler.reset()
        launches.take()
        found = outcome(compiled(chosen(*names), backend), x(3, 4), x(3, 4, seed=1))
        assert launches.take() == 2
        torch.testing.assert_close(found, outcome(plain(chosen(*names)), x(3, 4), x(3, 4, seed=1)))
    assert compiled(loss)(x(3, 4), x(3, 4))["name"] == "far"


def test_without_gradients(launches: Launches) -> None:
    ours, theirs = autogen.losses.CrossEntropyLoss(), nn.CrossEntropyLoss()
    run = compiled(ours)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            value = run(x(6, 5), labels(5, 6))
            assert launches.take() == 1 and not value.requires_grad
            torch.testing.assert_close(value, theirs(x(6, 5), labels(5, 6)))
    agree(launches, run, theirs, x(6, 5), labels(5, 6))
    agree(launches, compiled(lambda a, b: ours(a, b).detach() + a.sum()), lambda a, b: theirs(a, b).detach() + a.sum(),
          x(6, 5), labels(5, 6), expected=1)


@pytest.mark.parametrize("backend", LOWERING)
@pytest.mark.parametrize("row", FIRST, ids=lambda row: row.loss)
def test_autocast(row: Row, backend: str) -> None:
    ours, theirs, inputs = pair(row, torch.float32)
    if row.loss in UNTRACED:
        pytest.skip("no graph")
    found = []
    for loss in (theirs, ours):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            try:
                found.append(compiled(loss, backend)(*inputs))
            except (RuntimeError, torch._dynamo.exc.TorchRuntimeError) as error:
                found.append(type(error))
    if isinstance(found[0], Tensor):
        assert found[1].dtype == found[0].dtype
        torch.testing.assert_close(found[1].float(), found[0].float(), rtol=0.02, atol=0.02)
    else:
        assert found[1] is found[0]


@pytest.mark.parametrize("backend", LOWERING)
def test_who_does_not_want_kernels(backend: str, launches: Launches) -> None:
    theirs, inputs = nn.CrossEntropyLoss(), (x(6, 5), labels(5, 6))
    off = autogen.losses.CrossEntropyLoss(use_autogen=False)
    agree(launches, compiled(off, backend), theirs, *inputs, expected=0)
    never = autogen_loss(nn.CrossEntropyLoss(), policy="disabled")
    agree(launches, compiled(never, backend), theirs, *inputs, expected=0)
    ours = autogen.losses.CrossEntropyLoss()
    run = compiled(ours, backend)
    for level, expected in (("default", 2), ("disabled", 0), ("aggressive", 2)):
        with policy(level):
            agree(launches, run, theirs, *inputs, expected=expected)


def test_exported_programs_are_torchs() -> None:
    exported = torch.export.export(autogen.losses.CrossEntropyLoss(), (x(6, 5), labels(5, 6)), strict=True)
    again = torch.export.export(autogen.losses.CrossEntropyLoss(), (x(6, 5), labels(5, 6)), strict=False)
    for program in (exported, again):
        assert "autogen" not in str(program.graph) and "cross_entropy_loss" in str(program.graph)


@pytest.mark.parametrize("backend", LOWERING)
def test_transforms_in_a_graph(backend: str, launches: Launches) -> None:
    ours, theirs = autogen.losses.SmoothL1Loss(), nn.SmoothL1Loss()
    a, b = x(3, 4).detach(), x(3, 4, seed=1).detach()
    for transform in (
        lambda loss: torch.func.vmap(loss),
        lambda loss: torch.func.grad(loss),
        lambda loss: torch.func.vmap(torch.func.grad(loss)),
    ):
        found = compiled(transform(ours), backend)(a, b)
        assert launches.take() == 0
        torch.testing.assert_close(found, transform(theirs)(a, b))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool, launches: Launches) -> None:
    ours, theirs = autogen.losses.CrossEntropyLoss(), nn.CrossEntropyLoss()

    def around(loss: nn.Module) -> Callable[..., Tensor]:
        return lambda a, b: checkpoint(lambda a, b: loss(a.sin(), b), a, b, use_reentrant=reentrant)

    wanted = outcome(around(theirs), x(6, 5), labels(5, 6)) if not reentrant else None
    launches.take()
    found = outcome(compiled(around(ours)), x(6, 5), labels(5, 6))
    assert launches.take() in (2, 3)
    if wanted is not None:
        torch.testing.assert_close(found, wanted)


# Losses that run in torch.


def test_draws(launches: Launches, caplog: pytest.LogCaptureFixture) -> None:
    @autogen_loss
    def loss(a: Tensor) -> Tensor:
        return (F.dropout(a, 0.5) * torch.rand_like(a)).square().mean()

    caplog.set_level(logging.INFO, "autogen")
    run = compiled(loss)
    found = []
    for each in (plain(loss), run, run):
        torch.manual_seed(3)
        found.append(outcome(each, x(30, 4)))
    torch.testing.assert_close(found[1:], [found[0]] * 2)
    assert launches.take() == 0
    assert caplog.text.count("loss: in a compiled graph it runs in torch") == 1


def test_what_a_loss_changes(launches: Launches, caplog: pytest.LogCaptureFixture) -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, a: Tensor) -> Tensor:
            self.calls += 1
            self.mean.mul_(0.9).add_(a.detach().mean(), alpha=0.1)
            return (a - self.mean).square().mean()

    caplog.set_level(logging.INFO, "autogen")
    theirs, ours = Running(), autogen_loss(Running())
    run = compiled(ours)
    for k in range(3):
        torch.testing.assert_close(outcome(run, x(5, seed=k)), outcome(theirs, x(5, seed=k)))
    assert ours.calls == theirs.calls == 3
    torch.testing.assert_close(ours.mean, theirs.mean)
    assert launches.take() == 0
    assert caplog.text.count("Running: in a compiled graph it runs in torch") == 1


def test_a_branch_on_values(launches: Launches) -> None:
    """torch has no whole graph for it, either; in parts it works."""

    @autogen_loss
    def loss(a: Tensor) -> Tensor:
        return a.square().mean() if a.sum() > 0 else a.abs().mean()

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(loss)(x(5))
    torch.compiler.reset()
    run = torch.compile(loss, backend="aot_eager")
    for sign in (1, -1):
        a = (x(5).detach().abs() * sign).requires_grad_()
        torch.testing.assert_close(outcome(run, a), outcome(plain(loss), a))


def test_checks_of_values_still_raise() -> None:
    for loss in (nn.CrossEntropyLoss(), autogen.losses.CrossEntropyLoss()):
        run = compiled(loss)
        run(x(6, 5), labels(5, 6))
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            run(x(6, 5), labels(5, 6) + 7)
    run = compiled(autogen.losses.BCELoss())
    run(torch.rand(4), torch.rand(4))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        run(torch.rand(4) + 2, torch.rand(4))


def test_a_loss_inside_a_loss(launches: Launches) -> None:
    """One launch each way for both, as outside of graphs."""
    inner = autogen.losses.CrossEntropyLoss()

    @autogen_loss
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return inner(a, b) + 0.1 * a.square().mean()

    agree(launches, compiled(loss), plain(loss), x(6, 5), labels(5, 6))


@pytest.mark.parametrize("name", ["CTCLoss", "CosineEmbeddingLoss", "MultiLabelMarginLoss", "LinearCrossEntropyLoss"])
def test_losses_with_parts_of_their_own(name: str) -> None:
    """Equal values, whether they run on kernels here or in torch."""
    if name == "CTCLoss":
        options: dict[str, Any] = {}
        inputs: tuple[Any, ...] = (x(9, 2, 5), labels(4, 2, 3) + 1, torch.tensor([9, 8]), torch.tensor([3, 2]))
    elif name == "CosineEmbeddingLoss":
        options, inputs = {"margin": 0.2}, (x(6, 5), x(6, 5, seed=1), torch.tensor([1, -1, 1, 1, -1, -1]))
    elif name == "MultiLabelMarginLoss":
        options, inputs = {}, (x(6, 5), torch.tensor([[2, 0, -1, 0, 0]] * 6))
    else:
        options, inputs = {"in_features": 5, "num_classes": 7}, (x(6, 5), labels(7, 6))
    torch.manual_seed(0)
    theirs = getattr(nn, name)(**options)
    ours = getattr(autogen.losses, name)(**options)
    ours.load_state_dict(theirs.state_dict())
    if name == "CTCLoss":
        inputs = (inputs[0].detach().log_softmax(-1).requires_grad_(), *inputs[1:])
    found = []
    for loss in (theirs, ours):
        try:
            found.append(outcome(compiled(loss), *inputs))
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
            found.append([type(error)])
    assert len(found[0]) == len(found[1])
    if len(found[0]) > 1:
        torch.testing.assert_close(found[1], found[0])


def test_gradient_in_forward_is_for_eager_calls_only(launches: Launches) -> None:
    """In a graph it would be an alias of what the graph may write to."""
    loss = autogen_loss(nn.MSELoss(), gradient="forward")
    run = compiled(lambda a, b: 3 * loss(a, b))
    agree(launches, run, lambda a, b: 3 * F.mse_loss(a, b), x(3, 4), x(3, 4, seed=1))


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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["CrossEntropyLoss", "SmoothL1Loss"])
def test_opcheck(name: str, dynamic: bool) -> None:
    inputs = [x(6, 5), labels(5, 6) if name == "CrossEntropyLoss" else x(6, 5, seed=1)]
    forward, backward = lowered(getattr(autogen.losses, name)(), *inputs)
    token = forward.forward[0].args[1]
    outputs, kept = opaque.loss_of(token).outputs, opaque.loss_of(token).kept
    results = torch.ops.autogen.forward(inputs, token)
    assert len(results) == len(outputs) + len(kept)
    torch.library.opcheck(torch.ops.autogen.forward.default, (inputs, token))
    plain = [each.detach() for each in inputs]
    arguments = (plain, [each.detach() for each in results[1:]], [torch.ones_like(results[0])], token)
    torch.library.opcheck(torch.ops.autogen.backward.default, arguments)


def test_second_derivatives_of_the_op() -> None:
    token = lowered(autogen.losses.MSELoss(), x(3, 4), x(3, 4, seed=1))[0].forward[0].args[1]
    inputs = [x(3, 4), x(3, 4, seed=1)]
    (gradient,) = torch.autograd.grad(torch.ops.autogen.forward(inputs, token)[0], inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.sum().backward()


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_kernel_that_triton_refuses(
    direction: str, monkeypatch: pytest.MonkeyPatch, launches: Launches, caplog: pytest.LogCaptureFixture
) -> None:
    """torch's formula takes over, as outside of graphs."""
    ours, theirs = autogen.losses.CrossEntropyLoss(), nn.CrossEntropyLoss()

    def refuse(*args: Any) -> Any:
        raise autogen.CompileError("cross_entropy_loss", cause=ValueError("no registers"))

    monkeypatch.setattr(autogen.prepared.Prepared, direction, refuse)
    run = compiled(lambda a, b: ours(a * 2, b))
    for _ in range(2):
        agree(launches, run, lambda a, b: theirs(a * 2, b), x(60, 5), labels(5, 60), expected=direction == "backward")
        direction = ""
    assert caplog.text.count("cross_entropy_loss runs in torch") == 1
