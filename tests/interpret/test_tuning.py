"""Tuned losses, run: the same values under every candidate; the winner is launched; K + L kernels are compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.tuning
from autogen import autogen_loss, explain, losses
from autogen.emission.shell import Shell
from autogen.runtime import build
from autogen.runtime.launch import Launch
from autogen.tiling.tiler import Config, Tiling
from autogen.tuning import profile, store


class Device:
    """A device that is fastest at the candidate number `best`, and notes what is timed, compiled and launched."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.best = 0
        self.timed: dict[Any, list[Tiling]] = {}  # by the tensors of the skeleton
        self.compiled: list[tuple[str, Tiling]] = []
        self.launched: list[tuple[str, Tiling]] = []
        patch.setattr(profile, "can_time", lambda device: True)
        patch.setattr(autogen.tuning, "capability_of", lambda device: (9, 0))
        patch.setattr(profile, "milliseconds", self._milliseconds)
        patch.setattr(Launch, "compile", lambda launch: self._compile(launch))
        original = Launch.__call__

        def launch(called: Launch, *args: Any) -> None:
            self.launched.append((called._source.name, called.tiling))
            original(called, *args)

        patch.setattr(Launch, "__call__", launch)

    def _milliseconds(self, launch: Launch, tensors: Sequence[Tensor]) -> float:
        seen = self.timed.setdefault(launch._source.buffers, [])
        if launch.tiling not in seen:
            seen.append(launch.tiling)
        return 0.5 if seen.index(launch.tiling) == self.best else 1.0

    def _compile(self, launch: Launch) -> int:
        self.compiled.append((launch._source.text, launch.tiling))
        return 0


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    yield Device(monkeypatch)


def real(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


FLAT = (real(3000), real(3000).sigmoid())
ROWS = (real(37, 70), torch.arange(37) % 70)
LONG = (real(3, 9000), torch.tensor([5, 0, 8999]))
TILES = (real(300, 70), real(300, 70).sigmoid())

CALLS: dict[str, tuple[Callable[..., nn.Module], tuple[Tensor, ...]]] = {
    "flat": (nn.BCEWithLogitsLoss, FLAT),
    "flat, double": (nn.HuberLoss, tuple(each.double() for each in FLAT)),
    "rows": (nn.CrossEntropyLoss, ROWS),
    "long rows": (nn.CrossEntropyLoss, LONG),
    "adjacent rows": (nn.CrossEntropyLoss, (real(2, 9, 150), torch.arange(300).view(2, 150) % 9)),
    "tiles": (functools.partial(nn.BCEWithLogitsLoss, pos_weight=torch.rand(70)), TILES),
}


def outcome(loss: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Value and gradient."""
    x, *rest = inputs
    x = x.clone().requires_grad_()
    value = loss(x, *rest)
    return [value.detach(), *torch.autograd.grad(value, x, torch.full_like(value, 0.5))]


@pytest.mark.slow
@pytest.mark.interpreted  # the warps of a candidate do not choose the order of its sums
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_candidate_computes_the_same(
    name: str, reduction: str, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, inputs = CALLS[name]
    expected = outcome(make(reduction=reduction), inputs)
    by_steps: dict[Any, list[Tensor]] = {}
    launched = set()
    tried = 1
    while device.best < tried:
        monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / str(device.best)))
        device.timed.clear()
        device.launched.clear()
        loss = autogen_loss(make(reduction=reduction), tune=True, policy="mandatory")
        found = outcome(loss, inputs)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)
        if reduction == "none":
            # Only the order of the sums along a row may differ, which forward has.
            _, forward = device.launched[0]
            steps = (forward.variant.looped, dict(forward.tiles)["COLS"]) if "rows" in name else None
            first = by_steps.setdefault(steps, found)
            assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))
        launched.add(tuple(device.launched))
        tried = max(len(each) for each in device.timed.values())
        device.best += 1
    assert tried >= 5 and len(launched) >= tried - 1, "each of them was launched"
    assert len(by_steps) == (reduction == "none") or name == "long rows"
    if name == "long rows":
        assert {tiling.variant.looped for each in launched for _, tiling in each} == {True, False}


class TestTheWinner:
    def test_is_launched_explained_and_kept(self, device: Device) -> None:
        device.best = 3
        loss = autogen_loss(nn.MSELoss(), tune=True, policy="mandatory")
        outcome(loss, FLAT)
        (tiling,) = {tiling for name, tiling in device.launched if name == "mse_loss_forward"}
        skeleton, _ = device.timed.values()  # of forward, of backward
        assert tiling == skeleton[3] != skeleton[0]
        x, t = FLAT
        report = explain(loss, x.clone().requires_grad_(), t)
        assert report.forward is not None and report.backward is not None
        for direction in (report.forward, report.backward):
            (config,) = direction.configs
            assert config.endswith("(tuned)") and "BLOCK 2048" in config
        assert {tuned.config for _, tuned in store.entries()} == {Config((("BLOCK", 2048),), 4)}

    def test_is_found_once_and_then_looked_up(self, device: Device) -> None:
        device.best = 3
        loss = autogen_loss(nn.MSELoss(), tune=True, policy="mandatory")
        first = outcome(loss, FLAT)
        timed, compiled = sum(map(len, device.timed.values())), len(device.compiled)
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(outcome(loss, FLAT), first, strict=True))
        outcome(loss, (real(2900), real(2900)))
        assert (sum(map(len, device.timed.values())), len(device.compiled)) == (timed, compiled)
        assert len({tiling.num_warps for _, tiling in device.launched}) == 1

    def test_is_that_of_every_loss_of_the_skeleton(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        emitted: list[str] = []
        emit = Shell.emit

        def noted(shell: Shell, *called: Any) -> Any:
            emitted.append(shell.kernel.name)
            return emit(shell, *called)

        monkeypatch.setattr(Shell, "emit", noted)
        device.best = 3
        calls = [nn.MSELoss(), nn.HuberLoss(), nn.SmoothL1Loss(), losses.CharbonnierLoss()]
        with torch.no_grad():
            for loss in calls:
                autogen_loss(loss, tune=True, policy="mandatory")(*FLAT)
        (skeleton,) = device.timed.values()
        assert len(set(device.compiled)) == len(skeleton) + len(calls), "K + L"
        assert len(device.compiled) == len(set(device.compiled))
        assert emitted.count("skeleton") == 1 and len(emitted) == 1 + len(calls)
        assert len({tiling for _, tiling in device.launched}) == 1


class TestTheDefault:
    def test_reads_and_times_nothing(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store, "read", None)
        for options in ({}, {"tune": False}):
            outcome(autogen_loss(nn.MSELoss(), policy="mandatory", **options), FLAT)
        assert not device.timed and not device.compiled
        assert {(dict(t.tiles)["BLOCK"], t.num_warps) for _, t in device.launched} == {(1024, 4)}

    def test_is_launched_where_nothing_can_be_timed(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        for tune in (True, "first_valid"):
            loss = autogen_loss(nn.MSELoss(), tune=tune, policy="mandatory")  # type: ignore[call-overload]
            for ours, theirs in zip(outcome(loss, FLAT), outcome(nn.MSELoss(), FLAT), strict=True):
                torch.testing.assert_close(ours, theirs)

    def test_is_the_first_valid_here(self, device: Device) -> None:
        outcome(autogen_loss(nn.MSELoss(), tune="first_valid", policy="mandatory"), FLAT)
        assert not device.timed and len(device.compiled) == 2  # forward and backward, as they are launched
        assert {dict(t.tiles)["BLOCK"] for _, t in device.launched} == {1024}


def test_a_library_loss_is_tuned_when_asked(device: Device) -> None:
    device.best = 4
    outcome(autogen_loss(losses.BCEWithLogitsLoss(), tune=True), FLAT)
    assert device.timed and dict(device.launched[0][1].tiles)["BLOCK"] == 2048


@pytest.mark.slow
def test_a_skeleton_runs(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under each candidate, on the tensors that are made for it: no access is out of bounds."""
    ran: list[int] = []

    def launch(launch: Launch, tensors: Sequence[Tensor]) -> float:
        launch(tensors)
        ran.append(1)
        return 1.0

    monkeypatch.setattr(profile, "milliseconds", launch)
    for make, inputs in CALLS.values():
        outcome(autogen_loss(make(), tune=True, policy="mandatory"), inputs)
    outcome(autogen_loss(nn.CrossEntropyLoss(weight=torch.rand(70), label_smoothing=0.1), tune=True), ROWS)
    assert len(ran) > 60
