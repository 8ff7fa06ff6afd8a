"""Emission: a kernel of the plan → Triton source."""

from __future__ import annotations

from autogen.emission.block import Block
from autogen.emission.flat import Flat
from autogen.emission.looped import Looped
from autogen.emission.rows import Resident, Tiled
from autogen.emission.shell import Shell, Variant
from autogen.emission.source import KernelSource, Partial
from autogen.kernel import Kernel
from autogen.lowering.values import Provenance
from autogen.space import Space


def emit(kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> KernelSource:
    """The source of a kernel; the same arguments give the same bytes."""
    shell: type[Shell]
    if kernel.one_block:
        shell = Block
    elif not kernel.columns:
        shell = Flat
    elif not kernel.whole_rows:
        shell = Tiled
    else:
        shell = Looped if variant.looped else Resident
    return shell(kernel, space, variant, provenance).emit()


__all__ = ["KernelSource", "Partial", "Variant", "emit"]
