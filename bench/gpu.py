"""What `bench.run` asks of the GPU: how long a call takes there, what it launches, waits for and allocates.

A call is that of one set of inputs, by number; `prepare` makes it ready, and is no part of what is measured.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable

import torch

from bench.results import percentile

DEVICE = "cuda"
REPEATS = 60
BUDGET = 0.5  # seconds for one number
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
    """µs of each of some calls, between events of the GPU."""
    for k in range(3):
        prepare(k)
        call(k)
    torch.cuda.synchronize()
    found: list[float] = []
    deadline = time.monotonic() + BUDGET
    while len(found) < REPEATS and (time.monotonic() < deadline or not found):
        batch = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(10)]
        for k, (start, end) in enumerate(batch):
            prepare(k)
            start.record()
            call(k)
            end.record()
        torch.cuda.synchronize()
        found += [start.elapsed_time(end) * 1000 for start, end in batch]
    return found


def copy_bandwidth() -> float:
    """GB/s of a copy from memory to memory, read and written bytes together."""
    source = torch.empty(2**28, dtype=torch.float32, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / percentile(times(lambda _: target.copy_(source), lambda _: None), 0.5) / 1000


def launches(call: Call, prepare: Call) -> int:
    """Kernels that a call launches."""
    prepare(0)
    call(0)
    prepare(0)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call(0)
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == _CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in events)


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
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call(0)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
