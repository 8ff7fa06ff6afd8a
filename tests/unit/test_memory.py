"""What a head's loss allocates is counted, and what ours does in chunks of rows is not more than it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import memory

SIZE = memory.Size(rows=64, width=32, classes=128, dtype=torch.float32, chunk=16)


@pytest.mark.slow
def test_in_chunks_no_more_is_allocated_than_is_needed(tmp_path: Path) -> None:
    as_installed = {**os.environ, "AUTOGEN_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "bench.memory", "--sizes", "256x128x2048", "--chunk", "32"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=as_installed)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.findall(r"^  (cross entropy|with z-loss) +(.+?)  +([\d.]+) +([\d.]+) +([\d.]+)$", ran.stdout, re.M)
    assert len(found) >= 2 * (3 + 4), ran.stdout
    single = len(re.findall("^  [cw].*$", ran.stdout.partition("bfloat16:")[0], re.M))
    ratios = {(loss, column): float(ratio) for loss, column, _, ratio, _ in found[:single]}
    for loss in memory.LOSSES:
        assert ratios[loss, memory.OURS] <= memory.BOUND, "in float32"
        assert ratios[loss, "eager"] > ratios[loss, "autogen, whole"] > 2 * ratios[loss, memory.OURS]
    assert {float(products) for *_, products in found} == {1.0}


def test_more_than_is_needed_is_a_failure() -> None:
    enough = memory.Row(SIZE, "cross entropy", memory.OURS, int(1.14 * SIZE.needed), 0)
    much = replace(enough, peak=int(1.16 * SIZE.needed))
    assert memory.failures([enough, replace(much, column="eager")]) == []
    (text,) = memory.failures([enough, much])
    assert text == "cross entropy 64 x 32 x 128 float32: 1.16 of what it needs, more than 1.15"


def test_what_is_needed() -> None:
    assert SIZE.needed == (64 + 128) * 32 * 4 + 2 * 16 * 128 * 4
    half = replace(SIZE, dtype=torch.bfloat16)
    assert half.needed == SIZE.needed // 2 + 128 * 32 * 4


@pytest.mark.slow
def test_peaks_and_products_of_calls() -> None:
    left, right = torch.ones(30, 20), torch.ones(20, 50)
    total, kept = torch.zeros(30, 50), []

    def call() -> None:
        kept.append(torch.mm(left, right))
        torch.empty(1000)
        torch.addmm(total, left, right, out=total)
        total.addmm_(left, right)
        kept.append(torch.empty(500))

    assert memory.profiled(call) == (3 * 2 * 30 * 20 * 50, 4 * (30 * 50 + 1000))
    assert memory.profiled(lambda: None) == (0, 0)


@pytest.mark.parametrize("arguments", [["--sizes", "8x8"], ["--sizes", "8x0x8"], ["--dtypes", "float32,int8"]])
def test_sizes_that_are_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        memory.main(arguments)
    assert re.search("is not rows x width|has no row|int8: choose from", capsys.readouterr().err)


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        memory.Row(replace(SIZE, dtype=dtype), "with z-loss", "eager", 12, 34) for dtype in (torch.half, torch.float)
    ]
    memory.write(rows, "NVIDIA H200", "torch 2, Triton 3", tmp_path / "new" / "memory.csv")
    assert memory.read(tmp_path / "new" / "memory.csv") == ("NVIDIA H200", "torch 2, Triton 3", rows)
