"""Scratch memory that is kept for the launches of a stream, without a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from autogen.runtime import scratch

DEVICE = torch.device("cuda", 0)


class Stream:
    cuda_stream = 7


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, Any]]]:
    """A GPU, as far as scratch memory asks for one: the thread and the stream of each allocation."""
    made: list[tuple[int, Any]] = []
    entered = threading.local()

    def allocating(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def noted(*size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            made.append((threading.get_ident(), getattr(entered, "stream", None)))
            return allocate(*size, dtype=dtype)

        return noted

    def enter(stream: Any) -> Any:
        entered.stream = stream
        return nullcontext()

    monkeypatch.setattr(torch, "empty", allocating(torch.empty))
    monkeypatch.setattr(torch, "zeros", allocating(torch.zeros))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream)
    monkeypatch.setattr(torch.cuda, "stream", enter)
    monkeypatch.setattr(scratch, "_scratches", {})
    monkeypatch.setattr(scratch, "_counters", {})
    yield made


def test_what_is_kept_of_a_gpu_is_not_in_the_pool_of_this_thread(pretended: list[tuple[int, Any]]) -> None:
    """Which is that of a CUDA graph, while Inductor warms up for it. It belongs to the stream all the same."""
    counter = scratch.ticket_counter(DEVICE)
    memory = scratch.make_scratch(DEVICE, Stream.cuda_stream, 64)
    assert scratch.ticket_counter(DEVICE) is counter
    assert scratch.scratches_of(DEVICE) == {Stream.cuda_stream: memory}
    assert [stream for _, stream in pretended] == [Stream] * 3  # a counter; partial results with a counter of their own
    assert threading.get_ident() not in [thread for thread, _ in pretended]


def test_the_counter_of_a_cuda_graph_is_in_its_pool(
    pretended: list[tuple[int, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert scratch.ticket_counter(DEVICE) is not scratch.ticket_counter(DEVICE)
    assert pretended == [(threading.get_ident(), None)] * 2


def test_memory_that_there_is_not_is_said_where_it_is_wanted(pretended: list[tuple[int, Any]]) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        scratch.to_keep(fail, DEVICE)
