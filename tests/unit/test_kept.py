"""What is kept of a call for the next one of its sizes, and what is not."""

from __future__ import annotations

import pytest
import torch

from autogen.tracing.domain import kept
from autogen.tracing.domain.kept import Kept


def test_results_are_those_of_their_sizes() -> None:
    results = Kept()
    assert results.get(3, 4) is None
    places = torch.arange(3)
    assert results.put(([places], True), 3, 4) == ([places], True)
    found = results.get(3, 4)
    assert found is not None
    assert found[0][0] is places
    assert results.get(4, 3) is None
    assert results.put((7,)) == results.get() == (7,)


def test_what_was_written_to_is_computed_anew() -> None:
    results = Kept()
    places = torch.arange(3)
    results.put(([places],), 3)
    places[:2].add_(1)
    assert results.get(3) is None


def test_what_autograd_does_not_know_is_not_kept() -> None:
    results = Kept()
    with torch.inference_mode():
        results.put(([torch.arange(3)],), 3)
    assert results.get(3) is None


def test_what_a_cuda_graph_will_compute_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    results, places = Kept(), torch.arange(3)
    monkeypatch.setattr(kept, "_streams", lambda tensors: ((torch.device("cuda"), "a stream"),))
    for is_captured in (True, False):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda found=is_captured: found)
        assert results.get(3) is None
        assert results.put(([places],), 3) == ([places],)
    assert results.get(3) == ([places],)


def test_little_is_kept() -> None:
    results = Kept()
    results.put((torch.empty(kept.MOST_BYTES + 1, dtype=torch.uint8),), 0)
    assert results.get(0) is None
    for size in range(100):
        results.put((size,), size)
    assert results.get(99) == (99,)
    assert sum(results.get(size) is not None for size in range(100)) <= 8
