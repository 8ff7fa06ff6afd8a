"""Watching which segments a call runs, for `explain` and for the fast path."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autogen.dispatch.backend import Captured


@dataclass(frozen=True)
class Run:
    """A segment that has run, with its arguments and results."""

    captured: Captured
    arguments: Sequence[Any]
    results: Sequence[Any]


class Stopped(Exception):
    """A call was stopped before its segment ran, as all was known that there was to know."""


class _Watchers(threading.local):
    def __init__(self) -> None:
        self.runs: list[Run] | None = None
        self.stops = False


WATCHERS = _Watchers()
"""Who watches the calls of a thread."""


@contextlib.contextmanager
def watching(*, stops: bool = False) -> Iterator[list[Run]]:
    """The segments that this thread runs in the block. If it `stops`, a segment with which a call ends does not run."""
    before = WATCHERS.runs, WATCHERS.stops
    runs: list[Run] = []
    WATCHERS.runs, WATCHERS.stops = runs, stops
    try:
        yield runs
    finally:
        WATCHERS.runs, WATCHERS.stops = before


def run(captured: Captured, runner: Any, arguments: Sequence[Any]) -> Any:
    """Run a segment, for whoever watches."""
    runs = WATCHERS.runs
    assert runs is not None
    if WATCHERS.stops and captured.ended_by is None:
        runs.append(Run(captured, arguments, ()))
        raise Stopped
    results = runner(*arguments)
    runs.append(Run(captured, arguments, results))
    return results
