"""Where results are infinite, nan or -0.0, no rewrite of a formula shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.interpret.agreement import agree

Loss = Callable[[Tensor], Tensor]


def _log_softmax(x: Tensor, largest: Tensor, dim: int) -> Tensor:
    shifted = x - largest
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: _log_softmax(x, x.detach().max(), 1).exp(),
        lambda x: _log_softmax(x.t(), x.t().amax(1, keepdim=True), 0).exp(),
        lambda x: _log_softmax(x, x.amax(0, keepdim=True), 1).exp().square().sum(),
    ],
    ids=["of all", "of rows", "of columns"],
)
def test_a_softmax_whose_maximum_is_not_that_of_its_row(loss: Loss) -> None:
    """The sum of a row is next to 0 then."""
    x = torch.tensor([[0.0, 1.0, 2.0], [-93.0, -94.0, -95.0]])
    agree(loss, x.requires_grad_(), launches=None)
