"""What only one thread does at a time, and what becomes of it in a child of the process.

A child that is forked has no thread but the one that forked. What another thread held would be held there for ever, and
what it had changed for a while would stay so.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

compiling = threading.RLock()
"""Held by the thread that compiles: equal nodes of the IR are the same object only if one at a time makes them."""

measuring = threading.RLock()
"""Held by the thread that times kernels: two would share the device."""

interpreting = threading.RLock()
"""Held by the thread whose kernel Triton's interpreter runs, which keeps what it is at in globals."""


class Replaced:
    """How often a replay has put tensors of its own in the user's objects, and how often it has taken them out."""

    __slots__ = ("begun", "ended")

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def settled(self) -> int:
        """Wait until the user's objects hold what is theirs; `begun` is another number once they no longer do."""
        if self.begun != self.ended:
            with compiling:  # at once in the thread that replays
                pass
        return self.begun

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """While other tensors are there: no other thread puts its own there, and none reads these."""
        with compiling:
            self.begun += 1
            try:
                yield
            finally:
                self.ended += 1


replaced = Replaced()

LONGEST_WAIT = 60.0  # seconds that a fork waits for a compilation

_without_collections: set[int] = set()  # the threads that have switched them off


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No garbage collection while a loss is compiled: one walks all objects of torch and Triton, and finds nothing.

    It takes longer than a trace; what compiling leaves behind is collected afterwards.
    """
    was_enabled = gc.isenabled()
    if was_enabled:
        _without_collections.add(threading.get_ident())
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
            _without_collections.discard(threading.get_ident())


class _Fork(threading.local):
    """Whether the fork that this thread is at holds `compiling`."""

    def __init__(self) -> None:
        self.is_holding = False


_fork = _Fork()


def _before_fork() -> None:
    """Let a compilation end: a trace puts tensors of its own in the user's objects, and takes them out again.

    Not for ever, as what is compiled may wait for the thread that forks.
    """
    _fork.is_holding = False
    _fork.is_holding = compiling.acquire(timeout=LONGEST_WAIT)


def _after_in_parent() -> None:
    if _fork.is_holding:
        compiling.release()


def _after_in_child() -> None:
    if _fork.is_holding:
        compiling.release()
    else:
        compiling._at_fork_reinit()  # type: ignore[attr-defined]
    for lock in (measuring, interpreting):
        lock._at_fork_reinit()  # type: ignore[attr-defined]
    own = {threading.get_ident()}
    if _without_collections - own:
        gc.enable()
        _without_collections.intersection_update(own)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
