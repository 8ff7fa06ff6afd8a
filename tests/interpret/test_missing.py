"""Backward through some outputs of a loss: torch does not go through the others, so neither do kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.scheduling.launches.kernel
from autogen import autogen_loss
from autogen.losses import CosineEmbeddingLoss
from tests.interpret.agreement import draw
from tests.interpret.launches import Launches
from tests.interpret.steps import Cuts

Loss = Callable[..., Sequence[Tensor]]

COSINE = CosineEmbeddingLoss()
ZERO = torch.tensor([[0.0, 1.0, 4.0], [0.0, 9.0, 0.25]], requires_grad=True)
X, Y, W = draw("real", 6, 8), draw("real", 6, 8, seed=1), draw("real", 8, 4, seed=2)


def looked_at(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x * x).sum(), x.sqrt().sum()


def in_parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mse, cosine = F.mse_loss(x, y), F.cosine_similarity(x, y, dim=1).mean()
    return mse + 0.1 * cosine, mse, cosine


def of_two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.exp().sum(), (y - 1).pow(2).mean(1)


def choosing(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.where(x > 0, x * y, x).sum(1), x.softmax(1).pow(2).sum(), x.clamp(min=0.1).log().max(1).values


def rounding(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.half().sum().float(), x.bfloat16().float().sum(0) * y.sign().sum()


def of_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.mean(), x.sign().sum(), y.round().sum() + x.detach().sum()


def with_a_constant(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.square().mean(), (x > y).float().mean(), (x * y).mean()


def of_products(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    projected = (x * 2).tanh() @ w
    return projected.sigmoid().sum(), projected.square().mean(1), (w @ w.t()).exp().mean()


def a_product(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (x * 2) @ w, x.exp().sum()


CASES: dict[str, tuple[Loss, list[Tensor]]] = {
    "an infinite derivative": (looked_at, [ZERO]),
    "a total and its parts": (in_parts, [X, Y]),
    "of two inputs": (of_two, [X, Y]),
    "choices": (choosing, [X, Y]),
    "half precision": (rounding, [X, Y]),
    "derivatives of 0": (of_numbers, [X, Y]),
    "a constant": (with_a_constant, [X, Y]),
    "products in torch": (of_products, [X, W]),
    "a product that is a result": (a_product, [X, W]),
}


def gradients(loss: Loss, inputs: Sequence[Tensor], chosen: Sequence[int]) -> list[Tensor | None]:
    """Through some of the outputs, with upstream gradients that differ."""
    outputs = loss(*inputs)
    upstream = [torch.full_like(outputs[k], 0.5 + k) for k in chosen]
    return list(torch.autograd.grad([outputs[k] for k in chosen], inputs, upstream, allow_unused=True))


@pytest.mark.parametrize("name", CASES)
def test_every_set_of_outputs(name: str, launches: Launches) -> None:
    loss, inputs = CASES[name]
    ours = autogen_loss(loss, policy="mandatory")
    outputs = range(len(loss(*inputs)))
    varying = [k for k in outputs if loss(*inputs)[k].requires_grad]
    for _ in range(3):  # the third call takes a shortcut
        for count in range(1, len(varying) + 1):
            for chosen in combinations(varying, count):
                expected = gradients(loss, inputs, chosen)
                launches.take()
                ours(*inputs)
                forward = launches.take()
                found = gradients(ours, inputs, chosen)
                assert launches.take() > forward or all(each is None or not each.any() for each in expected)
                torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6)


def test_no_pass_over_what_only_others_need(launches: Launches) -> None:
    def loss(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.square().sum(), (x @ w).square().sum()

    ours = autogen_loss(loss, policy="mandatory")
    first, _ = ours(X, W)
    launches.take()
    x, w = torch.autograd.grad(first, (X, W), allow_unused=True)
    torch.testing.assert_close(x, 2 * X.detach())
    assert w is None and launches.take() == 1


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_second_derivatives(chosen: list[int]) -> None:
    def both(loss: Loss) -> list[Tensor]:
        x = X.detach().requires_grad_()
        outputs = loss(x, Y)
        (first,) = torch.autograd.grad([outputs[k] for k in chosen], x, create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), x)]

    ours = autogen_loss(in_parts)
    for _ in range(3):
        torch.testing.assert_close(both(ours), both(in_parts))


def test_a_graph_that_is_retained() -> None:
    ours = autogen_loss(in_parts, policy="mandatory")
    for _ in range(3):
        outputs, expected = ours(X, Y), in_parts(X, Y)
        for k in (1, 0, 2):
            own, their = (torch.autograd.grad(each[k], (X, Y), retain_graph=True) for each in (outputs, expected))
            torch.testing.assert_close(own, their)


def test_layouts_and_floats_that_vary() -> None:
    def loss(x: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        return x * scale, x.sqrt() / scale, x.sum(1)

    ours = autogen_loss(loss, policy="mandatory")
    for scale in (0.5, 0.25, 0.125, 0.75, 0.375):
        for upstream in (torch.ones(()).expand(2, 3), torch.rand(3, 2).t(), torch.rand(2, 3)):
            (found,) = torch.autograd.grad(ours(ZERO, scale)[0], ZERO, upstream)
            torch.testing.assert_close(found, upstream * scale)


def test_sizes_that_one_program_holds_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is scheduled at small sizes for a part of the outputs may not be made for all sizes."""

    def loss(x: Tensor) -> tuple[Tensor, Tensor]:
        normed = x / x.norm()
        return (normed / (1 + normed.square().sum())).pow(2).sum(), x.sum()

    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 64)
    ours = autogen_loss(loss)
    for rows in (2, 2, 2, 40, 2, 40):
        x = draw("real", rows, 8)
        for k in (0, 1):
            own, their = (torch.autograd.grad(each(x)[k], x) for each in (ours, loss))
            torch.testing.assert_close(own, their)


class Shifted(torch.autograd.Function):
    """A gradient that is no product with the upstream gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return upstream.clamp(-0.3, 0.3) + 1


def shifted(x: Tensor) -> tuple[Tensor, Tensor]:
    value: Tensor = Shifted.apply(x)
    return value.sum(), x.sqrt().sum()


def shifted_and_scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    value: Tensor = Shifted.apply(x)
    return value.sum(), (value * 3).sum()


@pytest.mark.parametrize("loss", [shifted, shifted_and_scaled])
@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_formulas_of_the_users_own(loss: Loss, chosen: list[int]) -> None:
    ours, x = autogen_loss(loss), ZERO.detach().abs().add(1).requires_grad_()
    for _ in range(3):
        torch.testing.assert_close(gradients(ours, [x], chosen), gradients(loss, [x], chosen))


class Together(torch.autograd.Function):
    """A gradient that is computed from two upstream gradients, of which torch makes zeros where there are none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, formula: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        ctx.formula = formula
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.formula(*upstream), None


TOGETHER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a term of neither": lambda a, b: a * 2 + (b + 1),
    "one divides": lambda a, b: a / b,
    "a sum in torch": lambda a, b: F.conv1d(a[:, None], X[:1, None, :3].detach(), b.sum()[None] * 2, padding=1)[:, 0],
    "an upstream gradient that torch reads": lambda a, b: F.conv1d(
        a[:, None], X[:1, None, :3].detach(), b[0, :1], padding=1
    )[:, 0],
    "a bias of neither": lambda a, b: (
        b + F.conv1d(a[:, None], X[:1, None, :3].detach(), X[0, :1].detach(), padding=1)[:, 0]
    ),
}


@pytest.mark.parametrize("case", TOGETHER)
@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_formulas_of_two_upstream_gradients(case: str, chosen: list[int]) -> None:
    def loss(x: Tensor) -> Sequence[Tensor]:
        return Together.apply(x, TOGETHER[case])  # type: ignore[no-any-return]

    ours, x = autogen_loss(loss), ZERO.detach().requires_grad_()
    for _ in range(3):
        torch.testing.assert_close(gradients(ours, [x], chosen), gradients(loss, [x], chosen))


class Constant(torch.autograd.Function):
    """A gradient that no upstream gradient has a part in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return torch.ones_like(upstream)


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_a_gradient_that_does_not_depend_on_an_output(chosen: list[int]) -> None:
    def loss(x: Tensor) -> Sequence[Tensor]:
        return Constant.apply(x).sum(), x.sign().sum()

    ours, x = autogen_loss(loss), ZERO.detach().requires_grad_()
    for _ in range(3):
        torch.testing.assert_close(gradients(ours, [x], chosen), gradients(loss, [x], chosen))


class Counted(nn.Module):
    """A state, random numbers, and a branch on values: none takes a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()
        if (x < 0).any():
            return x.mean(), x.std()
        return (F.dropout(x, 0.5) + self.mean).sum(), x.sqrt().sum()


@pytest.mark.parametrize("twice", [False, True])
def test_on_the_long_way(twice: bool) -> None:
    ours, theirs = autogen_loss(Counted()), Counted()
    for _ in range(4):
        found = []
        for loss in (ours, theirs):
            torch.manual_seed(3)
            found.append(torch.autograd.grad(loss(ZERO)[0], ZERO, create_graph=twice)[0].detach())
        torch.testing.assert_close(*found)
        torch.testing.assert_close(ours.mean, theirs.mean)


def test_an_output_whose_gradient_is_none() -> None:
    """What follows the loss may hand over nothing at all."""

    class Stops(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values: Tensor) -> Tensor:
            return torch.stack(values).sum()

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:
            return None, None

    ours = autogen_loss(looked_at, policy="mandatory")
    for _ in range(3):
        for loss in (looked_at, ours):
            assert torch.autograd.grad(Stops.apply(*loss(ZERO)), ZERO, allow_unused=True) == (None,)


def counted(x: Tensor) -> Tensor:
    return x.norm(p=0, dim=1).sum()


@pytest.mark.parametrize(
    "loss",
    [
        autogen_loss(lambda x: x.square().mean()),
        autogen_loss(lambda x: x.square().mean(), gradient="forward"),
        autogen_loss(lambda x: x.square()),
        lambda x: COSINE(x, x.detach() + 1, torch.ones(len(x))),
    ],
    ids=["reduced", "forward", "elementwise", "handwritten"],
)
def test_a_result_whose_gradient_is_none(loss: Callable[[Tensor], Tensor]) -> None:
    for _ in range(4):
        x = torch.ones(3, 4, requires_grad=True)
        Cuts.apply(loss(x)).sum().backward()
        assert x.grad is None


def cut(x: Tensor) -> Tensor:
    return Cuts.apply(x).square().sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("loss", [counted, cut])
def test_an_output_that_requires_a_gradient_which_reaches_no_input(loss: Callable[[Tensor], Tensor]) -> None:
    ours = autogen_loss(loss, policy="mandatory")
    for _ in range(3):
        x = torch.ones(3, 4, requires_grad=True)
        value = ours(x)
        torch.testing.assert_close(value, loss(x))
        (value + 1).backward()
        assert x.grad is None
