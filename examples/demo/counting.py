"""Count launches and memory independently: in Triton's interpreter, the GPU's trace, and torch's allocators."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Launches:
    """How many kernels were launched in a block; final when the block has ended."""

    count = 0


@contextmanager
def counted_launches(device: torch.device, name: str = "") -> Iterator[Launches]:
    """Count the kernels launched in the block: on a GPU all those whose name contains `name`, torch's own included."""
    counter = _on_gpu(name) if device.type == "cuda" else _in_interpreter()
    with counter as launches:
        yield launches


def peak_bytes(device: torch.device, call: Callable[[], object]) -> int:
    """What a call allocates at most, beside what there is; it is called twice."""
    from bench import gpu, memory

    call()
    if device.type == "cuda":
        return gpu.peak(lambda _: call(), lambda _: None)
    # Triton's interpreter keeps what it was given in cycles of its own.
    gc.freeze()
    try:
        with _after_interpreted(gc.collect):
            return memory.profiled(call)[1]
    finally:
        gc.unfreeze()


@contextmanager
def _in_interpreter() -> Iterator[Launches]:
    launches = Launches()

    def count() -> None:
        launches.count += 1

    with _after_interpreted(count):
        yield launches


@contextmanager
def _after_interpreted(then: Callable[[], object]) -> Iterator[None]:
    """Do something after each launch of Triton's interpreter."""
    from triton.runtime.interpreter import GridExecutor

    original = GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        then()

    GridExecutor.__call__ = call
    try:
        yield
    finally:
        GridExecutor.__call__ = original


@contextmanager
def _on_gpu(name: str) -> Iterator[Launches]:
    from torch.profiler import ProfilerActivity, profile

    launches = Launches()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        yield launches
        torch.cuda.synchronize()
    on_device = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    launches.count = sum(name in event.name for event in on_device)
