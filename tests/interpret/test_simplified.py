"""Where results are infinite, nan or -0.0, no rewrite of a formula shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss
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


LEAST, GREATEST = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
KEPT = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
PLACES = torch.arange(3)


def _filled(x: Tensor) -> Tensor:
    """As what a softmax is to pass over is filled; the sum of such a row is infinite."""
    return x.masked_fill(~KEPT, LEAST)


MASKED: dict[str, Loss] = {
    "any": lambda x: (_filled(x) * KEPT.any(1, keepdim=True)).sum(1),
    "sum": lambda x: (_filled(x) * KEPT.sum(1, keepdim=True)).sum(1).mean(),
    "amax": lambda x: (_filled(x) * KEPT.float().amax(1, keepdim=True)).sum(1),
    "places": lambda x: (_filled(x) * (PLACES != 1).float()[:, None]).sum(1),
    "of a comparison": lambda x: (_filled(x) * (x.detach().amin(1, keepdim=True) < -5)).sum(1),
    "negated": lambda x: (-_filled(x) * KEPT.any(1, keepdim=True)).mean(1),
    "weighted": lambda x: (_filled(x) * torch.tensor([0.5, 1.0, 0.25]) * KEPT.any(1, keepdim=True)).sum(1),
    "log-softmax": lambda x: (_filled(x).log_softmax(1) * KEPT.all(1, keepdim=True)).sum(1),
    "of rows": lambda x: (_filled(x).mean(1) * KEPT.any()).sum(),
}


@pytest.mark.parametrize("case", MASKED)
def test_a_mask_of_0_keeps_its_row_out(case: str) -> None:
    agree(MASKED[case], torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).requires_grad_(), launches=None)


SHRINKING: dict[str, Loss] = {
    "0": lambda x: (x * 0.0).sum(),
    "less than 1": lambda x: (x * 0.1).sum(),
    "more than 1": lambda x: (x / 8 * 2.0).sum(),
    "divided by a size": lambda x: (x / x.shape[0]).sum(),
    "divided by a number": lambda x: (x / 4).mean(),
    "a mean of means": lambda x: torch.stack([x, x * 0, x * 0, x * 0], 1).mean(1).sum(),
    "a reciprocal": lambda x: (x * (1 / x.shape[0])).sum(),
    "an average": lambda x: (0.125 * x + 0.125 * x.detach()).sum(),
}


@pytest.mark.parametrize("case", SHRINKING)
def test_what_shrinks_keeps_a_sum_finite(case: str) -> None:
    agree(SHRINKING[case], torch.tensor([3e38, 2e38, 1e38, 3e38]).requires_grad_(), launches=None)


def test_a_float_that_becomes_0() -> None:
    loss = autogen_loss(lambda x, weight: (x * weight).sum(), policy="mandatory")
    x = torch.tensor([3e38, 2e38])
    assert [loss(x, weight).item() for weight in (0.5, 0.25, 0.125, 1e-30)] == [
        pytest.approx(5e38 * weight) for weight in (0.5, 0.25, 0.125, 1e-30)
    ]
    assert loss(x, 0.0) == 0


DIVIDED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by one of each row": lambda x, r: (x / r[:, None]).sum(1),
    "by one of all": lambda x, r: (x / r[0]).sum(),
    "by a square": lambda x, r: (x / (r * r)[:, None]).mean(1),
    "a reciprocal": lambda x, r: (x * r.reciprocal()[:, None]).sum(1),
    "by the number 0": lambda x, r: (x / 0.0).sum(1) + r,
    "by what is clamped": lambda x, r: (x / r.clamp(min=1e-6)[:, None]).sum(1),
}


@pytest.mark.parametrize("case", DIVIDED)
def test_a_sum_of_quotients_by_0(case: str) -> None:
    x, r = torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([0.0, 2.0])
    agree(DIVIDED[case], x.requires_grad_(), r.requires_grad_(), launches=None)


SIGNED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "atan2": lambda x, y: torch.atan2(y + 0.0, x),
    "quotients": lambda x, y: 1 / (y + 0.0),
    "a difference": lambda x, y: x / (y - -0.0),
    "a choice": lambda x, y: 1 / (torch.where(x > 0, -y, 0.0) + 0.0),
    "a product": lambda x, y: torch.copysign(x, y * (0.0 + y)),
    "minus 0": lambda x, y: torch.atan2(y + -0.0, x) + torch.atan2(y - 0.0, x),
    "a sum of Python's": lambda x, y: 1 / (sum([y, y * 2]) - x * 0),
    "a sum": lambda x, y: 1 / ((0.0 + y.sum()) + x.abs()),
    "the result": lambda x, y: y + 0.0,
    "a quotient in an even function": lambda x, y: (x / (y + 0.0)).exp(),
    "a difference of zeros": lambda x, y: 1 / ((y - x.clamp(min=0)) + 0.0),
    "a sum of zeros": lambda x, y: 1 / ((y + y * 2) + 0.0),
    "a power": lambda x, y: (y + 0.0).pow(-3).exp(),
    "an angle": lambda x, y: torch.atan2(y + 0.0, x).exp(),
    "a sign": lambda x, y: torch.copysign(x, y + 0.0).exp(),
    "a sign bit": lambda x, y: (y + 0.0).signbit() * 1.0,
    "a reciprocal": lambda x, y: (y + 0.0).reciprocal().exp(),
    "a root": lambda x, y: (y + 0.0).rsqrt().exp(),
    "a pole": lambda x, y: (y + 0.0).digamma().exp(),
    "a quotient that is rounded": lambda x, y: (x // (y + 0.0)).exp(),
    "a choice of minus zero": lambda x, y: 1 / torch.where(x > 0, 1.0, -0.0),
}


@pytest.mark.parametrize("case", SIGNED)
def test_a_zero_is_added_to_minus_zero(case: str) -> None:
    x, y = torch.tensor([-2.0, 3.0, 0.0, -1.0]), torch.tensor([-0.0, -0.0, 0.0, 1.0])
    results = [each(x, y) for each in (SIGNED[case], autogen_loss(SIGNED[case], policy="mandatory"))]
    torch.testing.assert_close(*results, equal_nan=True)
    torch.testing.assert_close(*(result.signbit() for result in results))
