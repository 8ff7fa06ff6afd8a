"""On a GPU: models that are kernelized, exports in the place of this package, what profilers see, and the bench."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import autogen
from autogen.cli import main
from tests.gpu.device import DEVICE

pytestmark = pytest.mark.hardware  # an export knows no emulated one


def kernels_in(profiler: profile) -> list[str]:
    """What was launched, by name."""
    return [event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def call(rows: int = 512, columns: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels."""
    logits = torch.randn(rows, columns, device=DEVICE, requires_grad=True)
    return logits, torch.randint(columns, (rows,), device=DEVICE)


def test_a_kernelized_model_launches_two_kernels() -> None:
    pytest.importorskip("kernels")
    model: Any = nn.ModuleDict({"head": nn.Linear(16, 10), "loss": nn.CrossEntropyLoss()}).to(DEVICE)
    autogen.kernelize(model, mode=autogen.Mode.TRAINING, use_fallback=False)
    logits, labels = call(64, 10)
    for _ in range(2):
        expected = torch.autograd.grad(nn.CrossEntropyLoss()(logits, labels), logits)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            found = torch.autograd.grad(model["loss"](logits, labels), logits)
            torch.cuda.synchronize()
        torch.testing.assert_close(found, expected)
    launched = kernels_in(profiler)
    assert [name for name in launched if "cross_entropy_loss" in name] == [
        "cross_entropy_loss_forward",
        "cross_entropy_loss_backward",
    ]
    ranges = {event.name for event in profiler.events() if event.name.startswith("autogen::")}
    assert ranges >= {"autogen::CrossEntropyLoss.forward", "autogen::CrossEntropyLoss.backward"}


@pytest.mark.parametrize("columns", [1000, 128256])  # rows held by a program, and walked in steps
def test_an_export_launches_two_kernels(tmp_path: Path, columns: int) -> None:
    path = autogen.export(nn.CrossEntropyLoss(), call(), tmp_path / "entropy.py", format="module")
    spec = importlib.util.spec_from_file_location("entropy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logits, labels = call(64, columns)
    for _ in range(2):
        expected = torch.autograd.grad(nn.CrossEntropyLoss()(logits, labels), logits)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            found = torch.autograd.grad(module.cross_entropy_loss(logits, labels), logits)
            torch.cuda.synchronize()
        torch.testing.assert_close(found, expected)
    assert len([name for name in kernels_in(profiler) if name.startswith("cross_entropy_loss")]) == 2


def test_the_bench_says_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "torch.nn:BCEWithLogitsLoss", "--shapes", "4096x512,4096x512@prob"]) == 0
    printed = capsys.readouterr().out
    assert "times as fast as compile" in printed and "forward + backward" in printed
