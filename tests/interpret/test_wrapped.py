"""What a loss has kept of a call that torch transformed: a tensor without memory, which the next call may overwrite."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from autogen import autogen_loss, explain
from tests.interpret.steps import N, compare, inputs


class Logging(nn.Module):
    """Keeps its value."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Any = None

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        loss = F.mse_loss(x, t)
        self.last = loss.detach()
        return loss


class LoggingAll(Logging):
    """Keeps an input."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.last = x.detach() * 1
        return F.mse_loss(x, t)


class Moving(Logging):
    """Keeps its value, and moves a buffer in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.training:  # as torch allows it in no transform
            with torch.no_grad():
                self.count += 1
        loss = F.mse_loss(x, t)
        self.last = loss.detach()
        return loss * self.count


class Once(Logging):
    """Keeps what the first call has made where gradients are not asked for, and never makes it again."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.last is None and not x.requires_grad:
            self.last = t.mean()
        return F.mse_loss(x, t)


def _forward_mode(loss: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with forward_ad.dual_level():
        loss(forward_ad.make_dual(x, x))


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda loss, x: torch.func.grad(loss)(x),
    "vmap": lambda loss, x: torch.func.vmap(loss)(torch.stack([x, x])),
    "vmap of grad": lambda loss, x: torch.func.vmap(torch.func.grad(loss))(torch.stack([x, x])),
    "jvp": lambda loss, x: torch.func.jvp(loss, (x,), (x,)),
    "jacrev": lambda loss, x: torch.func.jacrev(loss)(x),
    "hessian": lambda loss, x: torch.func.hessian(loss)(x),
    "forward mode": _forward_mode,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", [Logging, LoggingAll, Moving, Once])
@pytest.mark.parametrize("calls", [0, 3])
def test_calls_after_a_transform(kind: type[Logging], name: str, calls: int) -> None:
    theirs = kind()
    ours = autogen_loss(copy.deepcopy(theirs))

    for seed in range(calls):
        compare(ours, theirs, seed)
    for rows in (N, N + 1):  # of the second, no call has come yet
        for each in (ours, theirs):
            x, t = inputs(9)
            each.eval()
            TRANSFORMS[name](lambda x, each=each, t=t: each(x, t), x.detach())  # type: ignore[misc]
            each.train()
        for seed in range(3):
            compare(ours, theirs, seed, rows)
            if kind is not Once:
                torch.testing.assert_close(ours.last, theirs.last)
    if kind is not Once:
        assert explain(ours, *inputs(0)).path == "generated"


class Reading(Logging):
    """Looks at what it has kept."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        before = self.last
        loss = F.mse_loss(x, t) if before is None else F.mse_loss(x, t) + 0 * before
        self.last = loss.detach()
        return loss


def test_why_a_call_after_a_transform_runs_in_torch() -> None:
    loss = autogen_loss(Reading())
    x, t = inputs(0)
    torch.func.grad(lambda x: loss(x, t))(x.detach())
    assert "torch.func" in explain(loss, x, t).reason
    loss.last = None
    loss(x, t)
    assert explain(loss, x, t).path == "generated"


class Weighted(nn.Module):
    weight: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum()


def test_what_has_no_memory_is_like_no_tensor_of_its_geometry() -> None:
    wrapped: list[Tensor] = []
    x = torch.arange(3.0)
    torch.func.grad(lambda x: wrapped.append(x.detach() * 1) or x.sum())(x)
    ours, theirs = autogen_loss(Weighted()), Weighted()
    for weight in (x, x, x, *wrapped, x, *wrapped):
        ours.weight = theirs.weight = weight
        torch.testing.assert_close(ours(x), theirs(x))
