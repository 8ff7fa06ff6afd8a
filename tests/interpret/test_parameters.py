"""Losses that ask whether a tensor is a parameter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import autogen_loss, policy
from tests.interpret.launches import Launches

N, C = 4, 3


def penalised(x: Tensor, t: Tensor, weight: Any = None) -> Tensor:
    """Asks of a tensor what it is."""
    loss = F.mse_loss(x, t)
    if weight is None:
        return loss
    return loss + (weight.pow(4).sum() if isinstance(weight, nn.Parameter) else weight.pow(3).sum())


def weights(step: int) -> Tensor | None:
    """What some calls are given."""
    values = torch.full((2,), 1.0 + step)
    makers = (
        lambda: None,
        lambda: nn.Parameter(values),
        lambda: values.requires_grad_(),
        lambda: values,
        lambda: nn.Parameter(values, requires_grad=False),
    )
    return makers[step % len(makers)]()


def of_item(decorate: Any) -> Any:
    """A loss that finds the parameter in a dictionary."""
    table: dict[str, Any] = {}
    loss = decorate(lambda x, t: penalised(x, t, table["weight"]))

    def call(x: Tensor, t: Tensor, weight: Any) -> Any:
        table["weight"] = weight
        return loss(x, t)

    return call


MAKERS: dict[str, Any] = {"argument": lambda decorate: decorate(penalised), "item": of_item}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("order", [1, 2])
def test_parameters_and_others_take_turns(name: str, order: int, launches: Launches) -> None:
    found = []
    with policy("mandatory"):
        for loss in (MAKERS[name](autogen_loss), MAKERS[name](lambda each: each)):
            values: list[Any] = []
            for step in range(20):
                generator = torch.Generator().manual_seed(step)
                x = torch.randn(N, C, generator=generator, requires_grad=True)
                t, weight = torch.randn(N, C, generator=generator), weights(step)
                wanted = [each for each in (x, weight) if each is not None and each.requires_grad]
                value = loss(x, t, weight)
                gradients = torch.autograd.grad(value, wanted, create_graph=order == 2)
                if order == 2:
                    gradients = torch.autograd.grad(sum(each.pow(2).sum() for each in gradients), wanted)
                values += [value.detach(), *gradients]
            found.append(values)
    assert launches.take() > 0
    torch.testing.assert_close(*found)
