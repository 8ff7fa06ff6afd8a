"""Compile many kernels, in processes that compile rather than interpret.

`compile_all` runs `serve` in a new Python with `TRITON_INTERPRET=0`. That is no `multiprocessing` worker of the caller:
those run the caller's main module again, which may set the variable or import Triton first. It takes a pickle of what
to compile on its standard input, spreads it over a pool of its own, and writes a pickle of each result to its standard
output as soon as it is there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from autogen.aot.compilation import TARGETS, CompiledKernel, Target, compile_kernel
from autogen.aot.kernels import SpecializedKernel

_FOLDER = Path(__file__).parent.parent.parent  # where the package `autogen` is found


def compile_all(
    kernels: Iterable[SpecializedKernel],
    targets: Iterable[Target] = tuple(TARGETS.values()),
    processes: int | None = None,
) -> Iterator[tuple[SpecializedKernel, Target, CompiledKernel | str]]:
    """Compile every kernel for every target; can be called from any process, with or without the interpreter.

    Args:
        kernels: what to compile.
        targets: for what, by default all of `TARGETS`.
        processes: how many to use at a time, by default one per core.

    Yields:
        kernel, target, and what it became, or the error's message if it did not compile; in the order in which they
        are done.

    Raises:
        RuntimeError: the compiling process died.
    """
    jobs = [(kernel, target) for kernel in kernels for target in targets]
    paths = [str(_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", "from autogen.aot.workers import serve; serve()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            pickle.dump((jobs, processes), child.stdin)
            child.stdin.close()
            for _ in jobs:
                number, result = pickle.load(child.stdout)
                yield *jobs[number], result
            child.wait()
        except (EOFError, BrokenPipeError) as error:
            raise RuntimeError(f"the process that compiles kernels ended with status {child.wait()}") from error
        finally:
            # The processes of its pool outlive it if it is killed, so all of its session is.
            if child.returncode != 0:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)


def serve() -> None:
    """The other side of `compile_all`."""
    # What compilers print belongs to the error output; the real output carries results.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as results_file:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        jobs, processes = pickle.load(sys.stdin.buffer)
        # Spawned, because a fork of a process with threads may hang.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            numbers = {pool.submit(_compile, kernel, target): number for number, (kernel, target) in enumerate(jobs)}
            for future in as_completed(numbers):
                pickle.dump((numbers[future], future.result()), results_file)
                results_file.flush()


def _compile(kernel: SpecializedKernel, target: Target) -> CompiledKernel | str:
    from autogen.errors import CompileError, RefusedError

    try:
        return compile_kernel(kernel, target)
    except (CompileError, RefusedError) as error:
        return str(error)
