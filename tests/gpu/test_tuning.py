"""On a real GPU: configurations are compiled without being launched, timed, and kept; the winner computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.tuning
from autogen import autogen_loss, explain
from autogen.runtime import build
from autogen.runtime.launch import Launch, Launcher
from autogen.tiling.tiler import Config
from autogen.tuning import profile, store
from tests.unit.pipeline import plan_of

pytestmark = pytest.mark.hardware


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))


def inputs(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(shape, generator=generator, device="cuda").requires_grad_()
    return x, torch.rand(shape, generator=generator, device="cuda")


def labelled(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    return inputs(rows, columns)[0], torch.arange(rows, device="cuda") % columns


CALLS: dict[str, tuple[Any, tuple[Tensor, Tensor]]] = (
    {
        "flat": (nn.BCEWithLogitsLoss, inputs(4000, 1000)),
        "rows": (nn.CrossEntropyLoss, labelled(4000, 1000)),
        "long rows": (nn.CrossEntropyLoss, labelled(64, 32000)),
    }
    if torch.cuda.is_available()
    else dict.fromkeys(("flat", "rows", "long rows"), (nn.MSELoss, ()))  # type: ignore[arg-type]
)


@pytest.mark.parametrize("tune", ["profile", "first_valid"])
@pytest.mark.parametrize("name", CALLS)
def test_a_tuned_loss(name: str, tune: Any) -> None:
    make, (x, t) = CALLS[name]
    before = torch.cuda.get_rng_state()
    ours = autogen_loss(make(), tune=tune, policy="mandatory")
    for _ in range(3):
        value, expected = ours(x, t), make()(x, t)
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in (value, expected)), rtol=1e-4, atol=1e-7)
    assert torch.equal(torch.cuda.get_rng_state(), before)
    kept = list(store.entries())
    assert len(kept) == (2 if tune == "profile" else 0)
    assert all(torch.cuda.get_device_name() in key.device and tuned.speedup >= 1 for key, tuned in kept)
    report = explain(ours, x, t)
    assert report.forward is not None and report.forward.configs[0].endswith("(tuned)")


def test_compiling_is_not_launching(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = inputs(300, 300)
    plan, sizes = plan_of(nn.MSELoss(), x, t)
    launcher = Launcher(plan.forward[0], plan.provenance)  # type: ignore[arg-type]
    launch = launcher.launch(launcher.tiler.default(sizes), sizes, x.device)
    assert launch.compile() == 0
    many = Config((("BLOCK", 32768),), 1)
    assert launcher.launch(many, sizes, x.device).compile() > 0
    assert not profile.is_valid(launcher, many, sizes, x.device)
    monkeypatch.setattr(build, "load_function", None)
    torch.cuda.synchronize()


def test_a_graph_is_captured_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = inputs(500, 500)
    ours = autogen_loss(nn.MSELoss(), policy="mandatory")
    tuned = autogen_loss(nn.MSELoss(), tune=True, policy="mandatory")
    with torch.no_grad():
        expected = ours(x, t)
        monkeypatch.setattr(profile, "fastest", None)
        monkeypatch.setattr(autogen.tuning.profile, "can_time", lambda device: False)
        tuned(x, t)
        monkeypatch.undo()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert not profile.can_time(x.device)
            value = tuned(x, t)
        graph.replay()
        torch.testing.assert_close(value, expected)


def test_launches_of_a_prepared_call_look_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = inputs(500, 500)
    tuned = autogen_loss(nn.MSELoss(), tune=True, policy="mandatory")
    with torch.no_grad():
        for _ in range(3):
            tuned(x, t)
        monkeypatch.setattr(autogen.tuning.Tuner, "choose", None)
        monkeypatch.setattr(Launch, "compile", None)
        tuned(x, t)
