"""Indices that are checked: what is outside of a tensor, or of a view of one, is not read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, policy
from tests.interpret.agreement import agree, draw

Loss = Callable[..., Tensor]


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, t: x[t],
        lambda x, t: x[:2][t],
        lambda x, t: x[1:3][t],
        lambda x, t: x[1:][torch.arange(4)],
        lambda x, t: x[:3].index_select(0, torch.arange(4)),
        lambda x, t: x[:2].exp().index_select(0, t),
        lambda x, t: x[:2].gather(0, t[:, None]),
        lambda x, t: x[:2].split([1, 1])[1][t],
        lambda x, t: x.view(4, 2, 3)[0, t],
        lambda x, t: x.view(4, 2, 3)[0, 0, t],
        lambda x, t: x.view(4, 1, 6)[0, t],
        lambda x, t: x[None][t],
        lambda x, t: x[:1].expand(2, 6)[t],
        lambda x, t: torch.stack([x, x.exp()])[t],
        lambda x, t: x.unfold(1, 2, 3)[:, :, t],
    ],
    ids=["all", "slice", "inside", "steps", "steps inside", "index_select", "gather", "split", "view", "inner view",
         "view of one", "unsqueeze", "expand", "stack", "unfold"],
)  # fmt: skip
@pytest.mark.parametrize("place", [4, 2, -5])
def test_outside_of_a_view_there_is_nothing(loss: Loss, place: int) -> None:
    """What eager refuses is nan, though memory may have rows there."""
    x, t = draw("real", 4, 6).detach(), torch.tensor([place, 0])
    try:
        loss(x, t)
    except (IndexError, RuntimeError):
        with policy("mandatory"):
            assert autogen_loss(loss)(x, t).sum().isnan()
    else:
        agree(loss, x, t, launches=None)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (lambda x: x[1:], (6,)),
        (lambda x: x[1:].exp(), (6, 10)),
        (lambda x: x[1:] - x[:-1], (6, 10)),
        (lambda x: x[1:, :-1], (5, 7, 3)),
        (lambda x: F.pad(x, (-1, -1)), (6, 10)),
        (lambda x: x[1:] + x.logsumexp(1, keepdim=True)[1:], (6, 10)),
        (lambda x: x[:, 1:] - x.amax(1, keepdim=True) + x.amax((0, 1)), (6, 10)),
    ],
    ids=["vector", "rows", "differences", "inside", "pad", "with a statistic", "one program"],
)
def test_pieces_that_are_summed_outside(loss: Loss, shape: tuple[int, ...]) -> None:
    """The upstream gradient is one number at stride 0, which backward reads under checks per element."""
    x = draw("real", *shape)
    with policy("mandatory"):
        (own,) = torch.autograd.grad(autogen_loss(loss)(x).sum(), x)
    (their,) = torch.autograd.grad(loss(x).sum(), x)
    torch.testing.assert_close(own, their)


def test_one_number_at_a_place_that_is_found() -> None:
    """In a kernel of one row, which has no mask of rows."""
    agree(lambda x: x.gather(1, x.argmax(1).remainder(x.shape[1])[:, None]), draw("real", 1, 4), launches=None)
