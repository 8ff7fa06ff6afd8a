"""The variants in which a kernel can be emitted, and the names of the tiles of its parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """How a kernel is written for a range of sizes: a row kernel resident or looped; several tiles for each program,
    which is strided, or one; offsets in 64 bits or 32; rows that begin anywhere (`autogen.tiling.skew`) or at multiples
    of 16 bytes; and so for each part.
    """

    looped: bool = False
    wide: bool = False
    skewed: bool = False
    strided: bool = False
    parts: tuple[Variant, ...] = ()


def tile_of_part(tile: str, number: int) -> str:
    """What a tile of the part with this number, from 1, is called in its kernel."""
    return f"{tile}_{number}"
