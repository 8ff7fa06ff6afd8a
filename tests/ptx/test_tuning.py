"""Kernels, compiled under every candidate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from autogen.aot import TARGETS, CompiledKernel, compile_kernel, specialize
from autogen.runtime.launch import Launcher
from autogen.scheduling.schedule import backward_of
from autogen.tiling.tiler import Config
from autogen.tuning import Tuner
from autogen.tuning.candidates import candidates
from tests.ptx.driver import run
from tests.unit.pipeline import Loss, floats, plan_of

X = floats(1000, 1030, dtype=torch.float32)
LABELS = torch.zeros(1000, dtype=torch.int64)

CALLS: dict[str, tuple[Loss, tuple[torch.Tensor, ...]]] = {
    "mse": (nn.MSELoss(), (X, X.detach())),
    "cross entropy": (nn.CrossEntropyLoss(), (X, LABELS)),
}


class Chosen(Tuner):
    """Chooses one configuration, whatever the sizes."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def known(self, sizes: Mapping[str, int]) -> Config:
        return self.config


def compiled(like: Launcher, sizes: Mapping[str, int], config: Config) -> CompiledKernel:
    launcher = Launcher(like.kernel, like._provenance, lambda _: Chosen(config))
    return compile_kernel(specialize(launcher, sizes, "loss", "forward"), TARGETS["sm_90"])


def kernels(name: str) -> list[tuple[Launcher, dict[str, int]]]:
    """Each kernel of a call, and its sizes."""
    loss, inputs = CALLS[name]
    plan, sizes = plan_of(loss, *inputs)
    return [(Launcher(kernel, plan.provenance), sizes) for kernel in (*plan.forward, *backward_of(plan))]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CALLS)
def test_candidates_compile(name: str) -> None:
    for launcher, sizes in kernels(name):
        for config in candidates(launcher.tiler, sizes, (9, 0)):
            assert compiled(launcher, sizes, config).registers <= 255


def test_spilling_is_seen() -> None:
    launcher, sizes = kernels("cross entropy")[0]
    many = compiled(launcher, sizes, Config((("ROWS", 32), ("COLS", 2048)), 4))
    assert many.spilled > 0


def test_triton_compiles_each_candidate_once(tmp_path: Path) -> None:
    """What is compiled ahead of the launch is what is launched."""
    for each in run("tests.ptx.tuning", tmp_path):
        assert each["candidates"] == len(each["compiled"]) == 9 and len(set(each["compiled"])) == 1
        assert each["config"] == "BLOCK 4096, 8 warps (tuned)" and each["programs"] == -(-300_000 // 4096)
