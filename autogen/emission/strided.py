"""The strided shells: several tiles for each program, of many elements, or of many rows that fit on chip."""

from __future__ import annotations

from typing import Any

from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.flat import Flat
from autogen.emission.rows import Resident
from autogen.emission.shell import identity
from autogen.ir import Node


class StridedFlat(Flat):
    """Prints a flat kernel as a loop over blocks, which adds up the totals element by element of a block, so that
    threads have nothing to exchange before its end.
    """

    def summary(self) -> str:
        return "blocks of elements, one after the other."

    def fill(self) -> dict[str, Any]:
        self._starts: list[str] = []
        self._ends: list[str] = []
        context = super().fill()
        return {
            **context,
            "before": "\n".join(filter(None, [context["before"], *self._starts])),
            "after": "\n".join(self._ends),
            "tiles": self.program_count(),
        }

    def take(self, node: Node, partial: str, body: Body) -> None:
        kind = node.attrs[0]
        self._starts.append(f"{partial} = tl.full([BLOCK], {identity(kind, node.dtype)}, {TRITON_DTYPES[node.dtype]})")
        self._ends.append(f"{partial} = {self.along(kind, partial, 0)}")
        body.lines.append(self.accumulate(kind, partial, self.existing(node, body)))


class Strided(Resident):
    """Prints a row kernel as a loop over tiles of whole rows, which adds up the totals."""

    template = "rows_strided.jinja"
    row_program = "row_tile"

    @property
    def is_last(self) -> str:
        return f"row_tile + 1 == {self.program_count()}"

    def summary(self) -> str:
        return "whole rows on chip, ROWS of them at a time."

    def fill(self) -> dict[str, Any]:
        self._starts: list[str] = []
        outer = self.scalars()
        body = self.body(outer)
        totals, context = self.of_rows(body)
        return {
            **context,
            "before": "\n".join([*outer.lines, *self._starts]),
            "tiles": self.program_count(),
            **self.last_block(totals, outer),
        }

    def take(self, node: Node, partial: str, body: Body) -> None:
        start = identity(node.attrs[0], node.dtype)
        self._starts.append(f"{partial} = tl.full([], {start}, {TRITON_DTYPES[node.dtype]})")
        body.lines.append(self.accumulate(node.attrs[0], partial, self.whole(node, body)))
