"""Run a program of this folder with Triton's own launcher, on a driver that does nothing (`libcuda.c`)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_COMPILER = (shutil.which("gcc") or shutil.which("cc")) if sys.platform.startswith("linux") else None
NO_COMPILER = "needs a C compiler"


def compiler() -> str:
    """The compiler of C; skips the test where there is none."""
    if _COMPILER is None:
        pytest.skip(NO_COMPILER)
    return _COMPILER


def has_compiler() -> bool:
    """Whether a driver can be built here."""
    return _COMPILER is not None


def build(folder: Path) -> Path:
    """The driver as a library in a folder, as the linker and Triton look for it."""
    library = folder / "libcuda.so.1"
    source = Path(__file__).with_name("libcuda.c")
    subprocess.run([compiler(), "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)
    (folder / "libcuda.so").symlink_to(library.name)
    return library


def run(module: str, folder: Path) -> list[dict[str, Any]]:
    """Run a module as a program, given the library as its argument; the lines of JSON that it has printed."""
    library = build(folder)
    paths = {
        "TRITON_LIBCUDA_PATH": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "AUTOGEN_CACHE_DIR": str(folder / "modules"),
    }
    command = [sys.executable, "-m", module, str(library)]
    environment = {**os.environ, **paths, "TRITON_INTERPRET": "0", "PYTHONPATH": "."}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    kernels = [json.loads(path.read_text()) for path in folder.glob("cache/*/*.json")]
    fused = [each["enable_fp_fusion"] for each in kernels if "enable_fp_fusion" in each]
    assert fused and not any(fused)  # see test_exact.py
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
