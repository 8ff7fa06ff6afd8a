"""Measure a call on the GPU for `bench.run`: time, launches, waits for the device, and memory.

A call is that of one set of inputs, by number; `prepare` makes it ready, and is no part of what is measured.
"""

from __future__ import annotations

import functools
import gc
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping

import torch

from bench.results import percentile

# A profiler that stays attached makes every later launch slower.
os.environ.setdefault("TEARDOWN_CUPTI", "1")

DEVICE = "cuda"
WARM_UP = 0.05  # seconds: after a while of compiling, clocks have to rise again
REPEATS = 100
BUDGET = 0.2  # seconds for one number
_BATCH = 10
_CYCLES = 2e9  # per second, of no GPU's clock less
_LONGEST = 0.05  # seconds that the GPU waits for the host
_CUDA = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]

Call = Callable[[int], object]


def is_there() -> bool:
    """Whether there is one."""
    return torch.cuda.is_available()


def name() -> str:
    """The GPU's own name."""
    return torch.cuda.get_device_name()


def cache_bytes() -> int:
    """The size of the L2 cache."""
    return torch.cuda.get_device_properties(0).L2_cache_size


def free_bytes() -> int:
    """The memory that nobody uses."""
    return torch.cuda.mem_get_info()[0]


def forget_memory() -> None:
    """Give memory back that nothing uses."""
    torch.cuda.empty_cache()


def times(call: Call, prepare: Call) -> list[float]:
    """µs of each of some calls, between events of the GPU.

    It spins until the host has queued a batch of them: how long that takes is another question (`bench.host`), and
    would hide what kernels take that are shorter.
    """
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_BATCH)]
    found: list[float] = []
    begun = time.monotonic()
    is_warm, calls, queuing = False, 0, 0.0
    while len(found) < REPEATS and (not found or time.monotonic() < begun + BUDGET):
        spin(min(1.5 * queuing, _LONGEST))
        began_queuing = time.monotonic()
        for start, end in events:
            prepare(calls)
            start.record()
            call(calls)
            end.record()
            calls += 1
        queuing = time.monotonic() - began_queuing
        torch.cuda.synchronize()
        if is_warm:
            found += [start.elapsed_time(end) * 1000 for start, end in events]
        elif time.monotonic() > begun + WARM_UP:
            is_warm, begun = True, time.monotonic()
    return found


def spin(seconds: float) -> None:
    """Keep the GPU busy for about so long, in one kernel."""
    torch.cuda._sleep(int(seconds * _CYCLES))


@functools.cache
def _copy_bandwidth(size: int) -> float:
    """GB/s of a copy that moves so many bytes; those of several are larger than twice the L2 cache."""
    count = min(max(-(-2 * cache_bytes() // size), 1), 32)
    pairs = [torch.empty((2, size // 2), dtype=torch.uint8, device=DEVICE) for _ in range(count)]
    found = times(lambda k: pairs[k % count][1].copy_(pairs[k % count][0]), lambda _: None)
    return size / percentile(found, 0.5) / 1000


def copy_bandwidth(size: int = 2**31) -> float:
    """GB/s of a copy from memory to memory, read and written bytes together: of the power of 2 that is next to `size`,
    from 1 MiB to 2 GiB.
    """
    return _copy_bandwidth(2 ** min(max(round(math.log2(max(size, 1))), 20), 31))


def launches(calls: Mapping[str, tuple[Call, Call]]) -> dict[str, int]:
    """Kernels that each of some calls launches, and what makes it ready does not."""
    for call, prepare in calls.values():
        prepare(0)
        call(0)
    # One profiler for all, as it takes long to attach; between them the GPU spins.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for call, prepare in calls.values():
            prepare(0)
            spin(0)
            call(0)
            spin(0)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == _CUDA]
    counts = [0]
    for event in sorted(kernels, key=lambda event: event.time_range.start):
        if "spin_kernel" in event.name:
            counts.append(0)
        elif not event.name.startswith(("Memcpy", "Memset")):
            counts[-1] += 1
    return dict(zip(calls, counts[1::2], strict=True))


def syncs(call: Call, prepare: Call) -> int:
    """How often a call waits for the GPU."""
    prepare(0)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in caught)


def peak(call: Call, prepare: Call) -> int:
    """Bytes that a call allocates at most, beside what there is."""
    prepare(0)
    torch.cuda.synchronize()
    gc.disable()  # what it frees would hide what the call allocates
    try:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(0)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    finally:
        gc.enable()
