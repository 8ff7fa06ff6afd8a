"""Objects of libraries of which nothing tells what they give next: random generators, iterators, shared numbers."""

from __future__ import annotations

import contextvars
import random
import re
import types
import weakref
from collections.abc import Sequence
from typing import Any

from autogen.calls.mentions import attributes_in


class Opaque:
    """Those that a loss reaches; `streams` are the random generators among them, which can be put back."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self._others: list[tuple[str, type]] = []

    def note(self, value: Any, name: str) -> None:
        """Note an object of a library, if it is one of these."""
        kind = type(value)
        if isinstance(value, random.SystemRandom):
            self._others.append((name.rpartition(".")[2], type(value)))
        elif isinstance(value, random.Random) or str(kind.__module__).startswith("numpy.random"):
            self.streams.append(value)
        elif (
            isinstance(value, (contextvars.ContextVar, weakref.ref))
            or (hasattr(kind, "__next__") and not hasattr(kind, "readline"))
            or str(kind.__module__).startswith(("multiprocessing.", "ctypes"))  # numbers that processes share
        ):
            self._others.append((name.rpartition(".")[2], type(value)))

    def mentioned_in(self, codes: Sequence[types.CodeType]) -> str | None:
        """One of those that cannot be put back, if code mentions it."""
        mentioned = frozenset[str]().union(*map(attributes_in, codes), *(code.co_freevars for code in codes))
        for name, kind in self._others:
            if name in mentioned or re.sub(r"(_\d+)+$", "", name) in mentioned:  # the items of a tuple are numbered
                return f"{name} ({kind.__name__})"
        return None
