"""What a loss in a compiled graph reads: changes are noticed before each call, and so are other sizes and layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import autogen
import autogen.losses
from autogen import autogen_loss
from tests.interpret.compiled import LOWERING, agree, compiled, labels, outcome, plain, x
from tests.interpret.launches import Launches

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]


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
    assert ran[:2] == [2, 2] and (backend == "eager" or not any(ran[2:])), ran


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", LOWERING)
def test_a_number_that_the_graph_reads_again(backend: str, dynamic: bool | None) -> None:
    """Dynamo alone reads it in the graph of the loss, and then takes it for known in the one around it."""
    loss, settings = Margin(), SimpleNamespace(weight=0.5)

    @autogen_loss
    def weighted(a: Tensor, b: Tensor, weight: float) -> Tensor:
        return weight * settings.weight * (a - b).square().mean()

    def step(a: Tensor, b: Tensor, weight: float) -> Tensor:
        twice = weighted(a, b, weight) - weighted(a, 2 * b, weight)
        return (loss(a, b) + loss(a, -b)) * loss.margin + weight * twice + settings.weight

    run = compiled(step, backend, dynamic=dynamic)
    for k in range(4):
        loss.margin, settings.weight = k / 10, 1 - k / 10
        inputs = x(3, 4), x(3, 4, seed=1), 0.1 + k
        torch.testing.assert_close(outcome(run, *inputs), outcome(plain(step), *inputs))


def test_numbers_that_change_together(launches: Launches) -> None:
    """What a graph is compiled for is one case, however many numbers, of several calls, there are."""

    @autogen_loss
    def weighted(a: Tensor, b: Tensor, weight: float, power: int) -> Tensor:
        return weight * (a - b).abs().pow(power).mean()

    def step(a: Tensor, b: Tensor, weight: float, power: int) -> Tensor:
        return weighted(a, b, weight, power) + weighted(a, 2 * b, weight + 1, power)

    run = compiled(step)
    for weight, power in ((0.5, 2), (1.5, 3)):
        inputs = x(5, 4), x(5, 4, seed=1), weight, power
        agree(launches, run, plain(step), *inputs, expected=4)


@pytest.mark.parametrize(("name", "weight"), [("DistillationLoss", "hard"), ("GRPOLoss", "beta")])
def test_weights_that_may_be_zero(name: str, weight: str) -> None:
    """What is given depends on whether they are, which is asked of a symbol."""
    loss = getattr(autogen.losses, name)()
    run = compiled(loss, dynamic=True)
    for value in (0.0, 0.5):
        setattr(loss, weight, value)
        if name == "DistillationLoss":
            inputs = [x(4, 5), x(4, 5, seed=1).detach(), *([labels(5, 4)] if value else [])]
        else:
            inputs = [x(4, 5), *(x(*shape, seed=1).detach() for shape in ((4, 5), (4,), (4, 5)))]
            inputs += [x(4, 5, seed=2).detach()] if value else []
        torch.testing.assert_close(outcome(run, *inputs), outcome(plain(loss), *inputs))


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
    torch._dynamo.reset()  # it has seen one number change
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


@pytest.mark.parametrize("backend", LOWERING)
def test_a_part_without_gradients(backend: str, launches: Launches) -> None:
    @autogen_loss
    def loss(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            weight = a.sigmoid()
        return (weight * (a - b).square()).mean()

    agree(launches, compiled(loss, backend), plain(loss), x(3, 4), x(3, 4, seed=1))


class Weighted(nn.Module):
    """A loss with parameters in a list and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = nn.ParameterList(nn.Parameter(torch.tensor(0.1 * k)) for k in range(2))
        self.parts = nn.ParameterDict({"lambda": nn.Parameter(torch.tensor(0.5))})

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = (a - b).abs().mean(), (a * self.parts["lambda"]).square().mean()
        return first * self.logs[0].exp() + second * self.logs[1].exp() - self.logs[0]


@pytest.mark.parametrize("backend", LOWERING)
def test_parameters_in_containers(backend: str, launches: Launches) -> None:
    decorated, theirs = autogen_loss(Weighted()), Weighted()
    own = compiled(decorated, backend)
    launches.take()
    found, expected = (loss(x(6, 5), x(6, 5, seed=1)) for loss in (own, theirs))
    torch.testing.assert_close(found, expected)
    found.backward(), expected.backward()
    assert launches.take() == 2
    torch.testing.assert_close([p.grad for p in decorated.parameters()], [p.grad for p in theirs.parameters()])
