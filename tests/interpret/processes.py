"""Run programs in processes of their own, which share what is on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(program: str, folder: Path, seed: int, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs a program, written to a folder, with its own order of sets."""
    script = folder / "script.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(process: subprocess.Popen[str]) -> str:
    """The last line that a process prints."""
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return output.splitlines()[-1]
