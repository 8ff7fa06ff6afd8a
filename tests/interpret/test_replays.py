"""Backward where torch's own formula is replayed, or is given other tensors than forward had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.functional
from autogen import autogen_loss, policy

X = torch.linspace(-1, 2, 12).view(4, 3)


def product(x: Tensor, y: Tensor) -> Tensor:
    return (x.square() * y.sin()).mean()


class Regularized(nn.Module):
    """A loss of a prediction, and of the weights that made it."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, prediction: Tensor) -> Tensor:
        return prediction.square().mean() + self.weight.square().sum()


def _twice(loss: Callable[..., Tensor], x: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradients of the first and of the second order."""
    (first,) = torch.autograd.grad(loss(*inputs), x, create_graph=True)
    return [first, *torch.autograd.grad(first.square().sum(), x)]


@pytest.mark.parametrize(
    "other",
    [lambda x: x, lambda x: x.exp(), lambda x: x[0], lambda x: x.detach()],
    ids=["same", "made", "view", "constant"],
)
def test_inputs_that_depend_on_each_other(other: Callable[[Tensor], Tensor]) -> None:
    decorated = autogen_loss(product)
    for _ in range(4):
        ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
        with policy("mandatory"):
            found = _twice(decorated, ours, ours, other(ours))
        torch.testing.assert_close(found, _twice(product, theirs, theirs, other(theirs)))


def test_a_weight_beside_what_it_has_made() -> None:
    weight = torch.linspace(0.5, 1.5, 6).view(3, 2)
    ours, theirs = autogen_loss(Regularized(weight)), Regularized(weight)
    for _ in range(4):
        found, expected = (_twice(each, each.weight, X @ each.weight) for each in (ours, theirs))
        torch.testing.assert_close(found, expected)


def _packed(tensor: Tensor) -> Tensor:
    """What `torch.autograd.graph.save_on_cpu(pin_memory=True)` makes of a tensor."""
    return torch.empty(tensor.size(), dtype=tensor.dtype).copy_(tensor)


SIGNS = torch.tensor([1, -1, 1, 1])


@pytest.mark.parametrize("layout", ["transposed", "column", "expanded"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (autogen_loss(product), product),
        (
            lambda x, y: autogen.functional.cosine_embedding_loss(x, y, SIGNS),
            lambda x, y: nn.functional.cosine_embedding_loss(x, y, SIGNS),
        ),
    ],
    ids=["generated", "handwritten"],
)
def test_saved_tensors_that_come_back_with_other_strides(ours: Any, theirs: Any, layout: str) -> None:
    base = {
        "transposed": X.view(3, 4).t(),
        "column": torch.linspace(-1, 2, 24).view(4, 6)[:, ::2],
        "expanded": X[0].expand(4, 3),
    }[layout]
    for _ in range(4):
        gradients = []
        for loss in (ours, theirs):
            x = base.detach().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(_packed, lambda packed: packed):
                value = loss(x, X.cos())
            gradients += torch.autograd.grad(value, x)
        torch.testing.assert_close(*gradients)


def _of_dtype(x: Tensor, weight: Tensor) -> Tensor:
    product = x @ weight
    return product.sum() * (2.0 if product.dtype == torch.bfloat16 else 1.0)


@pytest.mark.parametrize("during", [True, False])
def test_a_replay_has_the_autocast_of_its_call(during: bool) -> None:
    decorated = autogen_loss(_of_dtype)
    weight = torch.tensor([[1.003], [0.333], [0.777]])
    for _ in range(4):
        gradients = []
        for loss in (decorated, _of_dtype):
            x = X.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=during):
                value = loss(x, weight)
            with torch.autocast("cpu", torch.bfloat16, enabled=not during):
                gradients += torch.autograd.grad(value, x, create_graph=True)
        torch.testing.assert_close(*gradients)


def test_a_replay_has_the_default_dtype_of_its_call() -> None:
    def scaled(x: Tensor) -> Tensor:
        return (x * torch.ones(3).to(x.device)).double().sum() * (1 if torch.ones(1).dtype == torch.float32 else 3)

    decorated = autogen_loss(scaled)
    for _ in range(4):
        x = X.clone().requires_grad_()
        value = decorated(x)
        torch.set_default_dtype(torch.float64)
        try:
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.equal(gradient, torch.ones_like(x))
