"""Losses that draw random numbers: the same ones as in torch, wherever it draws them from."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain, policy

X = torch.arange(1.0, 13.0)

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: X.view(4, 3),
    "transposed": lambda: X.view(3, 4).t(),
    "strided": lambda: torch.arange(24.0).view(4, 6)[:, ::2],
    "expanded": lambda: X[:3].expand(4, 3),
}

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout of what is computed": lambda x: F.dropout(x * 2 + 1, 0.5),
    "dropout of what is turned": lambda x: F.dropout((x * 2).view(2, 2, 3).permute(2, 0, 1), 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5),
    "rrelu": lambda x: F.rrelu(x - 6, training=True),
    "bernoulli": lambda x: torch.bernoulli((x / 10).sigmoid()) * x,
    "bernoulli of an expanded tensor": lambda x: torch.bernoulli((x[:, :1] / 10).sigmoid().expand_as(x)) * x,
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_((x / 10).sigmoid()) * x,
    "rand_like": lambda x: torch.rand_like(x) * x,
    "normal_": lambda x: torch.empty_like(x).normal_() * x,
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_element_has_the_draw_that_torch_gives_it(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        return DRAWS[name](x).square().sum()

    decorated = autogen_loss(loss)
    for layout in ("dense", "transposed", "dense", "transposed", "transposed", "strided", "expanded"):
        found = []
        for each in (decorated, loss):
            x = LAYOUTS[layout]().detach().requires_grad_()
            torch.manual_seed(3)
            with policy("mandatory"):
                value = each(x)
            (gradient,) = torch.autograd.grad(value, x, retain_graph=True)
            (again,) = torch.autograd.grad(value, x, create_graph=True)
            found.append([value, gradient, again, torch.get_rng_state()])
        torch.testing.assert_close(*found)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return (x * torch.randn(12)).sum()


def seeded_for_a_while(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = torch.randn(12)
    return (x * noise).sum()


def seeded_afterwards(x: Tensor) -> Tensor:
    value = (x * torch.randn(12)).sum()
    torch.manual_seed(4)
    return value


def of_its_own(x: Tensor) -> Tensor:
    return (x * torch.randn(12, generator=torch.Generator().manual_seed(0))).sum()


@pytest.mark.parametrize("loss", [seeded, seeded_for_a_while, seeded_afterwards, of_its_own])
def test_losses_that_seed_are_torchs(loss: Callable[[Tensor], Tensor]) -> None:
    decorated = autogen_loss(loss)
    found = []
    for each in (decorated, loss):
        torch.manual_seed(1)
        found.append([*(each(X) for _ in range(4)), torch.rand(1)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    report = explain(decorated, X)
    assert report.path == "eager" and ("random stream" in report.reason or "generator" in report.reason)


def test_what_another_thread_draws_is_no_seed() -> None:
    """Nor is it drawn twice."""
    drawn: list[Tensor] = []
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.wait(1e-3):
            drawn.append(torch.rand(3))

    torch.manual_seed(5)
    other = threading.Thread(target=draw)
    other.start()
    paths = []
    try:
        while len(drawn) <= 2 or not paths:
            paths.append(explain(autogen_loss(lambda x: (x * torch.rand_like(x)).sum()), X).path)
    finally:
        is_over.set()
        other.join()
    assert set(paths) == {"partial"}
    assert len({tuple(each.tolist()) for each in drawn}) == len(drawn)
