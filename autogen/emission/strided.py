"""The strided shells: each program walks several tiles, of elements or of rows that fit on chip."""

from __future__ import annotations

from typing import Any

from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.flat import Flat
from autogen.emission.rows import Resident, Tiled
from autogen.emission.shell import identity
from autogen.emission.streaming import Streaming
from autogen.ir import Node
from autogen.scheduling.launches.kernel import Level


class _Loop(Streaming):
    """Prints a kernel as a loop over tiles, with running totals that begin before it."""

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

    def inside(self, outer: Body) -> Body:
        """Where the statements of a tile are: in the loop."""
        return self.body(outer)

    def run(self, node: Node, partial: str, shape: str, value: str, body: Body) -> None:
        """Take a value of each tile into a running total."""
        kind, dtype = node.attrs[0], TRITON_DTYPES[node.dtype]
        self._starts.append(f"{partial} = tl.full([{shape}], {identity(kind, node.dtype)}, {dtype})")
        body.lines.append(self.accumulate(kind, partial, value))


class _ByElement(_Loop):
    """Adds up totals element by element of a tile, so that threads exchange nothing before the end of the loop."""

    def take(self, node: Node, partial: str, body: Body) -> None:
        of_elements = self.kernel.level(node.args[0]) == Level.ELEMENT
        shape = ", ".join(self.tiles[:2] if of_elements else self.tiles[:1])
        self.run(node, partial, shape, self.existing(node, body), body)
        self._ends.append(f"{partial} = {self.over_tile(node.attrs[0], partial, of_elements)}")


class StridedFlat(_ByElement, Flat):
    """Prints a flat kernel as a loop over blocks."""

    def summary(self) -> str:
        return "blocks of elements, one after the other."


class StridedTiled(_ByElement, Tiled):
    """Prints a kernel of elements with broadcast rows and columns as a loop over tiles."""

    template = "tiled_strided.jinja"
    stores_rows_if = "tile % col_tiles == 0"

    @property
    def is_last(self) -> str:
        return f"tile + 1 == {self.program_count()}"

    def summary(self) -> str:
        return "tiles of ROWS x COLS elements, one after the other."


class Strided(_Loop, Resident):
    """Prints a row kernel as a loop over tiles of whole rows."""

    template = "rows_strided.jinja"
    row_program = "row_tile"

    @property
    def is_last(self) -> str:
        return f"row_tile + 1 == {self.program_count()}"

    def summary(self) -> str:
        return "whole rows on chip, ROWS of them at a time."

    def take(self, node: Node, partial: str, body: Body) -> None:
        self.run(node, partial, "", self.whole(node, body), body)
