"""Expressions of many operations, one inside the other."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch
from torch import Tensor

from autogen.runtime.launch import Launcher
from autogen.scheduling.launches import cuts, demand
from autogen.scheduling.schedule import backward_of
from tests.unit.pipeline import floats, plan_of

STACK = 400  # frames, which is what Python 3.12 is sure to have left after `torch.compile`


def deep(x: Tensor, y: Tensor) -> Tensor:
    for k in range(150):
        x = (x + y * k).tanh()
    return x.sum()


def deep_rows(x: Tensor, y: Tensor) -> Tensor:
    for k in range(75):
        x = torch.where(x > k, (x * y).tanh(), x * 0.9 + y.sum(1, keepdim=True)).tanh()
    return x.logsumexp(1).sum()


@pytest.mark.slow
@pytest.mark.parametrize("loss", [deep, deep_rows])
def test_printing_needs_no_deep_stack(loss: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, limit in ((cuts, "MOST_WORK"), (demand, "MOST_WORK"), (demand, "MOST_LIVE")):
        monkeypatch.setattr(module, limit, 10**6)
    plan, sizes = plan_of(loss, floats(6, 5), floats(6, 5))
    launchers = [Launcher(kernel, plan.provenance) for kernel in (*plan.forward, *backward_of(plan))]
    variants = [launcher.tiling(sizes).variant for launcher in launchers]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + STACK)
    try:
        texts = [launcher.source(variant).text for launcher, variant in zip(launchers, variants, strict=True)]
    finally:
        sys.setrecursionlimit(limit)
    assert all(text.count("tanh(") >= 150 for text in texts)
