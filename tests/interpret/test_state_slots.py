"""State that is kept in slots, by objects that may be frozen, and on functions: it is read anew in each call."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from autogen import autogen_loss, explain, trace_count

X, Y = torch.rand(6, 5), torch.rand(6, 5)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    weight: Any
    scale: float = 2.0


class Immutable:
    __slots__ = ("__dict__", "scale", "weight")

    def __init__(self, weight: Any, scale: float = 2.0) -> None:
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "scale", scale)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(name)


class OfThread(threading.local):
    __slots__ = ("scale", "weight")

    def __init__(self, weight: Any, scale: float = 2.0) -> None:
        self.weight, self.scale = weight, scale


@pytest.mark.parametrize("kind", [Frozen, Immutable, OfThread])
def test_frozen_objects_hold_tensors_and_floats_that_vary(kind: Any) -> None:
    held = kind(torch.rand(5))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x - y) * held.weight * held.scale).abs().mean()

    ours = autogen_loss(loss, policy="mandatory")
    for scale in (2.0, 3.0, 4.0, 5.0, 6.0):
        held = kind(torch.rand(5), scale)
        x = X.clone().requires_grad_()
        result = ours(x, Y)
        torch.testing.assert_close(result, loss(X, Y))
        result.backward()
        assert held.scale == scale and x.grad is not None
    assert trace_count(ours) == 3


class Slotted(nn.Module):
    __slots__ = ("scale", "weight")

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.weight = 2.0, torch.ones(5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x - y) * self.weight * self.scale).abs().mean()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Slotted()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.inner(x, y)


@pytest.mark.parametrize("how", ["class", "module", "inner module"])
def test_modules_with_slots(how: str) -> None:
    kind = Outer if how == "inner module" else type("Own", (Slotted,), {})
    torchs = kind()
    ours = autogen_loss(kind, policy="mandatory")() if how == "class" else autogen_loss(kind(), policy="mandatory")
    for scale in (2.0, 3.0, 4.0, 5.0, 6.0):
        for each in (torchs, ours):
            inner = getattr(each, "inner", each)
            inner.scale, inner.weight = scale, torch.full((5,), scale)
        torch.testing.assert_close(ours(X, Y), torchs(X, Y))


class Moving(Slotted):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().forward(x, y)
        self.weight = self.weight * 0.9 + y.mean(0) * 0.1
        return loss


def test_a_slot_that_is_assigned() -> None:
    ours, torchs = autogen_loss(Moving(), policy="mandatory"), Moving()
    for _ in range(4):
        torch.testing.assert_close(ours(X, Y), torchs(X, Y))
        torch.testing.assert_close(ours.weight, torchs.weight)


def test_attributes_of_functions_that_keep_what_they_return() -> None:
    @functools.lru_cache
    def memo() -> float:
        return 1.0

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x - y) * memo() * memo.scale).abs().mean()  # type: ignore[attr-defined]

    ours = autogen_loss(loss, policy="mandatory")
    for scale in (2.0, 3.0, 4.0, 5.0, 6.0):
        memo.scale = scale  # type: ignore[attr-defined]
        torch.testing.assert_close(ours(X, Y), loss(X, Y))


def test_what_is_referred_to_weakly_is_torchs() -> None:
    held = nn.Module()
    reference = weakref.ref(held)
    ours = autogen_loss(lambda x, y: ((x - y) * reference().scale).abs().mean())  # type: ignore[union-attr]
    for scale in (2.0, 3.0, 4.0):
        held.scale = scale  # type: ignore[assignment]
        torch.testing.assert_close(ours(X, Y), ((X - Y) * scale).abs().mean())
    assert explain(ours, X, Y).path == "eager"
