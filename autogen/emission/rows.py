"""The row shells: a program has some rows, and all columns of each. Here what they share, and the two that load
everything once: tiles, and whole rows.
"""

from __future__ import annotations

from typing import Any

import sympy

from autogen import ir
from autogen.emission.body import Body
from autogen.emission.shell import Shell, Variant, identity
from autogen.ir import Axis, Node
from autogen.lowering.values import Provenance
from autogen.schedule import Kernel, Level
from autogen.space import Group, Space


class Rows(Shell):
    """What the row shells share; `row_program` is the variable that counts row tiles."""

    row_program = "program"
    row_store_mask = "row_mask"

    def __init__(self, kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> None:
        self.columns_size = sympy.Mul(*(group.size for group in space.columns))
        self.row_group = space.rows[-1] if space.rows else Group(Axis("row", sympy.S.One), ())
        self.col_axis = Axis("col", self.columns_size)
        variables = {group.axis: str(group.axis) for group in space.rows[:-1]}
        variables |= {self.row_group.axis: "row", self.col_axis: "col"}
        variables |= {group.axis: str(group.axis) for group in space.columns}
        known = {self.row_group.size: "n_rows", self.columns_size: "n_cols"}
        super().__init__(kernel, space, variant, provenance, variables, known)
        self.sizes.arguments |= {"n_rows": self.row_group.size, "n_cols": self.columns_size}

    def mask_of(self, level: Level) -> str | None:
        return {Level.ROW: "row_mask", Level.COLUMN: "col_mask", Level.ELEMENT: "mask"}.get(level)

    def whole(self, kind: str, value: str) -> str:
        return f"tl.sum({value})" if kind == "sum" else f"tl.sum({self.along(kind, value, 0, keep=True)})"

    def outer_lines(self) -> list[str]:
        """The indices of rows that are counted by the program number."""
        lines = []
        groups = self.space.rows[:-1]
        rest = f"{self.row_program} // row_tiles"
        for position, group in reversed(list(enumerate(groups))):
            if position == 0:
                lines.append(f"{group.axis} = {rest}")
            else:
                lines.append(f"{group.axis} = {rest} % {self.sizes.factor(group.size)}")
                rest = f"{rest} // {self.sizes.factor(group.size)}"
        return lines

    def inner_lines(self) -> list[str]:
        """The indices of columns that memory does not walk as one."""
        if len(self.space.columns) == 1:
            return []
        lines = []
        inside: sympy.Expr = sympy.S.One
        for position, group in reversed(list(enumerate(self.space.columns))):
            index = "col" if inside == 1 else f"col // {self.sizes.factor(inside)}"
            bound = "" if position == 0 else f" % {self.sizes.factor(group.size)}"
            lines.append(f"{group.axis} = {index}{bound}")
            inside = inside * group.size
        return lines

    def preload(self, body: Body) -> None:
        """The values per row that are simply read."""
        for node in self.direct_loads(Level.ROW):
            body.state(node)

    def masked(self, node: Node, body: Body, start: str) -> str:
        """A value with its reduction's identity in columns that do not exist."""
        return f"tl.where(col_mask, {body.value(node)[0]}, {start})"

    def store_rows(self, body: Body) -> list[str]:
        """The stores of results per row, and of scalars that need no other program."""
        lines = []
        for root in self.kernel.stores:
            level = self._store_level(root)
            if level == Level.ROW:
                parts = self.store_text(root, body)
                value = parts["value"]
                lines.append(f"tl.store({parts['pointer']}, {value}, mask={self.row_store_mask})")
            elif level == Level.SCALAR:
                parts = self.store_text(root, body)
                lines.append("if program == 0:")
                # What was computed from a whole row is a tile of one element.
                is_tile = self.kernel.level(root.node) != Level.SCALAR
                value = f"tl.sum({parts['value']})" if is_tile else parts["value"]
                lines.append(f"    tl.store({parts['pointer']}, {value})")
        return lines

    def store_elements(self, body: Body) -> list[str]:
        """The stores of results per element."""
        lines = []
        for root in self.kernel.stores:
            if self._store_level(root) in (Level.ELEMENT, Level.COLUMN):
                parts = self.store_text(root, body)
                lines.append(f"tl.store({parts['pointer']}, {parts['value']}, mask=mask)")
        return lines

    def _store_level(self, root: Any) -> Level:
        return self.kernel.level_of_axes(root.index_axes)


class Tiled(Rows):
    """Elements with broadcast rows and columns: a program has a tile, and nothing is reduced per row."""

    template = "tiled.jinja"
    tiles = ("ROWS", "COLS")
    row_program = "row_tile"
    row_store_mask = "row_mask & (program % col_tiles == 0)"  # once, by the first of the tiles that share the rows

    def summary(self) -> str:
        return "a tile of ROWS x COLS elements per program."

    def fill(self) -> dict[str, Any]:
        body = self.scalars()
        for level in (Level.ROW, Level.COLUMN, Level.ELEMENT):
            for node in self.direct_loads(level):
                body.state(node)
        totals = [self.total_parts(node, body) for node in self.kernel.totals]
        stores = self.store_rows(body) + self.store_elements(body)
        return {
            "row_program": self.row_program,
            "outer": self.outer_lines(),
            "inner": self.inner_lines(),
            "body": "\n".join(body.lines),
            "stores": "\n".join(stores),
            **self.last_block(totals, body),
        }


class Resident(Rows):
    """Rows that fit on chip: loaded once."""

    template = "rows_resident.jinja"
    tiles = ("ROWS", "COLS")

    def summary(self) -> str:
        return "whole rows on chip, ROWS of them per program."

    def fill(self) -> dict[str, Any]:
        body = self.scalars()
        self.preload(body)
        for level in (Level.COLUMN, Level.ELEMENT):
            for node in self.direct_loads(level):
                body.state(node)
        roots = [*self.kernel.totals, *(root.node for root in self.kernel.stores)]
        for node in ir.topological(roots):
            if node.op == "reduce" and node not in self.kernel.totals:
                self._reduce(node, body)
        totals = [self.total_parts(node, body) for node in self.kernel.totals]
        stores = self.store_rows(body) + self.store_elements(body)
        return {
            "row_program": self.row_program,
            "outer": self.outer_lines(),
            "inner": self.inner_lines(),
            "body": "\n".join(body.lines),
            "stores": "\n".join(stores),
            **self.last_block(totals, body),
        }

    def _reduce(self, node: Node, body: Body) -> None:
        kind = node.attrs[0]
        start = identity(kind, node.dtype)
        masked = self.masked(node.args[0], body, start)
        body.assign(node, self.along(kind, masked, 1, keep=True))
