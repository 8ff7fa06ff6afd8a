"""What a loss returns beside its value, by a shortcut: with or without gradients, in any order and structure."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, policy

X, Y = torch.linspace(-1, 1, 15).reshape(3, 5), torch.linspace(0, 2, 15).reshape(3, 5)


def error(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square()


def accuracy(x: Tensor, y: Tensor) -> Tensor:
    return (x.argmax(1) == y.argmax(1)).float().mean()


RETURNED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "one in a tuple": lambda x, y: (error(x, y).mean(),),
    "one in a dictionary": lambda x, y: {"loss": error(x, y).mean()},
    "one, and one without a gradient": lambda x, y: (error(x, y).mean(), accuracy(x, y)),
    "one, and two without": lambda x, y: {"loss": error(x, y).sum(1), "logs": [accuracy(x, y), y.amax(1)]},
    "one without a gradient first": lambda x, y: (accuracy(x, y), error(x, y).mean()),
    "two, and one without": lambda x, y: (error(x, y).mean(), x.exp().sum(1), accuracy(x, y)),
    "one without, between two": lambda x, y: (error(x, y).mean(), accuracy(x, y), x.exp().sum(1)),
    "none with a gradient": lambda x, y: (accuracy(x, y), y.amax(1)),
    "one alone without a gradient": accuracy,
    "the same without a gradient": lambda x, y: (error(x, y).mean(), error(x, y).mean().detach()),
    "random": lambda x, y: (error(x, y).mean(), torch.rand_like(y)),
}


def results(loss: Callable[..., Any], seed: int, *, again: bool = False) -> list[Tensor | None]:
    """What a call returns, which of it can be differentiated, and the gradient of all that can."""
    torch.manual_seed(seed)
    x, y = (X + seed).requires_grad_(), Y * seed
    returned = torch.utils._pytree.tree_leaves(loss(x, y))
    assert all(each.is_leaf or each.requires_grad for each in returned)
    differentiable = [each for each in returned if each.requires_grad]
    found = [*returned, *(torch.tensor(each.requires_grad) for each in returned)]
    if not differentiable:
        return found
    (gradient,) = torch.autograd.grad(sum(each.sum() for each in differentiable), x, create_graph=again)
    return [*found, gradient, *(torch.autograd.grad(gradient.square().sum(), x) if again else ())]


@pytest.mark.parametrize("loss", RETURNED.values(), ids=RETURNED)
@pytest.mark.parametrize("gradient", ["backward", "forward"])
def test_what_is_returned(loss: Callable[..., Any], gradient: Any, binds: list[str]) -> None:
    ours = autogen_loss(loss, gradient=gradient)
    with policy("mandatory"):
        for seed in range(1, 6):
            torch.testing.assert_close(results(ours, seed), results(loss, seed), rtol=1e-5, atol=1e-5)
    assert len(binds) == 2


@pytest.mark.parametrize("loss", RETURNED.values(), ids=RETURNED)
def test_second_derivatives(loss: Callable[..., Any]) -> None:
    ours = autogen_loss(loss)
    for seed in range(1, 5):
        own, their = (results(each, seed, again=True) for each in (ours, loss))
        torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-5)


def test_the_graph_keeps_nothing_that_has_no_gradient() -> None:
    ours = autogen_loss(RETURNED["one, and one without a gradient"])
    for seed in range(1, 5):
        value, other = ours((X + seed).requires_grad_(), Y)
        gone = weakref.ref(other)
        del other
        assert gone() is None
        value.backward()


class Centred(nn.Module):
    centre: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.centre.detach()).square().mean()


def test_what_the_loss_detaches_may_have_a_graph_that_is_gone(binds: list[str]) -> None:
    loss = autogen_loss(Centred(), policy="mandatory")
    for seed in range(5):
        x, weight = (X + seed).requires_grad_(), Y.clone().requires_grad_()
        loss.centre = weight.exp()
        loss.centre.sum().backward()
        (gradient,) = torch.autograd.grad(loss(x), x)
        torch.testing.assert_close(gradient, 2 * (x - weight.exp()).detach() / x.numel())
        loss(x).backward()
        torch.testing.assert_close((x.grad, weight.grad), (gradient, weight.exp().detach()))
    assert len(binds) == 2
