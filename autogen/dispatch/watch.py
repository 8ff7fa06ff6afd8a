"""Record which segments a call runs, for `explain` and for the fast path."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
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
    """Who watches the calls of a thread."""

    runs: list[Run] | None = None
    stops = False


_watchers = _Watchers()


@contextlib.contextmanager
def watching(*, stops: bool = False) -> Iterator[list[Run]]:
    """The segments that this thread runs in the block. If it `stops`, a segment with which a call ends does not run."""
    before = _watchers.runs, _watchers.stops
    runs: list[Run] = []
    _watchers.runs, _watchers.stops = runs, stops
    try:
        yield runs
    finally:
        _watchers.runs, _watchers.stops = before


def is_stopping() -> bool:
    """Whether calls of this thread are only looked at."""
    return _watchers.stops


def watched(captured: Captured, runner: Callable[..., Any]) -> Callable[..., Any]:
    """What runs a segment, and tells whoever watches."""
    watchers = _watchers

    def run(*arguments: Any) -> Any:
        runs = watchers.runs
        if runs is None:
            return runner(*arguments)
        if watchers.stops and captured.ended_by is None and not captured.is_nested:
            runs.append(Run(captured, arguments, ()))
            raise Stopped
        results = runner(*arguments)
        runs.append(Run(captured, arguments, results))
        return results

    return run
