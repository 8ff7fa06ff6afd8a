"""One thread at a time, and what is left of it in a child of the process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from autogen import locks

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def passes_in_a_child(check: Callable[[], bool]) -> bool:
    """Whether a check passes in a process that is forked now; one that hangs does not."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            code = 0 if check() else 1
        finally:
            os._exit(code)
    return os.waitpid(process, 0)[1] == 0


@contextlib.contextmanager
def elsewhere(context: contextlib.AbstractContextManager[object], seconds: float = 60) -> Iterator[None]:
    """Another thread is inside of a context, to the end of the block or for some seconds."""
    inside, done = threading.Event(), threading.Event()

    def stay() -> None:
        with context:
            inside.set()
            done.wait(seconds)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def can_compile() -> bool:
    with locks.compiling, locks.measuring:
        return True


def test_a_child_has_no_lock_that_another_thread_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LONGEST_WAIT", 0.05)
    with elsewhere(locks.measuring), elsewhere(locks.compiling):
        assert passes_in_a_child(can_compile)
    assert can_compile()


def test_a_fork_waits_for_a_compilation() -> None:
    with elsewhere(locks.compiling, 0.3):
        assert passes_in_a_child(can_compile)
    with elsewhere(locks.compiling):  # another thread can still take it
        pass


def test_a_fork_by_the_thread_that_compiles() -> None:
    with locks.compiling:
        assert passes_in_a_child(can_compile)
    with elsewhere(locks.compiling):
        pass


def test_a_child_collects_garbage() -> None:
    with elsewhere(locks.without_collections()):
        assert passes_in_a_child(gc.isenabled)
        assert not gc.isenabled()
    with locks.without_collections():
        assert passes_in_a_child(lambda: not gc.isenabled())
    assert gc.isenabled()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collections_are_put_off_while_compiling(is_enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), locks.without_collections():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was else gc.disable)()
