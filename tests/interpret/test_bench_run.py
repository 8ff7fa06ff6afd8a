"""`bench.run` from end to end, on a stand-in for the GPU that counts launches and measures nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu, results, run
from bench.gpu_cases import Case, cases
from bench.run import source_files
from tests.interpret.launches import LAUNCHES

SIZES = {
    "cross_entropy": (6, 40),
    "linear_cross_entropy": (6, 8, 40),
    "bce_with_logits": (300,),
    "giou": (5, 7, 4),
    "dice": (2, 1, 5, 6),
}


def launches(calls: Mapping[str, tuple[gpu.Call, gpu.Call]]) -> dict[str, int]:
    """Ours, and what autograd adds to gradients that there are already."""
    found = {}
    for direction, (call, prepare) in calls.items():
        for _ in range(2):
            prepare(0)
            LAUNCHES.take()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                call(0)
        found[direction] = LAUNCHES.take() + sum(event.name == "aten::add_" for event in profile.events())
    return found


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[gpu.Call]]:
    """The calls that were timed."""
    calls: list[gpu.Call] = []

    def times(call: gpu.Call, prepare: gpu.Call) -> list[float]:
        calls.append(call)
        for k in range(4):
            prepare(k)
            call(k)
        return [10.0, 20.0, 30.0]

    def always(value: int) -> Callable[[gpu.Call, gpu.Call], int]:
        def asked(call: gpu.Call, prepare: gpu.Call) -> int:
            prepare(0)
            call(0)
            return value

        return asked

    small = {
        case.name: replace(case, shape=SIZES[case.name]) for case in cases() if case.is_quick and case.name in SIZES
    }
    stand_in: dict[str, Any] = {
        "DEVICE": "cpu", "is_there": lambda: True, "name": lambda: "Stand-in", "cache_bytes": lambda: 2000,
        "free_bytes": lambda: 2**30, "forget_memory": lambda: None, "copy_bandwidth": lambda _=0: 100.0,
        "times": times, "launches": launches, "syncs": always(0), "peak": always(512),
    }  # fmt: skip
    for name, value in stand_in.items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(torch, "compile", lambda loss, **_: loss)
    monkeypatch.setattr(run, "cases", lambda: iter(small.values()))
    monkeypatch.setattr(results, "file_of", lambda name: tmp_path / f"{name}.csv")
    yield calls


def rows(tmp_path: Path) -> list[results.Row]:
    return results.read(tmp_path / "Stand-in.csv")


@pytest.mark.slow
def test_a_run_measures_every_case_once(
    timed: list[gpu.Call], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    assert run.main(["--quick"]) == 0
    found = rows(tmp_path)
    assert not [row.note for row in found if row.note]
    assert {row.case for row in found} == set(SIZES)
    expected = {"forward": 1, "backward": 1, "both": 2}
    for row in found:
        if row.column in ("autogen", "early"):
            assert row.launches == expected[row.direction], row
        assert row.error is not None and row.error < 1e-2
        assert row.median == 20 and row.syncs == 0 and row.peak_bytes == 512
    head, *lines = capsys.readouterr().out.splitlines()
    assert "a copy moves 100 GB/s" in head
    assert any(line.startswith("bce_with_logits 300 float32 both") for line in lines)
    words = ["open", "missed", "open", "missed", *["met"] * 5]
    assert [line.split()[0] for line in lines[-len(words) :]] == words
    others = {row.column for row in found if row.case == "linear_cross_entropy"}
    assert ("torch" in others) is hasattr(torch.nn, "LinearCrossEntropyOptions")

    timed.clear()
    assert run.main(["--quick"]) == 0
    assert not timed and rows(tmp_path) == found
    assert run.main(["--quick", "--again", "--only", "dice"]) == 0
    assert len(timed) == 3 * len({row.column for row in found if row.case == "dice"})


def test_a_run_out_of_time_says_what_is_left(
    timed: list[gpu.Call], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--quick", "--seconds", "0", "--only", "giou"]) == 0
    assert not timed and not rows(tmp_path)
    assert "4 measurements are left" in capsys.readouterr().out


@pytest.mark.slow
def test_a_peer_that_fails_leaves_cells_empty(
    timed: list[gpu.Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(loss: Any, **_: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", broken)
    run.main(["--quick", "--only", "dice"])
    compiled = [row for row in rows(tmp_path) if row.column == "compile"]
    assert [(row.direction, row.median, row.note) for row in compiled] == [
        (direction, None, "RuntimeError: no compiler") for direction in results.DIRECTIONS
    ]


def test_what_only_describes_a_call_fails_alone(
    timed: list[gpu.Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(calls: Mapping[str, tuple[gpu.Call, gpu.Call]]) -> dict[str, int]:
        raise RuntimeError("no profiler")

    monkeypatch.setattr(gpu, "launches", broken)
    assert run.main(["--quick", "--only", "dice"]) == 0
    for row in rows(tmp_path):
        assert (row.median, row.launches, row.syncs, row.peak_bytes) == (20, None, 0, 512)
        assert row.note == "RuntimeError: no profiler"


def test_an_error_that_there_is_no_room_to_find(
    timed: list[gpu.Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "free_bytes", lambda: 0)
    assert run.main(["--quick", "--only", "dice", "--columns", "eager"]) == 0
    for row in rows(tmp_path):
        assert (row.median, row.error) == (20, None)
        assert row.note == "out of memory: eager in float64 has no room"


@pytest.mark.slow
def test_ours_that_fails_is_tried_again(
    timed: list[gpu.Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: Any) -> Any:
        raise RuntimeError("no kernel")

    with monkeypatch.context() as patched:
        patched.setattr(run, "autogen_loss", broken)
        assert run.main(["--quick", "--only", "dice"]) == 1
    printed = capsys.readouterr().out
    assert "dice 2x1x5x6 float32 early RuntimeError: no kernel" in printed.splitlines()
    assert run.main(["--quick", "--only", "dice"]) == 0
    assert [row.note for row in results.latest(rows(tmp_path)) if row.column == "early"] == ["", "", ""]


def test_an_interrupted_run_prints_its_table(
    timed: list[gpu.Call], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(loss: Any, **_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "compile", interrupted)
    assert run.main(["--quick", "--only", "dice"]) == 0
    assert {row.column for row in rows(tmp_path)} == {"eager"}
    printed = capsys.readouterr().out
    assert "dice 2x1x5x6 float32 both" in printed and "Some measurements are left" in printed


def test_a_nan_is_an_error(timed: list[gpu.Call]) -> None:
    case: Case = next(case for case in run.cases() if case.name == "bce_with_logits")
    inputs = case.inputs(case.shape, case.dtype, "cpu")
    exact, half_nan = case.eager(), lambda x, y: case.eager()(x, y) + 0 * (x * 0).sqrt().sum()
    assert run.error(case, exact, inputs) < 1e-6
    assert run.error(case, half_nan, inputs) == math.inf, "of the gradient only"


def test_all_embeddings_have_gradients(timed: list[gpu.Call]) -> None:
    """And an error in that of the second is one; what was last computed is forgotten."""
    case = replace(next(case for case in cases() if case.name == "infonce"), shape=(6, 8), dtype=torch.float32)
    sets = run.sets_of_inputs(case)
    assert [[each.requires_grad for each in inputs] for inputs in sets] == [[True, True]] * len(sets)
    assert run.error(case, case.eager(), sets[0]) < 1e-5
    half_nan = lambda x, y: case.eager()(x, y) + 0 * (y * 0).sqrt().sum()  # noqa: E731
    assert run.error(case, half_nan, sets[0]) == math.inf
    call, prepare = run.directions_of(case.eager(), sets)["both"]
    call(0)
    assert all(each.grad is not None for each in sets[0])
    prepare(0)
    assert all(each.grad is None for each in sets[0])


def test_versions_tell_of_all_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"losses", "templates", "handwritten", "lowering"} <= {path.parent.name for path in source_files()}
    before = run.versions_text()
    monkeypatch.setattr(run, "source_files", lambda: [Path(__file__)])
    assert run.versions_text() != before


def test_inputs_are_rotated_beyond_the_cache(timed: list[gpu.Call]) -> None:
    case: Case = next(case for case in run.cases() if case.name == "bce_with_logits")
    sets = run.sets_of_inputs(case)
    assert len(sets) == 2 and sets[0][0].data_ptr() != sets[1][0].data_ptr()
    assert all(first.is_leaf and first.requires_grad for first, *_ in sets)
