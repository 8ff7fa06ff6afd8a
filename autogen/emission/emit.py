"""Choose the shell for a kernel, and emit it."""

from __future__ import annotations

from autogen.emission.block import Block
from autogen.emission.chunked import Chunked
from autogen.emission.flat import Flat
from autogen.emission.horizontal import Horizontal
from autogen.emission.last_block import Finish
from autogen.emission.looped import Looped
from autogen.emission.rows import Resident, Tiled
from autogen.emission.source import KernelSource
from autogen.emission.strided import Strided, StridedFlat, StridedTiled
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant


def emit(kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> KernelSource:
    """The source of a kernel; the same arguments give the same bytes."""
    if kernel.one_block:
        return Block(kernel, space, variant, provenance).emit()
    if variant.looped:
        kernel = kernel.in_steps(provenance.moved)
    if kernel.parts:
        parts = [
            (part.in_steps(provenance.moved) if own.looped else part, own)
            for part, own in zip(kernel.parts, variant.parts, strict=True)
        ]
        shells = [_streaming(part, own)(part, Space(part), own, provenance) for part, own in parts]
        return Horizontal(kernel, space, variant, provenance, shells).emit()
    last = [Finish(kernel, variant, provenance).function()] if kernel.last_block else []
    return _streaming(kernel, variant)(kernel, space, variant, provenance).emit(*last)


def _streaming(
    kernel: Kernel, variant: Variant
) -> type[Flat | Chunked | Tiled | Looped | Strided | StridedFlat | StridedTiled | Resident]:
    """The shell of a kernel of many programs."""
    if kernel.last_block and kernel.last_block.chunked and not variant.looped:
        return Chunked
    if not kernel.columns:
        return StridedFlat if variant.strided else Flat
    if not kernel.whole_rows:
        return StridedTiled if variant.strided else Tiled
    if variant.looped:
        return Looped
    return Strided if variant.strided else Resident
