"""Values that are compared with their own extremes, where several kernels compute them: torch computes them once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.interpret.agreement import agree, draw


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def standard(x: Tensor) -> Tensor:
    return centred(x) / x.std(0)


def largest_both_ways(x: Tensor) -> Tensor:
    v = centred(x)
    return (v.amax(0) * v.amax(1)[:, None]).sum()


def least_both_ways(x: Tensor) -> Tensor:
    v = centred(x)
    return (v.amin(0) * v.amin(1)[:, None]).sum()


def places(x: Tensor) -> Tensor:
    v = standard(x)
    return (v.amax(0) * v.argmax(1)[:, None]).sum()


def elements(x: Tensor) -> Tensor:
    v = centred(x)
    return torch.where(v == v.max(), 3 * v, 0).sum() + torch.where(v <= v.amin(1, keepdim=True), v * v, 0).sum()


def distance(x: Tensor) -> Tensor:
    v = centred(x)
    return ((v - v.amax(1, keepdim=True)).abs() * v.amax(0)).sum()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    each.__name__: each for each in (largest_both_ways, least_both_ways, places, elements, distance)
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_value_meets_its_extreme(name: str) -> None:
    agree(LOSSES[name], draw("real", 130, 131), launches=None)
