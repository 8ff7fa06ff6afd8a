"""Losses that draw random numbers: the same ones as in torch, wherever it draws them from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch._functorch.config
import torch.distributions as D
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
    "normal_ of other moments": lambda x: torch.empty_like(x).normal_(1, 2) * x,
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 2) * x,
    "exponential_": lambda x: (x + 1).exponential_(2.0) * x,
    "bernoulli_ of a number": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "normal": lambda x: torch.normal(x, x.abs() + 1),
}


@pytest.mark.parametrize("name", sorted({*DRAWS} - {"bernoulli_ of a number"}))  # drawn in another order
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


def test_a_trace_draws_nothing_where_fake_tensors_are_to_have_values() -> None:
    found = []
    with torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True):
        for loss in (autogen_loss(DRAWS["dropout"]), DRAWS["dropout"]):
            torch.manual_seed(3)
            found.append((loss(X), torch.get_rng_state()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["uniform_", "exponential_", "bernoulli_ of a number", "normal_ of other moments"])
def test_what_a_draw_overwrites_is_not_written(name: str) -> None:
    report = explain(autogen_loss(lambda x: DRAWS[name](x).square().sum()), X.view(4, 3))
    assert report.forward is not None and report.forward.launches == 1
    assert report.forward.torch_steps[0].startswith(name.split()[0].rstrip("_"))


@pytest.fixture
def checked() -> Iterator[None]:
    """While distributions check what they are given, which `torch.compile` turns off for the whole process."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


@pytest.mark.usefixtures("checked")
def test_a_check_of_what_is_given_is_torchs() -> None:
    def loss(x: Tensor, scale: Tensor) -> Tensor:
        return (x * D.Normal(x, scale).rsample()).sum()

    decorated = autogen_loss(loss)
    for _ in range(3):
        found = []
        for each in (decorated, loss):
            torch.manual_seed(0)
            found.append(each(X, X))
            with pytest.raises(ValueError, match="to satisfy the constraint GreaterThan"):
                each(X, -X)
        torch.testing.assert_close(*found)
