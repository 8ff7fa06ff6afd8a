"""A loss with much state, beside torch: what it returns, and all that it leaves behind."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from autogen import autogen_loss
from autogen.decorator import dispatcher_of

N, C = 6, 5
HALF = {"rtol": 1e-3, "atol": 1e-3}  # torch rounds after each operation, kernels when they store


class Holder:
    """A plain object with a state."""

    def __init__(self) -> None:
        self.mean = torch.zeros(C)


class Slotted:
    """One without a dictionary."""

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean = torch.zeros(C)


class Inner(nn.Module):
    """A submodule with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(C))
        self.register_buffer("scratch", None, persistent=False)


class Loss(nn.Module):
    """A loss with much state, of which subclasses change some."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, C))
        self.register_buffer("bank", torch.arange(60.0).reshape(12, C) / 60)
        self.register_buffer("small", torch.ones(C, dtype=torch.float16))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, C))
        self.inner = Inner()
        self.holder, self.slotted = Holder(), Slotted()
        self.table: dict[str, Any] = {"mean": torch.zeros(C)}
        self.last: Any = None
        self.previous: Any = None
        self.is_started = False
        self.is_updated = True

    def change(self, x: Tensor, t: Tensor) -> Tensor | None:
        """What else the loss does."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        loss = ((x - t) ** 2 * self.weight).mean()
        extra = self.change(x, t) if self.is_updated else None
        return loss if extra is None else loss + extra


def tensors_in(value: Any, name: str = "") -> dict[str, Any]:
    """All that an object holds, by where it is."""
    if isinstance(value, Tensor) or not (isinstance(value, (dict, Slotted)) or hasattr(value, "__dict__")):
        return {name: value}
    items = {"mean": value.mean} if isinstance(value, Slotted) else value if isinstance(value, dict) else vars(value)
    return {
        where: each
        for key, item in items.items()
        if key != "forward"
        for where, each in tensors_in(item, f"{name}.{key}").items()
    }


def assert_same(got: Any, wanted: Any) -> None:
    """That two objects hold the same."""
    found, expected = tensors_in(got), tensors_in(wanted)
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, Tensor):
            assert type(found[name]) is type(value), name
            assert found[name].requires_grad == value.requires_grad and found[name].is_leaf == value.is_leaf, name
            precision = HALF if value.dtype == torch.float16 else {}
            torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **precision)
        elif value is None or isinstance(value, (bool, int, float, str)):
            assert type(found[name]) is type(value) and found[name] == value, name


def inputs(seed: int, rows: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, C, generator=generator, requires_grad=True)
    return x, torch.randn(rows, C, generator=generator)


class Twins:
    """A loss on kernels, and the same in torch."""

    def __init__(self, loss: nn.Module) -> None:
        self.wanted = loss
        self.loss = autogen_loss(copy.deepcopy(loss))

    def __iter__(self) -> Any:
        return iter((self.loss, self.wanted))

    @property
    def traces(self) -> int:
        """How many there are."""
        found = dispatcher_of(self.loss)
        assert found is not None
        return sum(1 for _ in found[0].compilations.every())

    def call(self, seed: int, rows: int = N) -> None:
        """One call of both, and what it leaves behind."""
        results = []
        for each in self:
            x, t = inputs(seed, rows)
            each.zero_grad()
            torch.manual_seed(seed)
            value = each(x, t)
            if value.requires_grad:
                value.backward()
            results.append((value, x.grad, each.weight.grad, t, torch.rand(1)))
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted)
        assert_same(self.loss, self.wanted)


class Dino(Loss):
    """A centre that the loss reads, and then moves in place."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        target = ((t - self.center) / 0.5).softmax(-1)
        loss = -(target * (x * self.weight).log_softmax(-1)).sum(-1).mean()
        if self.is_updated:
            with torch.no_grad():
                self.center.mul_(0.9).add_(t.mean(0, keepdim=True), alpha=0.1)
        return loss
