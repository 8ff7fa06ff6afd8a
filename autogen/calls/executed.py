"""Which functions run while a loss is traced.

A loss may reach a whole framework: through the methods of a class, the registries of a package. What it reads is what
the functions that run may read, so of such a loss only these are looked at. As long as nothing has changed there, the
same functions run again; where something has, the loss is traced anew, and watched again.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from autogen.calls.libraries import is_library


def is_profiled() -> bool:
    """Whether a profiler is at work in this thread."""
    return sys.getprofile() is not None


@contextlib.contextmanager
def noted(codes: set[types.CodeType]) -> Iterator[None]:
    """Add to `codes` the code of all functions that start in this thread meanwhile, but for those of libraries.

    No profiler may be at work: there can be only one.
    """
    seen: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code not in seen:
            seen.add(frame.f_code)
            if not is_library(frame.f_globals.get("__name__")):
                codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        with torch.autograd.set_multithreading_enabled(False):  # backward runs in this thread, too
            yield
    finally:
        sys.setprofile(None)
