"""Records: neighbouring elements of a row, such as the corners of a box or their gradient, as one load or store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import sympy

from autogen.ir import Buffer, Node
from autogen.ir.program import Root
from autogen.scheduling.launches.records import SIZES
from autogen.tiling.space import Space

Part = TypeVar("Part", Node, Root)


@dataclass(frozen=True)
class Record(Generic[Part]):
    """Loads or results that differ in nothing but their last step: `parts[k]` is at the offset `start + k`, over merged
    axes.
    """

    buffer: Buffer
    start: sympy.Expr
    parts: tuple[Part, ...]

    @property
    def places(self) -> str:
        """Its parts' places after its start, as text."""
        return f"tl.arange(0, {len(self.parts)})[None, :]"


def records_of(loads: Iterable[Node], space: Space) -> list[Record[Node]]:
    """The records among some loads whose index is not computed."""
    return _records([(*node.attrs, node) for node in loads], space)


def stored_records(roots: Iterable[Root], space: Space) -> list[Record[Root]]:
    """The records among some results."""
    return _records([(root.buffer, root.index, root) for root in roots], space)


def _records(accesses: Iterable[tuple[Buffer, Sequence[sympy.Expr], Part]], space: Space) -> list[Record[Part]]:
    found: dict[tuple[Buffer, sympy.Expr], dict[int, Part]] = {}
    for buffer, index, part in accesses:
        place, start = sympy.expand(space.merged(buffer.offset(index))).as_coeff_Add()
        if start != 0 and place.is_Integer:
            found.setdefault((buffer, start), {})[int(place)] = part
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
