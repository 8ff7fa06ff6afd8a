"""What has a part in compiling a loss: what is kept of one version is of no use to another."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Hashable, Iterator
from pathlib import Path

import torch


def source_files() -> Iterator[Path]:
    """All files of this package that have a part in compiling a loss, also where links lead."""
    for folder, _, files in os.walk(Path(__file__).parent.parent, followlinks=True):
        yield from (Path(folder, file) for file in files if file.endswith((".py", ".jinja")))


@functools.cache
def versions() -> tuple[Hashable, ...]:
    """All that has a part in compiling a loss; a digest of our own files' sizes and ages."""
    import numpy
    import sympy
    import triton

    own = []
    for path in source_files():
        state = path.stat()
        own.append((path.parent.name, path.name, state.st_size, state.st_mtime_ns))
    libraries = (torch, triton, sympy, numpy)
    ours = hashlib.sha256(repr(sorted(own)).encode()).hexdigest()
    return platform.python_version(), *(library.__version__ for library in libraries), ours
