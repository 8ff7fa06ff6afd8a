"""Which frames `torch.compile` takes for its own where losses are called: those of the user, never our compiler's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import autogen
from autogen import autogen_loss
from tests.interpret.compiled import compiled, outcome, plain, x
from tests.interpret.launches import Launches

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


@pytest.fixture
def frames() -> Iterator[Callable[[], int]]:
    """How many frames Dynamo has been at since the last look."""

    def take() -> int:
        taken = counters["frames"]["total"]
        counters.clear()
        return taken

    take()
    yield take
    take()


def ending(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A loss at which a graph ends."""

    @autogen_loss
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return factor * (a - b).abs().sum() / (a > 0).sum().item()

    return loss


def test_more_losses_that_end_graphs_than_code_is_compiled_for(launches: Launches) -> None:
    losses = [ending(factor) for factor in (1.0, 2.0)]

    def step(a: Tensor, b: Tensor) -> Tensor:
        total = a.new_zeros(())
        for loss in losses:
            total = total + loss(a, b)
        return total

    run = torch.compile(step, backend="aot_eager")
    with torch._dynamo.config.patch(recompile_limit=1):
        for rows in (3, 4):
            inputs = x(rows, 4), x(rows, 4, seed=1)
            found = outcome(run, *inputs)
            assert launches.take() == 4
            torch.testing.assert_close(found, outcome(plain(step), *inputs))
            launches.take()


@autogen_loss
def checked(a: Tensor, b: Tensor) -> Tensor:
    if a.shape != b.shape:
        raise ValueError("not alike")
    return (a - b).abs().mean()


def test_a_loss_that_raises(launches: Launches, frames: Callable[[], int]) -> None:
    """Dynamo does not compile the frame, but those that are run below it."""
    run = torch.compile(checked, backend="aot_eager")
    run(x(3, 4), x(3, 4))
    frames()
    with pytest.raises(ValueError, match="not alike"):
        run(x(3, 4), x(3, 5))
    assert frames() < 20  # 591, where those of our compiler were among them
    launches.take()
    for rows in (3, 5):
        inputs = x(rows, 4), x(rows, 4, seed=1)
        torch.testing.assert_close(outcome(run, *inputs), outcome(plain(checked), *inputs))
        assert launches.take() == 2


def test_what_runs_in_torch_is_compiled(frames: Callable[[], int]) -> None:
    """A loss that ends a graph is compiled in parts where it has no kernels, as one that is not decorated."""
    run = torch.compile(ending(1.0), backend="aot_eager")
    with autogen.policy("disabled"):
        run(x(3, 4), x(3, 4))
    assert counters["stats"]["unique_graphs"] == 2


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.factor * (a - b).abs().mean()


class Called(Scaled):
    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return self.forward(a, b)


KINDS: dict[str, Callable[[float], Callable[[Tensor, Tensor], Tensor]]] = {
    "function": lambda factor: autogen_loss(lambda a, b: factor * (a - b).abs().mean()),
    "class": lambda factor: autogen_loss(type("Own", (Scaled,), {}))(factor),
    "instance": lambda factor: autogen_loss(Scaled(factor)),
    "instance with a call of its own": lambda factor: autogen_loss(Called(factor)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_more_losses_than_code_is_compiled_for(kind: str, launches: Launches) -> None:
    """Each is compiled for itself: neither how often others were, nor their sizes, count."""
    counters.clear()
    with torch._dynamo.config.patch(recompile_limit=1):
        for k in range(1, 3):
            loss = KINDS[kind](k)
            inputs = x(2 + k, 4), x(2 + k, 4, seed=1)
            torch.testing.assert_close(outcome(compiled(loss), *inputs), outcome(plain(loss), *inputs))
            assert launches.take() == 2
    assert counters["stats"]["unique_graphs"] == 2


def test_what_a_loss_calls_is_still_compiled(launches: Launches) -> None:
    """A trace, in which that is not, is no reason not to compile it later."""
    double = torch.compile(lambda a: 2 * a.sin(), backend="aot_eager")
    loss = autogen_loss(lambda a, b: (double(a) - b).abs().mean())
    inputs = x(3, 4), x(3, 4, seed=1)
    torch.testing.assert_close(outcome(loss, *inputs), outcome(plain(loss), *inputs))
    assert launches.take() == 2
    counters.clear()
    double(x(3, 4).detach())
    assert counters["stats"]["unique_graphs"] == 1


def test_what_torch_compiles_of_itself() -> None:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        far = a - b
        return torch.cond(far.sum() > 0, lambda each: each.abs().mean(), lambda each: each.square().mean(), (far,))

    inputs = x(3, 4), x(3, 4, seed=1)
    assert autogen.explain(loss, *inputs).reason.startswith("no kernel can be generated for cond, at ")
    for _ in range(2):
        torch.testing.assert_close(outcome(autogen_loss(loss), *inputs), outcome(loss, *inputs))
