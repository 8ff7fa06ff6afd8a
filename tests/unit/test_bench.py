"""The bookkeeping of measurements, without a GPU: what is kept, what is left to do, what is printed."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from bench import goals, gpu, memory, plots, results, run
from bench.gpu_cases import cases
from bench.results import DIRECTIONS, Row

ROW = Row(
    "NVIDIA H100 80GB HBM3", "autogen-loss 1, torch 2", "bce", "8x4", "float32", "autogen", "forward", 1.5, 2.0, 2.5,
    900.0, 45.0, 1, 0, 1024, 1e-7,
)  # fmt: skip
FAILED = replace(
    ROW, column="liger", p20=None, median=None, p80=None, launches=None, error=None, note='out of memory: "a", b\'s'
)


def all_directions(row: Row) -> list[Row]:
    return [replace(row, direction=direction) for direction in DIRECTIONS]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpu.csv"
    results.append([ROW], path)
    results.append([FAILED, replace(ROW, direction="both")], path)
    assert results.read(path) == [ROW, FAILED, replace(ROW, direction="both")]
    assert path.read_text().count("median") == 1, "one header"


def test_a_file_per_gpu() -> None:
    assert results.file_of("NVIDIA H100 80GB HBM3").name == "nvidia-h100-80gb-hbm3.csv"


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    assert results.measured(results.read(path)) == set()
    results.append(all_directions(ROW), path)
    results.append(all_directions(FAILED), path)
    results.append(all_directions(replace(FAILED, column="compile", note="RuntimeError: no compiler")), path)
    results.append([replace(ROW, column="eager")], path)  # killed after the first direction
    assert results.measured(results.read(path)) == {ROW.key, FAILED.key}
    assert replace(ROW, versions="autogen-loss 2, torch 2").key not in results.measured(results.read(path))


def test_what_is_torn_within_a_letter_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    results.append([ROW, replace(ROW, note="µ")], path)
    path.write_bytes(path.read_bytes()[:-2])
    assert results.read(path) == [ROW]
    results.repair(path)
    assert results.read(path) == [ROW]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_line_that_is_not_whole_is_no_row(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    results.append(all_directions(ROW), path)
    path.write_text(path.read_text()[:-cut])
    assert len(results.read(path)) == 2
    results.repair(path)
    results.append([FAILED], path)
    assert results.read(path)[2:] == [FAILED]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([3.0], 0.2, 3.0), ([1.0, 2.0, 3.0], 0.5, 2.0), ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5), ([0.0, 10.0], 0.2, 2.0)],
)
def test_percentiles(values: list[float], share: float, expected: float) -> None:
    assert results.percentile(values, share) == pytest.approx(expected)


def test_the_table_names_the_best_other_and_leaves_cells_empty() -> None:
    slow, fast = replace(ROW, column="eager", median=8.0), replace(ROW, column="compile", median=4.0)
    head, line, _ = results.table([slow, fast, FAILED, ROW]).splitlines()
    assert head.split()[:5] == ["median", "µs", "eager", "compile", "liger"]
    assert line.split()[:4] == ["bce", "8x4", "float32", "forward"] and line.split()[-1] == "2.00"
    assert "out of memory:" in line
    _, alone, note = results.table([FAILED]).splitlines()
    assert alone.rstrip().endswith("out of memory:") and note == f"bce 8x4 float32 liger {FAILED.note}"


def large(column: str, forward: float, backward: float, both: float, **changes: object) -> list[Row]:
    """A case of 512 MB, at these µs; a copy takes 256 µs for as much."""
    times = {"forward": forward, "backward": backward, "both": both}
    base = replace(ROW, size="8192x16384", peak_bytes=2**29 + 512, **changes)  # type: ignore[arg-type]
    return [
        replace(
            base, column=column, direction=direction, median=time, gigabytes_per_second=512_000 / time,
            percent_of_copy=25_600 / time,
        )
        for direction, time in times.items()
    ]  # fmt: skip


def verdicts(rows: list[Row]) -> list[bool | None]:
    return [goal.is_met for goal in goals.goals(rows)][:5]


def test_goals() -> None:
    ours = large("autogen", 270, 280, 550)
    assert verdicts([]) == verdicts([FAILED]) == [None] * 5
    assert verdicts(ours) == [True, None, None, None, True]
    assert verdicts([*ours, *large("compile", 1, 1, 550 * 1.31)]) == [True, True, None, None, True]
    assert verdicts([*ours, *large("compile", 1, 1, 550 * 1.29)])[1] is False, "the mean"
    pair = [*large("autogen", 1, 1, 10, case="mse"), *large("compile", 1, 1, 9.9, case="mse")]
    assert verdicts([*ours, *large("compile", 1, 1, 9999), *pair])[1] is False, "one is slower"
    assert verdicts([*ours, *large("compile", 1, 1, 999), *large("autotune", 1, 1, 600)])[1] is False, "the best counts"
    assert verdicts([*ours, *large("liger", 1, 1, 551)])[2] is True
    assert verdicts([*ours, *large("liger", 1, 1, 549)])[2] is False
    boxes = large("autogen", 1, 1, 10, case="giou")
    assert [verdicts([*boxes, *large("eager", 1, 1, t, case="giou")])[3] for t in (101, 99)] == [True, False]


def test_goals_of_bandwidth_and_memory() -> None:
    slow = large("autogen", 270, 290, 560)
    assert verdicts(slow)[0] is False and "1 of 2; least 88 %" in goals.summary(slow)
    again = [*slow, *large("autogen", 270, 270, 540)]
    assert verdicts(again)[0] is True, "the last measurement counts"
    small = [replace(row, gigabytes_per_second=1.0) for row in slow]
    assert verdicts(small)[0] is None
    of_two = [replace(row, peak_bytes=2**30 + 512, gradients=2) for row in slow]
    assert verdicts(of_two)[4] is True and verdicts([replace(row, gradients=1) for row in of_two])[4] is False
    much = [replace(row, peak_bytes=2**29 + 2**21) for row in slow]
    assert verdicts(much)[4] is False and "2.00 MiB" in goals.summary(much)


def test_goals_of_heads() -> None:
    """Products are no work of kernels; memory is counted as chunks need it."""
    needed = (4096 + 32768) * 512 * 2 + 32768 * 512 * 4 + 2 * 2048 * 32768 * 2
    head = replace(
        ROW, case="linear_cross_entropy", size="4096x512x32768", dtype="bfloat16", direction="both", launches=9,
        peak_bytes=int(1.14 * needed), percent_of_copy=5.0, gigabytes_per_second=1e9,
    )  # fmt: skip
    assert [goal.is_met for goal in goals.goals([head])] == [None] * 7 + [True, True]
    much = replace(head, peak_bytes=int(1.16 * needed))
    assert [goal.is_met for goal in goals.goals([much])][-1] is False
    assert "1.16 (linear_cross_entropy" in goals.summary([much])


def test_goals_of_launches_errors_and_failures() -> None:
    def judged(*rows: Row) -> list[bool | None]:
        return [goal.is_met for goal in goals.goals(rows)][5:8]

    both, eager = replace(ROW, direction="both", launches=2), replace(ROW, column="eager", error=1e-7)
    assert judged() == [None] * 3
    assert judged(ROW, both, eager) == [True] * 3
    assert judged(replace(ROW, launches=2))[0] is judged(replace(both, launches=3))[0] is False
    assert judged(replace(ROW, syncs=1))[0] is False
    assert judged(eager, replace(ROW, error=2.5e-7))[1] is False
    assert judged(eager, replace(ROW, dtype="bfloat16", error=1e-3))[1] is None, "eager's of that dtype is not there"
    low = replace(eager, dtype="bfloat16")
    assert judged(low, replace(ROW, dtype="bfloat16", error=1e-3))[1] is True, "within a rounding"
    assert judged(eager, replace(ROW, error=math.inf))[1] is False
    unknown = replace(both, size="8192x16384", launches=None, peak_bytes=None, percent_of_copy=None)
    assert [goal.is_met for goal in goals.goals([unknown])] == [None] * 7 + [True, None], (
        "what failed alone is not judged"
    )
    failed = replace(FAILED, column="autogen")
    assert judged(failed, eager)[2] is False and judged(failed)[2] is True


def test_calls_go_round_all_sets_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def __init__(self, **_: object) -> None:
            pass

        def record(self) -> None:
            pass

        def elapsed_time(self, other: object) -> float:
            return 0.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu, "WARM_UP", 0.0)
    spun: list[float] = []
    monkeypatch.setattr(gpu, "spin", spun.append)
    called: list[int] = []
    prepared: list[int] = []
    found = gpu.times(called.append, prepared.append)
    assert found == [500.0] * gpu.REPEATS
    assert called == prepared == list(range(len(called))) and len(called) > gpu.REPEATS
    assert len(spun) == len(called) // 10 and spun[0] == 0 and all(0 < each <= 0.05 for each in spun[1:])


@pytest.mark.slow
def test_every_case_runs_and_ours_agrees() -> None:
    assert 5 <= sum(case.is_quick for case in cases()) <= 15
    seen = set()
    for case in cases():
        shape = (*(min(n, 8) for n in case.shape[:-1]), 4 if case.name == "giou" else min(case.shape[-1], 16))
        inputs = case.training(case.inputs(shape, torch.float32, "cpu"))
        if case.name not in seen:
            seen.add(case.name)
            ours, theirs = case.autogen()(*inputs), case.eager()(*inputs)
            torch.testing.assert_close(ours, theirs)
            if case.of_torch:
                torch.testing.assert_close(case.of_torch()(*inputs), theirs)
            trained = [inputs[k] for k in case.trained]
            assert trained == [each for each in inputs if each.requires_grad]
            torch.testing.assert_close(*(torch.autograd.grad(each, trained) for each in (ours, theirs)))
    assert len(seen) == 33


def test_columns_have_the_names_that_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name for case in cases() for name, _ in run.losses(case)} <= {*run.COLUMNS}
    assert {*run.QUICK} < {*run.COLUMNS}
    with pytest.raises(SystemExit):
        run.main(["--columns", "autogen,inductor"])
    assert "inductor: choose from eager, torch, compile" in capsys.readouterr().err


def test_speedups_are_of_the_last_rows_of_what_both_have() -> None:
    ours = replace(ROW, direction="both", median=2.0)
    rows = [
        replace(ours, median=100.0),  # measured again below
        replace(ours, column="eager", median=8.0), replace(ours, column="compile", median=1.0), ours,
        replace(ours, column="eager", size="16x4", median=4.0), replace(ours, size="16x4"),
        replace(ours, column="eager", dtype="bfloat16"), replace(FAILED, direction="both"),
        replace(ours, column="eager", direction="forward", median=0.01),
    ]  # fmt: skip
    found = results.speedups(rows)
    assert {column: (each.count, each.least, each.least_case) for column, each in found.items()} == {
        "eager": (2, 2.0, "bce 16x4 float32"),
        "compile": (1, 0.5, "bce 8x4 float32"),
    }
    assert found["eager"].mean == pytest.approx(math.sqrt(2 * 4))
    best = results.speedup_over(["eager", "compile"], rows)
    assert best is not None and best.ratios == {"bce 8x4 float32": 0.5, "bce 16x4 float32": 2.0}


def texts(path: Path) -> list[str]:
    """What is written in a figure: matplotlib draws letters as paths, and says in comments which."""
    ElementTree.parse(path)
    return re.findall("<!-- (.+) -->", path.read_text())


def test_figures_are_drawn_alike_again(tmp_path: Path) -> None:
    rows = [replace(ROW, case=case, size=size) for case, size in (("bce", "8x4"), ("bce", "16x4"), ("mse", "8x4"))]
    rows += [replace(row, column="eager", median=9.0) for row in rows]
    results.append([each for row in (*rows, FAILED) for each in all_directions(row)], tmp_path / "gpu.csv")
    size = memory.Size(64, 32, 128, torch.float32, 16)
    of_heads = [memory.Row(size, "cross entropy", column, k << 20, 0) for k, column in ((7, "eager"), (5, memory.OURS))]
    memory.write(of_heads, "CPU", "torch 2", tmp_path / "memory.csv")
    for folder in ("once", "again"):
        options = [str(tmp_path / "gpu.csv"), "--memory", str(tmp_path / "memory.csv"), "--output"]
        assert plots.main([*options, str(tmp_path / folder)]) == 0
    once, again = ({each.name: each.read_bytes() for each in (tmp_path / name).iterdir()} for name in ("once", "again"))
    assert once == again
    found = {name: texts(tmp_path / "once" / name) for name in once}
    assert "geometric mean 4.50 (dashed), 3 cases" in found["speed.svg"]
    assert "mse 8x4 float32" in found["times.svg"] and "How does the time of bce in float32 grow?" in found["sizes.svg"]
    assert {"7", "5", "torch eager", "autogen, chunks of 16 rows"} <= {*found["memory.svg"]}


@pytest.mark.slow
def test_figures_are_of_the_results(tmp_path: Path) -> None:
    assert plots.main(["--output", str(tmp_path)]) == 0
    drawn, kept = ({each.name: texts(each) for each in folder.glob("*.svg")} for folder in (tmp_path, plots.OUTPUT))
    assert drawn == kept, "run `make bench-plots`"


def test_without_results_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plots.main([str(tmp_path / "gpu.csv"), "--output", str(tmp_path)]) == 2
    assert "no results" in capsys.readouterr().err and not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["-m", "bench.run"], ["bench/gpu_check.sh"]], ids=["run", "check"])
def test_without_a_gpu_nothing_pretends(command: list[str]) -> None:
    program = ["bash"] if command[0].endswith(".sh") else [sys.executable]
    environment = {**os.environ, "PYTHON": sys.executable}
    ran = subprocess.run(
        [*program, *command], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert ran.returncode == 2
    assert "no GPU" in ran.stderr and not ran.stdout
