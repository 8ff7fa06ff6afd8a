"""Backward where torch's own formula is replayed, or is given other tensors than forward had."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.functional
from autogen import autogen_loss, policy
from autogen.runtime.replays import Replayed, stream_of

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


@pytest.mark.parametrize("options", [{}, {"gradient": "forward"}])
@pytest.mark.parametrize("formula", [lambda x, y: product(x, y), lambda x, y: (x @ y.t()).square().mean()])
def test_an_upstream_gradient_known_to_be_zero(formula: Callable[..., Tensor], options: dict[str, Any]) -> None:
    """As that of the second derivative of `abs`, which has no memory."""
    y = X.flip(0)
    for loss in autogen_loss(formula, **options), autogen.functional.mse_loss:
        theirs = formula if loss is not autogen.functional.mse_loss else F.mse_loss
        for _ in range(4):
            x = X.clone().requires_grad_()
            found = _twice(lambda x, y, loss=loss: (loss(x, y) - 1).abs(), x, x, y)
            torch.testing.assert_close(found, _twice(lambda x, y, loss=theirs: (loss(x, y) - 1).abs(), x, x, y))


def test_an_upstream_gradient_known_to_be_zero_for_handwritten_kernels() -> None:
    x, target = X.clone().requires_grad_(), torch.tensor([1, -1, 1, -1])
    for _ in range(4):
        found = _twice(lambda *given: (autogen.functional.cosine_embedding_loss(*given) - 1).abs(), x, x, X + 1, target)
        expected = _twice(lambda *given: (F.cosine_embedding_loss(*given) - 1).abs(), x, x, X + 1, target)
        torch.testing.assert_close(found, expected)


def test_an_input_known_to_be_zero() -> None:
    decorated, x = autogen_loss(product), X.clone().requires_grad_()
    for each in X, torch._efficientzerotensor(4, 3), X + 1, torch._efficientzerotensor(4, 3):
        found, expected = (torch.autograd.grad(loss(x, each), x) for loss in (decorated, product))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "taken",
    [
        lambda each: torch.gather(each, 1, torch.tensor([[0], [2], [2], [1]]), sparse_grad=True),
        lambda each: F.embedding(torch.tensor([1, 1, 3]), each, sparse=True),
    ],
    ids=["gather", "embedding"],
)
def test_a_sparse_upstream_gradient(taken: Callable[[Tensor], Tensor]) -> None:
    def cubes(x: Tensor, y: Tensor) -> Tensor:
        return (x - y) ** 3

    decorated = autogen_loss(cubes)
    for _ in range(4):
        x = X.clone().requires_grad_()
        found, expected = (torch.autograd.grad(taken(loss(x, X.flip(0))).sum(), x)[0] for loss in (decorated, cubes))
        torch.testing.assert_close(found, expected)


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


def _batched(value: Tensor, x: Tensor, upstream: Tensor) -> Tensor:
    return torch.autograd.grad(value, x, upstream, is_grads_batched=True)[0]


def _mapped(value: Tensor, x: Tensor, upstream: Tensor, *, randomness: str = "error") -> Tensor:
    def gradient(each: Tensor) -> Tensor:
        return torch.autograd.grad(value, x, each)[0]

    return torch.func.vmap(gradient, randomness=randomness)(upstream)


@pytest.mark.parametrize("gradient", [_batched, _mapped, functools.partial(_mapped, randomness="different")])
def test_what_torch_maps_over_has_the_draws_of_the_call(gradient: Callable[..., Tensor]) -> None:
    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5).square().sum()

    ours = autogen_loss(dropped)
    for _ in range(3):
        found = []
        for loss in (dropped, ours):
            torch.manual_seed(1)
            x = X.clone().requires_grad_()
            found.append(gradient(loss(x), x, torch.tensor([1.0, 3.0])))
        torch.testing.assert_close(*found)


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


def test_where_a_cuda_graph_draws_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: torch.device) -> Tensor:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture")

    monkeypatch.setattr(torch.cuda, "get_rng_state", refuse)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    replayed = Replayed(lambda tensors: [F.dropout(each) for each in tensors], stream_of(torch.device("cuda")))
    with pytest.raises(RuntimeError, match="in a CUDA graph"):
        replayed.gradients([X], [True], [X])


@pytest.mark.parametrize("retrace", ["changes", "every"])
def test_a_result_that_is_kept_keeps_no_inputs_after_backward(retrace: Any) -> None:
    """As those that a loop adds up for its log."""
    decorated, values, seen = autogen_loss(_weighted, retrace=retrace), [], []
    for k in range(4):
        x, y = X.clone().requires_grad_(), X.exp()
        values.append(decorated(x, [y], 0.5 + k))
        values[-1].backward()
        seen.append(weakref.ref(y))
        del y
    gc.collect()
    assert [each() for each in seen] == [None] * 4


def _weighted(x: Tensor, others: list[Tensor], weight: float) -> Tensor:
    return product(x, others[0]) * weight
