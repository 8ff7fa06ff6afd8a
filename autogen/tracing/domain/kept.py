"""What sizes alone decide, such as the places where `~torch.eye(n)` holds: computed once for some sizes, and kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.frozen import frozen

MOST_BYTES = 32 * 2**20  # of one result: what is larger costs more memory than time
_MOST = 8  # latest sizes


class Kept:
    """The results of one entry for the sizes that it has come with of late.

    A result is used on the stream that has computed it, so that nothing has to wait for it. While a CUDA graph is
    captured none is used, as the graph would keep its address, or kept, as nothing is computed yet. What somebody has
    written to, as a loss may return it, is computed anew.
    """

    def __init__(self) -> None:
        self._results: dict[Hashable, _Result] = {}

    def get(self, *sizes: int) -> tuple[Any, ...] | None:
        """The result for some sizes, if it is known."""
        result = self._results.get(sizes)
        return result.values if result is not None and result.is_usable() else None

    def put(self, values: tuple[Any, ...], *sizes: int) -> tuple[Any, ...]:
        """Keep a result, which may hold tensors and lists of them; returns it."""
        tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        streams = _streams(tensors)
        is_lasting = not (_is_captured(streams) or any(each.is_inference() for each in tensors))
        if is_lasting and sum(each.nbytes for each in tensors) <= MOST_BYTES:
            result = _Result(values, tuple((each, each._version) for each in tensors), streams)
            if len(self._results) >= _MOST and sizes not in self._results:
                self._results.clear()
            self._results[sizes] = result
        return values


@frozen
class _Result:
    values: tuple[Any, ...]
    versions: tuple[tuple[torch.Tensor, int], ...]
    streams: tuple[tuple[torch.device, torch.Stream], ...]

    def is_usable(self) -> bool:
        """Whether it is what was computed, and may be read without waiting."""
        if any(each._version != version for each, version in self.versions):
            return False
        if not self.streams:
            return True
        return not _is_captured(self.streams) and self.streams == _streams([each for each, _ in self.versions])


def _is_captured(streams: tuple[tuple[torch.device, torch.Stream], ...]) -> bool:
    """Whether what runs on some streams of GPUs becomes part of a CUDA graph."""
    return bool(streams) and torch.cuda.is_current_stream_capturing()


def _streams(tensors: list[torch.Tensor]) -> tuple[tuple[torch.device, torch.Stream], ...]:
    devices = dict.fromkeys(each.device for each in tensors if each.device.type != "cpu")
    return tuple((device, torch.accelerator.current_stream(device)) for device in devices)
