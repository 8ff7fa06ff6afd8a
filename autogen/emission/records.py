"""Records: the neighbouring elements that a kernel reads of each of its rows, such as the corners of a box, read at
once instead of each by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from autogen.ir import Buffer, Node
from autogen.tiling.space import Space

SIZES = (4, 2)


@dataclass(frozen=True)
class Record:
    """Loads that differ in nothing but their last step: `parts[k]` is at the offset `start + k`, over merged axes."""

    buffer: Buffer
    start: sympy.Expr
    parts: tuple[Node, ...]

    @property
    def function(self) -> str:
        """What takes it apart, of `autogen.device_math`."""
        return f"parts_of_{len(self.parts)}"

    @property
    def places(self) -> str:
        """Its parts' places after its start, as text."""
        return f"tl.arange(0, {len(self.parts)})[None, :]"


def records_of(loads: Iterable[Node], space: Space) -> list[Record]:
    """The records among some loads whose index is not computed."""
    found: dict[tuple[Buffer, sympy.Expr], dict[int, Node]] = {}
    for node in loads:
        buffer, index = node.attrs
        place, start = sympy.expand(space.merged(buffer.offset(index))).as_coeff_Add()
        if start != 0 and place.is_Integer:
            found.setdefault((buffer, start), {})[int(place)] = node
    records = []
    for (buffer, start), places in found.items():
        for size in SIZES:
            if not _is_multiple(start, size):
                continue
            for first in sorted(place for place in places if place % size == 0):
                if all(place in places for place in range(first, first + size)):
                    parts = tuple(places.pop(place) for place in range(first, first + size))
                    records.append(Record(buffer, start + first, parts))
    return records


def _is_multiple(start: sympy.Expr, size: int) -> bool:
    """Whether a sum of terms in axes and sizes is surely a multiple of a number."""
    factors = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(start)]
    return all(factor.is_Integer and factor % size == 0 for factor in factors)
