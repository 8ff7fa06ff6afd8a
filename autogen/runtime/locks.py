"""Locks that one thread at a time holds to compile, to time or to interpret, and their release in forked children."""

from __future__ import annotations

import os
import threading

from autogen import compat

compiling = threading.RLock()
"""Held by the thread that compiles: equal nodes of the IR are the same object only if one at a time makes them."""

measuring = threading.RLock()
"""Held by the thread that times kernels: two would share the device."""

interpreting = threading.RLock()
"""Held by the thread whose kernel Triton's interpreter runs, which keeps what it is at in globals."""


def _release_in_child() -> None:
    """Release what no thread of a forked child holds: it has none but the one that forked."""
    for lock in (compiling, measuring, interpreting, *compat.locks_of_dynamo()):
        if not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
