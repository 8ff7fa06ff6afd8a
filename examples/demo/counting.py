"""Counting launches from outside: at Triton's interpreter or in the GPU's own trace, not by what autogen claims."""

from __future__ import annotations

from collections.abc import Iterator
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


@contextmanager
def _in_interpreter() -> Iterator[Launches]:
    from triton.runtime.interpreter import GridExecutor

    launches = Launches()
    original = GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        launches.count += 1
        return original(self, *args, **kwargs)

    GridExecutor.__call__ = call
    try:
        yield launches
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
