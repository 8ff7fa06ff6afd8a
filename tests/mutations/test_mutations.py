"""Faults put into the package on purpose: a test of the first tier notices each, by a value rather than by text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A fault, as a replacement of text in one file, and a test that notices it."""

    what: str
    file: str
    old: str
    new: str
    noticed_by: str


MUTATIONS = (
    Mutation(
        "Huber's line has another offset than the parabola that it continues",
        "autogen/lowering/losses.py",
        'outside = _times(delta, ir.apply("sub", size, _const(0.5 * delta, d)))',
        'outside = _times(delta, ir.apply("sub", size, _const(0.4 * delta, d)))',
        "tests/interpret/test_losses.py::test_dtype",
    ),
    Mutation(
        "the op table's text of an op is that of another",
        "autogen/ir/ops.py",
        '"log1p({0})"',
        '"log({0})"',
        "tests/unit/test_ops.py",
    ),
    Mutation(
        "GIoU's penalty has the wrong sign",
        "losses/boxes.py",
        "1 - overlap.iou + (around - overlap.union)",
        "1 - overlap.iou - (around - overlap.union)",
        "tests/interpret/test_beyond_torch.py::test_as_reference",
    ),
    Mutation(
        "a flat kernel's mask lets one element in that is not there",
        "templates/flat_tile.jinja",
        "mask = offsets < n_elements",
        "mask = offsets <= n_elements",
        "tests/interpret/test_losses.py::test_dtype",
    ),
    Mutation(
        "the mask of rows lets one in that is not there",
        "templates/rows_of_tile.jinja",
        "row_mask = row < n_rows",
        "row_mask = row <= n_rows",
        "tests/interpret/test_losses.py::test_dtype",
    ),
    Mutation(
        "rows with an ignored label count",
        "autogen/lowering/indexing.py",
        'kept = ir.apply("ne", self.label(outer), self.ignored)',
        'kept = ir.apply("ne", self.label(outer), ir.const(-7, torch.int64))',
        "tests/interpret/test_losses.py::test_option",
    ),
    Mutation(
        "the last block reads only its first partials",
        "templates/last_block.jinja",
        "for first in range(0, {{ programs }}, PARTIALS):",
        "for first in range(0, PARTIALS, PARTIALS):",
        "tests/interpret/test_last_block.py::test_partial_results_of_all_programs_are_read",
    ),
    Mutation(
        "the last block leaves its counter as it is",
        "templates/last_block.jinja",
        "tl.store(counter_ptr, 0)",
        "pass",
        "tests/interpret/test_last_block.py::test_partial_results_of_all_programs_are_read",
    ),
)


def _run(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    settings = {"PYTHONPATH": str(folder), "TRITON_INTERPRET": "1", "AUTOGEN_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    return subprocess.run(command, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the tests need, to be changed and changed back."""
    folder = tmp_path_factory.mktemp("mutated")
    for name in ("autogen", "losses", "templates", "tests", "bench", "examples"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("test", sorted({each.noticed_by for each in MUTATIONS}))
def test_without_a_fault_tests_pass(checkout: Path, test: str) -> None:
    run = _run(checkout, test)
    assert run.returncode == 0, run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.what)
def test_a_fault_is_noticed(checkout: Path, mutation: Mutation) -> None:
    file = checkout / mutation.file
    text = file.read_text()
    assert text.count(mutation.old) == 1
    file.write_text(text.replace(mutation.old, mutation.new))
    try:
        run = _run(checkout, mutation.noticed_by)
    finally:
        file.write_text(text)
    assert run.returncode == 1 and "1 failed" in run.stdout, run.stdout
