"""Pack what forward saves for backward into one tensor of bytes.

Each tensor takes a microsecond or more to allocate, to save and to get back. A call and its repetition in a checkpoint
have to save the same, so every call packs. Compiled graphs do not: there is memory in a pack that nobody writes, and
torch compares what an op returns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from autogen.runtime.launch import Geometry
from autogen.runtime.scratch import lay_out

PACK = "kept for backward"


def packed(saved: Sequence[str], made: Collection[str], apart: Collection[str]) -> tuple[str, ...]:
    """Which of the tensors that backward needs are packed: those that forward has made, if they are several.

    Not those `apart`: what the loss returns stays what it is, and what torch reads is a tensor of its own.
    """
    own = tuple(name for name in saved if name in made and name not in apart)
    return own if len(own) > 1 else ()


class Packing:
    """How one call keeps its tensors.

    `made` is what is allocated, by name; `kept` are the names of what is saved. With several of its own to save, the
    tensor `PACK` is in both; `parts` are those that lie in it, from which byte on, and their geometry.

    Args:
        saved: the tensors that backward needs.
        packed: those among them that are packed.
        made: the geometry of all that forward makes.
    """

    def __init__(self, saved: Sequence[str], packed: Collection[str], made: dict[str, Geometry]) -> None:
        self.parts: dict[str, tuple[int, Geometry]] = {}
        self.kept, self.made = saved, made
        if packed:
            geometry = [made[name] for name in packed]
            offsets, room = lay_out(map(_bytes, geometry))
            self.parts = dict(zip(packed, zip(offsets, geometry, strict=True), strict=True))
            self.kept = [*(name for name in saved if name not in packed), PACK]
            self.made = {name: each for name, each in made.items() if name not in packed}
            self.made[PACK] = (room,), (1,), torch.uint8


def part(pack: torch.Tensor, offset: int, geometry: Geometry) -> torch.Tensor:
    """The tensor of some geometry that begins at a byte of another one."""
    shape, strides, dtype = geometry
    return pack[offset:].view(dtype).as_strided(shape, strides)


def _bytes(geometry: Geometry) -> int:
    """From the first byte of a tensor to its last."""
    shape, strides, dtype = geometry
    if 0 in shape:
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))) * dtype.itemsize
