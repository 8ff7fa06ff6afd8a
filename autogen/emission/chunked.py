"""The chunked shell: each program sums a chunk of the rows of one result, and the last block combines the chunks."""

from __future__ import annotations

from typing import Any

from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.rows import Rows
from autogen.emission.shell import identity
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant

_REACHES_END = "(row_tile + 1) * ROWS - skew > n_rows"


class Chunked(Rows):
    """Prints a kernel whose totals have several results."""

    template = "rows_chunked.jinja"
    row_program = "row_tile"
    is_edge = f"(row_tile == 0) | ({_REACHES_END})"

    def __init__(self, kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> None:
        self._tiles_columns = bool(space.columns) and not kernel.whole_rows
        if self._tiles_columns:
            self.part, self.shared_by = "part", " // col_tiles"
            self.stores_rows_if = "program % col_tiles == 0"
        super().__init__(kernel, space, variant, provenance)

    @property
    def is_last(self) -> str:
        return f"(program + chunks >= {self.programs}) & ({_REACHES_END})"

    def summary(self) -> str:
        return "a chunk of the rows of one result per program."

    def fill(self) -> dict[str, Any]:
        before = self.scalars()
        self.preload(before, Level.COLUMN)
        body = self.body(before)
        self.preload(body, Level.ROW, Level.ELEMENT)
        self.reduce_rows(body)
        after: list[str] = []
        assert self.kernel.last_block is not None
        totals = [self._accumulated(root, before, body, after) for root in self.kernel.last_block.partials]
        stores = self.store_rows(body) + self.store_elements(body)
        return {
            **self.head(),
            "has_columns": bool(self.space.columns),
            "tiles_columns": self._tiles_columns,
            "tiles": self._row_tiles(),
            "before": "\n".join(before.lines),
            "body": "\n".join([*body.lines, *stores]),
            "after": "\n".join(after),
            **self.last_block(totals, before),
        }

    def _row_tiles(self) -> str:
        """How many tiles of rows a result has."""
        outer = [self.sizes.factor(group.size) for group in self.space.rows[:-1]]
        return " * ".join([*outer, "row_tiles"])

    def _accumulated(self, root: Root, before: Body, body: Body, after: list[str]) -> dict[str, Any]:
        """A total that a program adds up in a tile, and then stores."""
        node = root.node
        kind, level = node.attrs[0], self.kernel.level(node.args[0])
        start = identity(kind, node.dtype)
        name = self.style.name(node, root.buffer.name)
        shape = "[ROWS, COLS]" if level == Level.ELEMENT else "[ROWS]"
        before.lines.append(f"{name} = tl.full({shape}, {start}, {TRITON_DTYPES[node.dtype]})")
        body.lines.append(self.accumulate(kind, name, self.existing(node, body)))
        after.append(f"{name} = {self.along(kind, name, 0)}")
        if node.axes & set(self.kernel.columns):
            return self.shared(root.buffer, f"{root.buffer.name}_ptr + {self.part} * n_cols + col", name, "col_mask")
        return self.shared(root.buffer, f"{root.buffer.name}_ptr + {self.part}", name)
