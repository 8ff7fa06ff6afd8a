"""Which shell emits a kernel."""

from __future__ import annotations

from autogen.emission.block import Block
from autogen.emission.chunked import Chunked
from autogen.emission.flat import Flat
from autogen.emission.last_block import Finish
from autogen.emission.looped import Looped
from autogen.emission.rows import Resident, Tiled
from autogen.emission.shell import Shell
from autogen.emission.source import KernelSource, Variant
from autogen.kernel import Kernel
from autogen.provenance import Provenance
from autogen.space import Space


def emit(kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> KernelSource:
    """The source of a kernel; the same arguments give the same bytes."""
    shell: type[Shell]
    last = Finish(kernel, variant, provenance).function() if kernel.last_block else None
    if kernel.one_block:
        shell = Block
    elif kernel.last_block and kernel.last_block.chunked and not variant.looped:
        shell = Chunked
    elif not kernel.columns:
        shell = Flat
    elif not kernel.whole_rows:
        shell = Tiled
    else:
        shell = Looped if variant.looped else Resident
    return shell(kernel, space, variant, provenance).emit(last)
