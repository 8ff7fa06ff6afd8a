"""Every example runs, and says that its losses ran on kernels and trained as in torch; `make examples` runs this."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What each needs beside the package.
EXAMPLES = {
    "huggingface": ["transformers", "accelerate"],
    "llm_head": ["transformers"],
    "lightning_module": ["lightning"],
    "accelerate_loop": ["accelerate"],
    "ddp": [],
    "fsdp2": [],
    "grpo": ["trl", "datasets"],
    "timm_losses": ["timm"],
    "monai_losses": ["monai"],
    "kornia_losses": ["kornia"],
}


def need(packages: Sequence[str]) -> None:
    """Skip the test where a package is missing."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, as `make examples` installs")


def run(name: str, *arguments: str, seconds: int = 300) -> str:
    """What an example prints, run by itself on the CPU with the network's libraries offline."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.examples.run", f"examples.{name}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str) -> None:
    need(EXAMPLES[name])
    lines = [line for line in run(name).splitlines() if "loss" in line.lower()]
    assert 2 <= len(lines) <= 4, lines


def test_every_example_is_run() -> None:
    tools = {"beyond", "coverage", "package_calls", "packages", "refresh_docs", "run_notebook", "written"}
    tools |= {"face_boxes"}  # which tests/features run
    files = {file.stem for file in (ROOT / "examples").glob("*.py")} - {"__init__"}
    assert files == tools | set(EXAMPLES)


def test_notebook_prints_what_it_shows() -> None:
    need(["nbclient", "ipykernel"])
    import nbformat

    from examples.run_notebook import NOTEBOOK, executed

    def printed(notebook: nbformat.NotebookNode) -> list[list[str]]:
        outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
        return [
            [each.get("text", each.output_type) for each in found if each.get("name") != "stderr"] for found in outputs
        ]

    found = printed(executed())
    assert any("_backward(" in text for cell in found for text in cell)
    assert found == printed(nbformat.read(NOTEBOOK, as_version=4)), "run `python -m examples.run_notebook`"


def test_tables_of_packages_are_current() -> None:
    need(["timm", "monai", "kornia", "torchvision", "transformers", "scipy"])
    from examples.packages import PAGE, TABLES

    before = PAGE.read_text(encoding="utf-8")
    (claimed,) = TABLES.findall(before)
    assert run("packages", "--print", seconds=1800) == claimed, "run `python -m tests.examples.run examples.packages`"
    assert PAGE.read_text(encoding="utf-8") == before
