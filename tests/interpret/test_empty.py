"""Losses of nothing: batches without rows, and results that no input has a part in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain, policy
from tests.interpret.agreement import agree, draw


def projected(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).sum(1).sum()


def spread(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).float().logsumexp(-1).mean() if x.shape[1] else (w @ x).sum()


def scattered(x: Tensor, w: Tensor) -> Tensor:
    places = torch.zeros(len(x), dtype=torch.int64)
    return torch.zeros(3).scatter_reduce(0, places, x.sum(1) * 2, "mean", include_self=False).sum() + w.sum()


def penalised(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).norm(dim=1) - 1).square().sum() + (x * x).sum()


def sampled(x: Tensor, w: Tensor) -> Tensor:
    return (F.gumbel_softmax(x @ w, hard=True) * (x @ w)).sum()


@pytest.mark.parametrize("loss", [projected, spread, scattered, penalised, sampled], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("rows", [0, 4])
def test_batches_without_rows(loss: Callable[..., Tensor], rows: int) -> None:
    """What kernels would store, and torch read, without an element."""
    ours = autogen_loss(loss)
    for _ in range(3):
        x, w = torch.randn(rows, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)
        found = []
        for each in (ours, loss):
            torch.manual_seed(0)
            with policy("mandatory"):
                value = each(x, w)
            found.append((value.detach(), *torch.autograd.grad(value, (x, w))))
        torch.testing.assert_close(*found, equal_nan=True)


@pytest.mark.parametrize("take", [Tensor.max, Tensor.min, lambda x: x.max(1)[0], lambda x: x.min(-1).indices.float()])
def test_the_largest_of_nothing_is_an_error(take: Callable[[Tensor], Tensor]) -> None:
    loss = autogen_loss(lambda x: (x.sum() - take(x)).sum())
    x = torch.zeros(3, 0)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        take(x)
    for _ in range(3):
        with pytest.raises(expected.type):
            loss(x)
    assert loss(torch.ones(3, 2)).isfinite()


@pytest.mark.parametrize("dims", [None, 0, 1, (0, 1), ()], ids=str)
@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("of", [torch.any, torch.all])
def test_any_and_all(of: Callable[..., Tensor], size: int, dims: object) -> None:
    """Over nothing, no element is and all are; over no dimension, each is what it is."""
    x = torch.arange(4 * size).remainder(4).reshape(4, size) - 1
    loss = autogen_loss(lambda x: of(x > 0) if dims is None else of(x > 0, dim=dims))
    torch.testing.assert_close(loss(x), of(x > 0) if dims is None else of(x > 0, dim=dims))


def mined(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask].square().mean() if mask.any() else torch.zeros([], requires_grad=True)


def added(x: Tensor, mask: Tensor) -> Tensor:
    total = torch.tensor(0.0, requires_grad=True)
    return total + x[mask].square().sum() if mask.any() else total


@pytest.mark.parametrize("loss", [mined, added], ids=lambda loss: loss.__name__)
def test_a_result_that_requires_a_gradient_of_its_own(loss: Callable[..., Tensor]) -> None:
    ours = autogen_loss(loss)
    for count in (2, 0, 2, 3, 0):
        x, mask = torch.randn(4, requires_grad=True), torch.arange(4) < count
        value = ours(x, mask)
        value.backward()
        torch.testing.assert_close(value, loss(x, mask))
        assert (x.grad is None) == (count == 0)
    assert explain(ours, x, torch.ones(4, dtype=torch.bool)).path != "eager"


def without_rows(x: Tensor) -> Tensor:
    return torch.cat([x[:0].reshape(-1, 4), x.reshape(-1, 4)]).amax(1)


def padded_from_nothing(x: Tensor) -> Tensor:
    return F.pad(x[:0].flatten().view(-1, 4), (0, 0, 0, 2), value=3.0)


def product_of_nothing(x: Tensor) -> Tensor:
    return x[:0].prod()


def means_of_nothing(x: Tensor) -> Tensor:
    return x[:, :0].reshape(2, -1, 3).sum((1, 2)) + x[:0].view(3, 0, 2).prod(1).sum() + x.sum()


def taken_from_nothing(x: Tensor) -> Tensor:
    return x[:0].reshape(0, 2, 2)[:, 1].reshape(-1, 2).logsumexp(0) + x.sum()


@pytest.mark.parametrize(
    "loss", [without_rows, padded_from_nothing, product_of_nothing, means_of_nothing, taken_from_nothing]
)
def test_views_of_nothing(loss: Callable[[Tensor], Tensor]) -> None:
    """A view of no elements has the sizes that it says, and what is joined with it is all computed."""
    agree(loss, draw("real", 4, 3), launches=None)
