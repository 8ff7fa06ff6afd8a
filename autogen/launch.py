"""Launching: tensors and sizes of a call → the kernel's results."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from autogen import build, ir
from autogen.emission import KernelSource, Partial, Variant, emit
from autogen.errors import CompileError, defects_of
from autogen.kernel import CHUNKS, PROGRAMS, Kernel
from autogen.lowering.values import Provenance
from autogen.sizes import Evaluator
from autogen.space import Space
from autogen.tiling import Tiler, Tiling

_counters: dict[tuple[Any, ...], torch.Tensor] = {}


class Results:
    """The tensors that some launches write to."""

    def __init__(self, buffers: Iterable[ir.Buffer]) -> None:
        self._geometry = {
            buffer.name: (buffer.dtype, Evaluator(buffer.shape), Evaluator(buffer.strides)) for buffer in buffers
        }

    def allocate(self, sizes: Mapping[str, int], device: torch.device) -> dict[str, torch.Tensor]:
        """New tensors for results of the given sizes, by name."""
        return {
            name: torch.empty_strided(shape(sizes), strides(sizes), dtype=dtype, device=device)
            for name, (dtype, shape, strides) in self._geometry.items()
        }


class Launcher:
    """One kernel of a plan, ready to be launched for any sizes; its variants are emitted when first needed."""

    def __init__(self, kernel: Kernel, provenance: Provenance) -> None:
        self.kernel = kernel
        self._provenance = provenance
        self._space = Space(kernel)
        self._tiler = Tiler(kernel, self._space)
        self._sources: dict[Variant, KernelSource] = {}
        self._arguments: dict[Variant, Evaluator] = {}
        self._counts: dict[Variant, Evaluator] = {}

    def tiling(self, sizes: Mapping[str, int]) -> Tiling:
        """The launch parameters for the given sizes."""
        return self._tiler.tiling(sizes)

    def source(self, variant: Variant) -> KernelSource:
        """The kernel's text in a variant."""
        source = self._sources.get(variant)
        if source is None:
            with defects_of(self._provenance.loss):
                source = self._sources[variant] = emit(self.kernel, self._space, variant, self._provenance)
            self._arguments[variant] = Evaluator([size for _, size in source.sizes])
            self._counts[variant] = Evaluator([partial.count for partial in source.partials])
        return source

    def partials(self, sizes: Mapping[str, int]) -> list[tuple[Partial, int]]:
        """What programs store for the last block, and how many values."""
        tiling = self.tiling(sizes)
        source = self.source(tiling.variant)
        launched = {**sizes, str(PROGRAMS): tiling.programs, str(CHUNKS): tiling.chunks}
        return list(zip(source.partials, self._counts[tiling.variant](launched), strict=True))

    def __call__(self, tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], device: torch.device) -> None:
        """Launch once: read from and write to `tensors`, by name."""
        tiling = self.tiling(sizes)
        source = self.source(tiling.variant)
        function = build.load_function(source.name, source.text)
        arguments: list[Any] = [tensors[buffer.name] for buffer in source.buffers]
        for partial, count in self.partials(sizes):
            arguments.append(torch.empty(count, dtype=partial.dtype, device=device))
        if source.partials:
            arguments.append(ticket_counter(device))
        arguments += self._arguments[tiling.variant](sizes)
        tiles = dict(tiling.tiles)
        arguments += [tiles[tile] for tile in source.tiles]
        with device_context(device):
            try:
                function[(tiling.programs,)](*arguments, num_warps=tiling.num_warps)
            except Exception as error:
                _counters.clear()  # a launch that failed half-way leaves its counter above 0
                if type(error).__module__.startswith("triton.compiler"):
                    raise CompileError(source.name, cause=error) from error
                raise


def ticket_counter(device: torch.device) -> torch.Tensor:
    """The counter by which blocks find out who is last: 0 between launches, never shared between streams.

    While a CUDA graph is captured the counter belongs to the graph.
    """
    if device.type != "cuda":
        key: tuple[Any, ...] = (device, threading.get_ident())
    elif torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    else:
        key = (device, torch.cuda.current_stream(device).cuda_stream)
    counter = _counters.get(key)
    if counter is None:
        counter = _counters[key] = torch.zeros(1, dtype=torch.int32, device=device)
    return counter


@contextlib.contextmanager
def device_context(device: torch.device) -> Iterator[None]:
    """What a launch on a device needs around it."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
        return
    import numpy

    # Triton's interpreter computes masked lanes too, whose results nobody uses.
    with numpy.errstate(all="ignore"):
        yield
