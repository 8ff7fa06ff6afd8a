"""The strided shells: several tiles for each program, of many elements, or of many rows that fit on chip."""

from __future__ import annotations

from typing import Any

from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.flat import Flat
from autogen.emission.rows import Resident, Tiled
from autogen.emission.shell import identity
from autogen.emission.streaming import Streaming
from autogen.ir import Node
from autogen.scheduling.kernel import Level


class _ByElement(Streaming):
    """Adds up totals element by element of a tile, so that threads exchange nothing before the end of a loop."""

    starts: list[str]
    ends: list[str]

    def take(self, node: Node, partial: str, body: Body) -> None:
        kind, of_elements = node.attrs[0], self.kernel.level(node.args[0]) == Level.ELEMENT
        shape = ", ".join(self.tiles[:2] if of_elements else self.tiles[:1])
        start = identity(kind, node.dtype)
        self.starts.append(f"{partial} = tl.full([{shape}], {start}, {TRITON_DTYPES[node.dtype]})")
        body.lines.append(self.accumulate(kind, partial, self.existing(node, body)))
        self.ends.append(f"{partial} = {self.over_tile(kind, partial, of_elements)}")


class StridedFlat(_ByElement, Flat):
    """Prints a flat kernel as a loop over blocks."""

    def summary(self) -> str:
        return "blocks of elements, one after the other."

    def fill(self) -> dict[str, Any]:
        self.starts, self.ends = [], []
        context = super().fill()
        return {
            **context,
            "before": "\n".join(filter(None, [context["before"], *self.starts])),
            "after": "\n".join(self.ends),
            "tiles": self.program_count(),
        }


class StridedTiled(_ByElement, Tiled):
    """Prints a kernel of elements with broadcast rows and columns as a loop over tiles."""

    template = "tiled_strided.jinja"
    row_store_mask = "row_mask & (tile % col_tiles == 0)"

    @property
    def is_last(self) -> str:
        return f"tile + 1 == {self.program_count()}"

    def summary(self) -> str:
        return "tiles of ROWS x COLS elements, one after the other."

    def fill(self) -> dict[str, Any]:
        self.starts, self.ends = [], []
        outer = self.scalars()
        totals, context = self.of_tile(self.body(outer))
        return {
            **context,
            "before": "\n".join([*outer.lines, *self.starts]),
            "after": "\n".join(self.ends),
            "tiles": self.program_count(),
            **self.last_block(totals, outer),
        }


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
        totals, context = self.of_tile(body)
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
