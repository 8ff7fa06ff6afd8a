"""Kernels by themselves, and an empty cache, for the tests of tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autogen.runtime import build
from autogen.runtime.launch import Launcher
from autogen.scheduling.schedule import backward_of
from autogen.tuning.skeleton import Skeleton
from tests.unit.pipeline import Loss, floats, plan_of

CPU = torch.device("cpu")
NEWEST = (10, 0)
X = floats(6, 40, dtype=torch.float32)
T = X.detach().sigmoid()
LABELS = torch.zeros(6, dtype=torch.int64)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "cache"))
    return build.tuned_folder()


def launcher_of(loss: Loss, *args: Any, backward: bool = False) -> tuple[Launcher, dict[str, int]]:
    """The one kernel of a direction, and its sizes."""
    plan, sizes = plan_of(loss, *args)
    (kernel,) = backward_of(plan) if backward else plan.forward
    return Launcher(kernel, plan.provenance), sizes


def skeleton_of(loss: Loss, *args: Any, backward: bool = False) -> Skeleton:
    return Skeleton.of(launcher_of(loss, *args, backward=backward)[0].kernel)


def images(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return floats(*shape, dtype=torch.float32), torch.ones(shape)


def dice(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Sums of sums, which the last block takes on."""
    p = x.softmax(1)
    return (1 - 2 * (p * t).sum((2, 3)) / ((p + t).sum((2, 3)) + 0.125)).mean()


def text_of(skeleton: Skeleton, sizes: dict[str, int]) -> str:
    launcher = Launcher(skeleton.kernel, skeleton.provenance)
    return launcher.source(launcher.tiling(skeleton.sizes(sizes)).variant).text
