"""On a GPU: the gradient in forward, and a backward that finds out on the device that it has nothing to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss
from tests.gpu.device import DEVICE


def logits(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE).requires_grad_()


CALLS: dict[str, tuple[Any, tuple[int, ...], Any]] = {
    "flat": (nn.BCEWithLogitsLoss(), (1000, 333), lambda: torch.rand(1000, 333)),
    "rows": (nn.CrossEntropyLoss(), (600, 1000), lambda: torch.randint(0, 1000, (600,))),
    "long rows": (nn.CrossEntropyLoss(), (64, 128256), lambda: torch.randint(0, 128256, (64,))),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_upstream_gradient(name: str) -> None:
    loss, shape, target = CALLS[name]
    x, t = logits(*shape), target().to(DEVICE)
    ours = autogen_loss(type(loss)(), gradient="forward", policy="mandatory")
    for upstream in (1.0, 3.0, 1.0):
        found = torch.autograd.grad(ours(x, t), x, torch.tensor(upstream, device=DEVICE))
        wanted = torch.autograd.grad(loss(x, t), x, torch.tensor(upstream, device=DEVICE))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", CALLS)
def test_backward_has_nothing_to_do_for_an_upstream_of_1(name: str) -> None:
    loss, shape, target = CALLS[name]
    x, t = logits(*shape), target().to(DEVICE)
    ours = autogen_loss(type(loss)(), gradient="forward", policy="mandatory")
    for _ in range(3):
        value = ours(x, t)
        (early,) = value.grad_fn.early
        early.fill_(7)
        assert (torch.autograd.grad(value, x)[0] == 7).all()
