"""What is around a loss in a compiled graph: modes, policies, transforms; and losses that run in torch there."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import autogen
import autogen.errors
import autogen.losses
from autogen import autogen_loss, availability, policy
from tests.interpret.compiled import LOWERING, UNTRACED, agree, compiled, labels, outcome, plain, x
from tests.interpret.launches import Launches
from tests.interpret.pairs import FIRST, pair
from tests.interpret.table import Row

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


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


@pytest.mark.parametrize("backend", LOWERING)
def test_numbers_of_sizes_among_the_results(backend: str, launches: Launches) -> None:
    def loss(a: Tensor, b: Tensor) -> tuple[Any, ...]:
        return (a - b).abs().mean(), a.shape[0], 2 * a.numel() - 1, a.shape[0] // 3

    run = compiled(autogen_loss(loss), backend, dynamic=True)
    for rows, columns in ((4, 5), (6, 5), (9, 7)):
        a, b = x(rows, columns), x(rows, columns, seed=1)
        torch.testing.assert_close(run(a, b), loss(a, b))
        assert launches.take() == 1


def test_without_gradients(launches: Launches) -> None:
    ours, theirs = autogen.losses.CrossEntropyLoss(), nn.CrossEntropyLoss()
    run = compiled(ours)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            value = run(x(6, 5), labels(5, 6))
            assert launches.take() == 1 and not value.requires_grad
            torch.testing.assert_close(value, theirs(x(6, 5), labels(5, 6)))
    agree(launches, run, theirs, x(6, 5), labels(5, 6))
    agree(
        launches,
        compiled(lambda a, b: ours(a, b).detach() + a.sum()),
        lambda a, b: theirs(a, b).detach() + a.sum(),
        x(6, 5),
        labels(5, 6),
        expected=1,
    )


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


class Doubled(TorchFunctionMode):
    """A mode that sees which function of torch is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is F.mse_loss else result


@pytest.mark.parametrize("backend", LOWERING)
def test_modes_hear_of_what_the_loss_calls(backend: str) -> None:
    own = autogen_loss(lambda a, b: F.mse_loss(a, b) + 1)

    def run(a: Tensor, b: Tensor) -> Tensor:
        with Doubled():
            return own(a, b)

    step = compiled(run, backend)
    for rows in (3, 4):
        a, b = x(rows, 4), x(rows, 4, seed=1)
        torch.testing.assert_close(step(a, b), F.mse_loss(a, b) * 2 + 1)


def test_the_default_device_is_that_of_what_the_loss_makes() -> None:
    own = compiled(autogen_loss(lambda a: (a.mean(), torch.ones(3))))
    for device in ("meta", "cpu", "meta"):
        with torch.device(device):
            assert own(x(3, 4))[1].device.type == device


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
    for loss in (autogen.losses.CrossEntropyLoss(), autogen_loss(nn.CrossEntropyLoss())):
        for strict in (True, False):
            program = torch.export.export(loss, (x(6, 5), labels(5, 6)), strict=strict)
            assert "autogen" not in str(program.graph) and "cross_entropy_loss" in str(program.graph)


def test_programs_for_other_processes_are_torchs(launches: Launches) -> None:
    """These have none of the kernels."""
    inputs = x(3, 4), x(3, 4, seed=1)
    step = compiled(autogen_loss(lambda a, b: (a - b).abs().mean()))
    program = step.aot_compile((inputs, {}))  # type: ignore[attr-defined]
    torch.testing.assert_close(program(*inputs), F.l1_loss(*inputs))
    assert launches.take() == 0
    torch.testing.assert_close(step(*inputs), F.l1_loss(*inputs))
    assert launches.take() == 1


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
    if not hasattr(nn, name):
        pytest.skip("torch has it since 2.12")
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
    try:
        found = outcome(compiled(ours), *inputs)
    except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
        with pytest.raises(type(error)):
            outcome(compiled(theirs), *inputs)
    else:  # not in a graph: there torch 2.13 computes another MultiLabelMarginLoss than outside
        torch.testing.assert_close(found, outcome(theirs, *inputs))


def test_gradient_in_forward_is_for_eager_calls_only(launches: Launches) -> None:
    """In a graph it would be an alias of what the graph may write to."""
    loss = autogen_loss(nn.MSELoss(), gradient="forward")
    run = compiled(lambda a, b: 3 * loss(a, b))
    agree(launches, run, lambda a, b: 3 * F.mse_loss(a, b), x(3, 4), x(3, 4, seed=1))


@pytest.mark.parametrize("backend", [*LOWERING, "inductor"])
def test_halves_of_a_batch(backend: str, launches: Launches) -> None:
    ours, theirs = autogen.losses.SmoothL1Loss(), nn.SmoothL1Loss()

    def around(loss: nn.Module) -> Callable[..., Tensor]:
        return lambda both: loss(*both.sin().chunk(2))

    agree(launches, compiled(around(ours), backend), around(theirs), x(8, 5))


@pytest.mark.parametrize("backend", LOWERING)
def test_results_without_their_gradient(backend: str, launches: Launches) -> None:
    """What is logged of a loss beside it, and shares its memory."""

    @autogen_loss
    def loss(a: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        far = (a * 3).square().mean()
        return far.detach(), far, {"far": far.detach(), "mean": a.detach().mean()}

    run = compiled(loss, backend)
    for mode in (torch.no_grad, torch.enable_grad, torch.no_grad):
        with mode():
            first, far, logs = run(x(3, 4))
            assert launches.take() == 1
            wanted = plain(loss)(x(3, 4))
        torch.testing.assert_close((first, far, logs), wanted)
        assert far.requires_grad == wanted[1].requires_grad
        assert not (first.requires_grad or logs["far"].requires_grad)
        logs["far"].mul_(2)
        torch.testing.assert_close(far, first)
    agree(launches, compiled(lambda a: loss(a)[1] * 2, backend), lambda a: plain(loss)(a)[1] * 2, x(3, 4))


@pytest.mark.parametrize("backend", LOWERING)
def test_results_that_are_views(backend: str, launches: Launches) -> None:
    """What is written to one of them shows in the others, as in torch."""

    @autogen_loss
    def loss(a: Tensor) -> tuple[Tensor, ...]:
        far = a * 3 + 1
        return far.mean(), a.view(-1), far, far[0]

    def run(a: Tensor) -> Tensor:
        a = a.sin()
        value, same, far, first = loss(a)
        same.mul_(2)
        first.add_(1)
        return value + a.sum() + far.sum()

    agree(launches, compiled(run, backend), plain(run), x(3, 4), expected=0)


class Checked(nn.Module):
    """A dice loss that looks at its target, as MONAI's does: where that is traced, a graph ends."""

    def forward(self, a: Tensor, target: Tensor) -> Tensor:
        if target.max() > 1:
            raise ValueError("the target is no mask")
        p = torch.sigmoid(a)
        return 1 - 2 * (p * target).sum() / (p.sum() + target.sum())


@pytest.mark.parametrize("backend", ["eager", *LOWERING])
def test_a_loss_that_ends_graphs_is_called_between_them(backend: str, launches: Launches) -> None:
    ours, theirs = autogen_loss(Checked()), Checked()
    mask = (x(6, 5, seed=1).detach() > 0).float()
    run = torch.compile(lambda a: 2 * ours(a.tanh(), mask).exp(), backend=backend)
    for _ in range(3):
        launches.take()
        found = outcome(run, x(6, 5))
        assert launches.take() == 2
        torch.testing.assert_close(found, outcome(lambda a: 2 * theirs(a.tanh(), mask).exp(), x(6, 5)))
    with pytest.raises(ValueError, match="no mask"):
        torch.compile(lambda a: ours(a, 3 * mask), backend=backend)(x(6, 5))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_loss_that_ends_graphs_fails_in_a_whole_one_as_torch_does(is_known: bool) -> None:
    mask = x(6, 5, seed=1).detach().abs().clamp(max=1)
    raised = []
    for loss in (autogen_loss(Checked()), Checked()):
        torch.compiler.reset()
        if is_known:
            torch.compile(loss, backend="aot_eager")(x(6, 5), mask)
            torch.compiler.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
            compiled(loss)(x(6, 5), mask)
        raised.append(str(caught.value).partition("\n")[0])
    assert raised[0] == raised[1]


# Losses that must not run in torch.


@autogen_loss
def dropped(a: Tensor) -> Tensor:
    return F.dropout(a, 0.5).square().mean()


@autogen_loss
def viewed(a: Tensor) -> tuple[Tensor, Tensor]:
    return a.square().mean(), a.view(-1)


@autogen_loss
def by_hypotenuse(a: Tensor) -> Tensor:
    return (a / math.hypot(a.max().item(), 0.0)).square().mean()


@pytest.mark.parametrize("backend", LOWERING)
def test_mandatory_kernels(backend: str, launches: Launches) -> None:
    theirs, inputs = nn.CrossEntropyLoss(), (x(6, 5), labels(5, 6))
    with policy("mandatory"):
        agree(launches, compiled(autogen.losses.CrossEntropyLoss(), backend), theirs, *inputs)
    agree(launches, compiled(autogen_loss(nn.CrossEntropyLoss(), policy="mandatory"), backend), theirs, *inputs)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda a: dropped(a), "its kernels are not all that has to run"),
        (lambda a: viewed(a)[0], "a result is a view of an input"),
    ],
)
def test_mandatory_and_not_an_op(loss: Callable[..., Tensor], reason: str) -> None:
    with policy("mandatory"), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=reason) as caught:
        compiled(loss)(x(5))
    assert isinstance(caught.value.inner_exception, autogen.errors.GraphError)
    assert compiled(loss)(x(5)).requires_grad


@pytest.mark.parametrize("is_known", [False, True])
def test_mandatory_and_not_traced(is_known: bool, launches: Launches) -> None:
    """It is called between graphs, and raises there what it raises outside of them."""
    run = torch.compile(lambda a: by_hypotenuse(a.exp()), backend="aot_eager")
    if is_known:
        assert run(x(5)).requires_grad
        assert launches.take() == 0
    with policy("mandatory"), pytest.raises(autogen.errors.ValueBranchError, match=r"such as math.hypot\(\)"):
        run(x(5))


def test_mandatory_and_traced_at_each_call(launches: Launches) -> None:
    own = autogen_loss(nn.MSELoss(), retrace="every", policy="mandatory")
    run = torch.compile(lambda a, b: own(a.exp(), b), backend="aot_eager")
    agree(launches, run, lambda a, b: F.mse_loss(a.exp(), b), x(3, 4), x(3, 4, seed=1))


def test_mandatory_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("has_triton", "has_kernels"):
        monkeypatch.setattr(availability, each, lambda: False)
    run = torch.compile(lambda a: autogen.losses.SmoothL1Loss()(a, a.detach()), backend="aot_eager")
    assert run(x(5)).requires_grad
    with policy("mandatory"), pytest.raises(autogen.errors.UnavailableError):
        run(x(5))


def test_what_is_refused_keeps_no_tensors() -> None:
    """The stand-ins of a graph that could not be compiled are as large as the batch."""

    @autogen_loss
    def loss(a: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(a, 0.1, 0, 0, 255).mean()

    def alive() -> int:
        gc.collect()
        return sum(type(each) is Tensor and each.shape == (23, 29) for each in gc.get_objects())

    run, before = compiled(loss), alive()
    assert run(x(23, 29)).requires_grad
    torch.compiler.reset()
    assert alive() == before
