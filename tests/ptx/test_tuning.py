"""Skeletons, compiled: they take what the kernels take themselves, under every candidate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autogen.aot import TARGETS, CompiledKernel, SpecializedKernel, compile_kernel, specialize
from autogen.runtime.launch import Launcher
from autogen.scheduling.schedule import backward_of
from autogen.tiling.tiler import Config
from autogen.tuning import Tuner
from autogen.tuning.candidates import candidates
from autogen.tuning.skeleton import Skeleton
from bench.assembly import accesses_of, atomics_of
from tests.ptx.driver import run
from tests.ptx.versions import TRITON
from tests.unit.pipeline import Loss, floats, plan_of

X = floats(1000, 1030, dtype=torch.float32)
LONG = floats(8, 20000, dtype=torch.float32)
LABELS = torch.zeros(1000, dtype=torch.int64)

CALLS: dict[str, tuple[Loss, tuple[torch.Tensor, ...]]] = {
    "mse": (nn.MSELoss(), (X, X.detach())),
    "bce with logits": (nn.BCEWithLogitsLoss(), (X, X.detach().sigmoid())),
    "cross entropy": (nn.CrossEntropyLoss(), (X, LABELS)),
    "cross entropy of long rows": (nn.CrossEntropyLoss(label_smoothing=0.1), (LONG, LABELS[:8])),
    "softmax": (lambda x: x.softmax(1).square().mean(), (X,)),
}

# Triton 3.9 reads the labels of two rows once more where it would move them from some threads to others.
READ_AGAIN = [8, 8] if TRITON >= (3, 9) else []


class Chosen(Tuner):
    """Chooses one configuration, whatever the sizes."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def known(self, sizes: Mapping[str, int]) -> Config:
        return self.config


def specialized(like: Launcher, sizes: Mapping[str, int], config: Config) -> SpecializedKernel:
    launcher = Launcher(like.kernel, like.provenance, lambda _: Chosen(config))
    return specialize(launcher, sizes, "loss", "forward")


def compiled(like: Launcher, sizes: Mapping[str, int], config: Config) -> CompiledKernel:
    return compile_kernel(specialized(like, sizes, config), TARGETS["sm_90"])


def pairs(name: str) -> list[tuple[Launcher, dict[str, int], Launcher, dict[str, int]]]:
    """Each kernel of a call, and its skeleton."""
    loss, inputs = CALLS[name]
    plan, sizes = plan_of(loss, *inputs)
    found: list[Any] = []
    for kernel in (*plan.forward, *backward_of(plan)):
        skeleton = Skeleton.of(kernel)
        own = Launcher(kernel, plan.provenance)
        found.append((own, sizes, Launcher(skeleton.kernel, skeleton.provenance), skeleton.sizes(sizes)))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_skeletons_move_what_the_kernels_move(name: str) -> None:
    for own, sizes, skeleton, own_sizes in pairs(name):
        config = own.tiler.default(sizes)
        kernels = specialized(skeleton, own_sizes, config), specialized(own, sizes, config)
        ours, theirs = (compile_kernel(each, TARGETS["sm_90"]) for each in kernels)
        assert (ours.spilled, atomics_of(ours)) == (0, atomics_of(theirs))
        both = accesses_of(kernels[0], ours), accesses_of(kernels[1], theirs)
        for kind in ("load", "store"):
            widths = [sorted(w for each in found if each.kind == kind for w in each.widths) for found in both]
            again = READ_AGAIN if (name, own.kernel.name, kind) == ("cross entropy", "loss_backward", "load") else []
            assert sorted(widths[0] + again) == widths[1], kind


@pytest.mark.parametrize("name", ["mse", "cross entropy"])
def test_candidates_compile(name: str) -> None:
    for own, sizes, skeleton, own_sizes in pairs(name):
        for config in candidates(own.tiler, sizes, (9, 0)):
            assert compiled(skeleton, own_sizes, config).registers <= 255
            assert compiled(own, sizes, config).registers <= 255


def test_spilling_is_seen() -> None:
    own, sizes, _, _ = pairs("cross entropy")[0]
    many = compiled(own, sizes, Config((("ROWS", 32), ("COLS", 2048)), 4))
    assert many.spilled > 0


def test_triton_compiles_a_skeleton_once_and_then_each_loss_once(tmp_path: Path) -> None:
    """K + L kernels, and what is compiled ahead of the launch is what is launched."""
    first, *others = run("tests.ptx.tuning", tmp_path)
    assert first["compiled"] == ["skeleton"] * first["candidates"] + ["mse_loss_forward"]
    assert [each["compiled"] for each in others] == [["huber_loss_forward"], ["smooth_l1_loss_forward"]]
    assert first["candidates"] == 9 and all(each["candidates"] == 0 for each in others)
    for each in (first, *others):
        assert each["config"] == "BLOCK 4096, 8 warps (tuned)" and each["programs"] == -(-300_000 // 4096)
