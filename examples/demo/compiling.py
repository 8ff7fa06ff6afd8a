"""Compile every kernel of the demo for real targets, in processes of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autogen.aot import TARGETS, SpecializedKernel, compile_all

MOST_PROCESSES = 8


@dataclass(frozen=True)
class Verdict:
    """What became of a case's kernels on one target: how many compiled, and the first message if some did not."""

    target: str
    compiled: int
    kernels: int
    spilled: int
    message: str = ""

    @property
    def good(self) -> bool:
        """Whether all kernels compiled."""
        return self.compiled == self.kernels


class Compilation(threading.Thread):
    """Compiles in the background, for as long as the `with` block lasts.

    Args:
        kernels: what to compile, by the number of its case.
        targets: for what, by their names in `autogen.aot.TARGETS`.
    """

    def __init__(self, kernels: Mapping[int, Sequence[SpecializedKernel]], targets: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.targets = tuple(targets)
        self.done = 0
        self._kernels = kernels
        self._jobs = list(dict.fromkeys(kernel for group in kernels.values() for kernel in group))
        self.total = len(self.targets) * len(self._jobs)
        self._results: dict[tuple[SpecializedKernel, str], tuple[int, str]] = {}
        self._failure: Exception | None = None
        self._is_stopped = False

    def __enter__(self) -> Compilation:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_stopped = True
        self.join()

    def run(self) -> None:
        """What the thread does."""
        processes = min(os.cpu_count() or 1, MOST_PROCESSES)
        targets = [TARGETS[name] for name in self.targets]
        try:
            for kernel, target, result in compile_all(self._jobs, targets, processes):
                spilled, message = (0, result) if isinstance(result, str) else (result.spilled, "")
                self._results[kernel, target.name] = spilled, message
                self.done += 1
                if self._is_stopped:
                    break  # which closes the generator, and that ends its processes
        except Exception as error:
            self._failure = error

    def verdicts(self, case: int) -> list[Verdict]:
        """What became of a case's kernels, target by target; call it when the thread has ended."""
        return [self._verdict(self._kernels.get(case, ()), target) for target in self.targets]

    def _verdict(self, kernels: Sequence[SpecializedKernel], target: str) -> Verdict:
        unknown = 0, str(self._failure)
        results = [self._results.get((kernel, target), unknown) for kernel in kernels]
        messages = [message for _, message in results if message]
        spilled = sum(spilled for spilled, _ in results)
        return Verdict(target, len(results) - len(messages), len(results), spilled, messages[0] if messages else "")
