"""Scratch memory for partial results, and the counter by which a program knows that it is the last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from autogen.runtime.direct import padded

T = TypeVar("T")

COUNTERS = 1024  # one for all programs of a launch, and others for blocks of them


def _tickets(device: torch.device) -> torch.Tensor:
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


class Scratch:
    """Memory and a counter for the launches on one stream: one uses them after the other.

    `start` and `counter` are their addresses, `room` is how many bytes there are.
    """

    def __init__(self, room: int, device: torch.device) -> None:
        self.room = room
        self._partials = torch.empty(room, dtype=torch.uint8, device=device)
        self._counter = _tickets(device)
        self.start = self._partials.data_ptr()
        self.counter = self._counter.data_ptr()


_scratches: dict[torch.device, dict[int, Scratch]] = {}  # by stream
_counters: dict[tuple[Any, ...], torch.Tensor] = {}


def lay_out(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Where each kind of partial results begins, given how many bytes each needs, and how many that are together."""
    offsets, room = [], 0
    for size in sizes:
        offsets.append(room)
        room += padded(size)
    return tuple(offsets), room


def scratches_of(device: torch.device) -> dict[int, Scratch]:
    """The memory of a device's streams. Whoever uses one holds it: another thread may put a larger one there."""
    return _scratches.setdefault(device, {})


def make_scratch(device: torch.device, stream: int, room: int) -> Scratch:
    """More memory for a stream."""
    made = scratches_of(device)[stream] = to_keep(lambda: Scratch(2 * room, device), device)
    return made


def to_keep(make: Callable[[], T], device: torch.device) -> T:
    """What `make` returns for the current stream, in memory that is nobody else's as long as it is kept.

    What a thread allocates while it warms up for a CUDA graph, as Inductor has it do, is in a pool of that graph's: it
    is handed out again once the graph is there. Another thread allocates as always.
    """
    if device.type != "cuda":
        return make()
    stream = torch.cuda.current_stream(device)

    def on_stream() -> T:
        with torch.cuda.stream(stream):
            return make()

    with ThreadPoolExecutor(1) as another:
        return another.submit(on_stream).result()


def ticket_counter(device: torch.device) -> torch.Tensor:
    """A counter by which blocks find out who is last, and more for parts of them: 0 between launches, never shared
    between streams.

    While a CUDA graph is captured they belong to the graph.
    """
    if device.type != "cuda":
        key: tuple[Any, ...] = (device, threading.get_ident())
    elif torch.cuda.is_current_stream_capturing():
        return _tickets(device)
    else:
        key = (device, torch.cuda.current_stream(device).cuda_stream)
    counter = _counters.get(key)
    if counter is None:
        counter = _counters[key] = to_keep(lambda: _tickets(device), device)
    return counter


def forget() -> None:
    """After a launch that failed half-way, which leaves its counter above 0."""
    _counters.clear()
    for scratches in _scratches.values():
        scratches.clear()
