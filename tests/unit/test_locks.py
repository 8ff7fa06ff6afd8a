"""One thread at a time, and what is left of it in a child of the process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from autogen import autogen_loss, compat
from autogen.runtime import locks

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
def elsewhere(context: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """Another thread is inside of a context, to the end of the block."""
    inside, done = threading.Event(), threading.Event()

    def stay() -> None:
        with context:
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def can_compile() -> bool:
    with locks.compiling, locks.measuring, locks.interpreting:
        return True


def test_a_child_has_no_lock_that_another_thread_holds() -> None:
    with elsewhere(locks.measuring), elsewhere(locks.compiling), elsewhere(locks.interpreting):
        assert passes_in_a_child(can_compile)
    assert can_compile()


def test_a_fork_by_the_thread_that_compiles() -> None:
    def still_compiles() -> bool:
        locks.compiling.release()  # an error if it is not held
        return True

    with locks.compiling:
        assert passes_in_a_child(still_compiles)
    with elsewhere(locks.compiling):
        pass


@pytest.mark.skipif("not __import__('autogen.runtime.availability').runtime.availability.has_interpreter()")
def test_a_child_captures_a_loss_while_another_thread_did() -> None:
    loss = autogen_loss(lambda x: (x * 3).sum())
    assert loss(torch.ones(3)) == 9
    (lock,) = compat.locks_of_dynamo()
    with elsewhere(lock):
        assert passes_in_a_child(lambda: bool(autogen_loss(lambda x: (x * 2).sum())(torch.ones(3)) == 6))
