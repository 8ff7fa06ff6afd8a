"""A module whose loss calls the module: hooks run inside what is traced, and are part of its key."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from autogen import autogen_loss, trace_count

X = torch.ones(3)


class OfSuper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()

    def __call__(self, x: Tensor) -> Any:
        return super().__call__(x) * 2


class Recursive(nn.Module):
    def forward(self, x: Tensor, depth: int = 2) -> Any:
        return x.sum() if depth == 0 else self(x, depth - 1)


def tenfold(module: nn.Module, given: Any, result: Tensor) -> Tensor:
    return result * 10


@pytest.mark.parametrize("is_global", [False, True])
@pytest.mark.parametrize("kind", [OfSuper, Recursive])
def test_hooks_run_inside(kind: type[nn.Module], is_global: bool) -> None:
    loss, own = autogen_loss(kind()), kind()
    for _ in range(3):
        torch.testing.assert_close(loss(X), own(X))
    if is_global:
        handles = [register_module_forward_hook(tenfold)]
    else:
        handles = [each.register_forward_hook(tenfold) for each in (loss, own)]
    try:
        for _ in range(3):
            torch.testing.assert_close(loss(X), own(X))
    finally:
        for handle in handles:
            handle.remove()
    torch.testing.assert_close(loss(X), own(X))


def test_hooks_of_other_modules_run_outside() -> None:
    loss, seen = autogen_loss(nn.Tanhshrink()), []
    loss.register_forward_hook(lambda module, given, result: seen.append(result))
    for _ in range(4):
        loss(X)
    assert len(seen) == 4 and trace_count(loss) == 1
