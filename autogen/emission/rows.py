"""The row shells that load each element once, as tiles or as whole rows, and what all row shells share.

A program has some rows, and some or all columns of each.

Values per row are vectors of ROWS, values per column vectors of COLS, elements a matrix of both. A kernel whose only
axes are columns (one unbatched row) has vectors of COLS and scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy

from autogen import ir
from autogen.emission.body import Body
from autogen.emission.load import Load
from autogen.emission.records import Record, records_of
from autogen.emission.shell import identity
from autogen.emission.streaming import Streaming
from autogen.ir import Node
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.tiling.skew import INSIDE, OVERLAPPING, WITHIN, skew_of, start_of_row
from autogen.tiling.space import Group, Space
from autogen.tiling.variant import Variant

REACHES_END = "first_lane + COLS > n_cols"
IS_EDGE = f"(first_lane == 0) | ({REACHES_END})"


class Rows(Streaming):
    """What the row shells share; `row_program` is the variable that counts row tiles."""

    row_program = "program"
    part = "program"  # which of the programs that share no rows
    shared_by = ""  # columns, if rows are shared
    stores_rows_if: str | None = None  # where several programs have the same rows: the one that stores their results
    is_edge = ""  # whether a tile has ends of rows, if there are tiles that have none
    has_whole_rows = False

    def __init__(self, kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> None:
        columns = sympy.Mul(*(group.size for group in space.columns))
        variables = {group.axis: str(group.axis) for group in (*space.rows, *space.kept, *space.columns)}
        kept = sympy.Mul(*(group.size for group in space.kept))
        known = {columns: "n_cols", kept: "n_outer"}
        # Where an outer dimension is empty there are no rows at all, but one program.
        is_empty = any(group.size == 0 for group in space.rows)
        if space.rows and not is_empty:
            known[space.rows[-1].size] = "n_rows"
            known.setdefault(sympy.Mul(columns, *(group.size for group in space.rows)), "n_elements")
        self._tiled_axes = [group.axis for group in (*space.rows[-1:], *space.columns)]
        self.skew = skew_of(kernel, space) if variant.skewed else None
        # Where rows begin anywhere, each has columns of its own in a tile's lanes.
        self.subscripts = {Level.ROW: "[:, None]", Level.COLUMN: "" if self.skew else "[None, :]"}
        self.first = "first_lane" if self.skew else "first_col"
        maxima = [node for node in kernel.row_reductions() if node.attrs[0] == "max"]
        self._maximised = {node.args[0] for node in maxima}
        self._anywhere: dict[tuple[ir.Buffer, tuple[sympy.Expr, ...]], bool] = {}
        super().__init__(kernel, space, variant, provenance, variables, known)
        if space.rows:
            self.sizes.arguments["n_rows"] = sympy.S.Zero if is_empty else space.rows[-1].size
        if space.columns:
            self.sizes.arguments["n_cols"] = columns
        self._n_kept = kept
        self.tiles = (*(("ROWS",) if space.rows else ()), *(("COLS",) if space.columns else ()))
        self.tiles += () if self.skew else ("ALIGN",)
        if self.is_chunked and self.row_program == "program":
            self.row_program = "chunk"

    @property
    def is_last(self) -> str:
        """Whether a tile has the last element."""
        return f"program + 1 == {self.programs}"

    def program_count(self) -> str:
        outer = [self.sizes.factor(group.size) for group in self.space.rows[:-1]]
        return " * ".join([*outer, *(["tl.cdiv(n_rows, ROWS)"] if self.space.rows else [])]) or "1"

    def mask_of(self, level: Level) -> str | None:
        return {Level.ROW: "row_mask", Level.COLUMN: "col_mask", Level.ELEMENT: "mask"}.get(level)

    def broadcast_variables(self, level: Level) -> dict[sympy.Symbol, str]:
        if level != Level.ELEMENT:
            return {}
        levels = {axis: Level.COLUMN for axis in self._tiled_axes}
        levels[self.space.rows[-1].axis] = Level.ROW
        return {axis: f"{axis}{self.subscripts[own]}" for axis, own in levels.items()}

    def missing_axis(self, offset: sympy.Expr, level: Level) -> sympy.Symbol | None:
        # Read along rows that the program counts, not along those of its tile.
        needed = (Level.ROW, Level.ELEMENT) if self.skew else (Level.ROW,)
        if level not in needed or not self.space.rows:
            return None
        is_missing = self.space.rows[-1].axis not in offset.free_symbols
        return self.space.rows[-1].axis if is_missing else None

    def load_mask(self, node: Node) -> str | None:
        # Where all rows of a tile read the same, it is read once, and has the shape of one row.
        if self.kernel.level(node) == Level.ELEMENT and not node.args and not self.skew:
            buffer, index = node.attrs
            if self.space.rows[-1].axis not in self.space.merged(buffer.offset(index)).free_symbols:
                return "col_mask[None, :]"
        return super().load_mask(node)

    def shape_of(self, node: Node) -> Level:
        # What is reduced from a row that all rows share is one number, but where each has columns of its own.
        return self.kernel.level(node) if self.skew else self.kernel.level_of_axes(node.axes)

    def broadcast_to(self, level: Level, into: Level) -> str:
        return self.subscripts.get(level, "") if into == Level.ELEMENT else ""

    def expansion(self, node: Node, into: Node) -> str:
        return self.broadcast_to(self.shape_of(node), self.kernel.level(into))

    def head(self) -> dict[str, Any]:
        """The context of the templates' common start."""
        return {
            "has_rows": bool(self.space.rows),
            "adjacent": "n_cols" if self.space.columns_adjacent else "n_rows",
            "may_fill": self.has_whole_rows and self.space.columns_adjacent,
            "skew": self._skew_context(),
            "first": self.first,
            "lanes": f"n_cols + {self.skew.group - 1}" if self.skew else "n_cols",
            "row_program": self.row_program,
            "kept": self._kept_lines(),
            "outer": self._outer_lines(),
            "inner": self._inner_lines(),
            "place": self.kernel.ends and self.offset(self.space.merged(self.kernel.ends[0])),
            "end": self.kernel.ends and self.sizes.text(self.kernel.ends[1]),
            "in_window": "",
        }

    def _skew_context(self) -> dict[str, Any] | None:
        if self.skew is None:
            return None
        return {
            "group": self.skew.group,
            "start": self.sizes.text(self.skew.start),
            "last": self.is_last,
            "loads": any(map(self._is_grouped, self.direct_loads(Level.ROW, Level.ELEMENT))),
            "stores": any(self._begins_anywhere(root.buffer, root.index) for root in self.kernel.stores),
        }

    def _begins_anywhere(self, buffer: ir.Buffer, index: Sequence[sympy.Expr]) -> bool:
        """Whether the rows of a tensor are those that a tile's lanes are counted for."""
        if self.skew is None:
            return False
        place = buffer, tuple(index)
        if place not in self._anywhere:
            self._anywhere[place] = start_of_row(buffer.offset(index), self.space) == self.skew.start
        return self._anywhere[place]

    def _is_grouped(self, load: Node) -> bool:
        return not load.args and self._begins_anywhere(*load.attrs)

    def _kept_lines(self) -> list[str]:
        """Which result a program works for, and at which chunk of its rows."""
        if not self.is_chunked:
            return []
        if not self.space.kept:
            return [f"chunks = tl.num_programs(0){self.shared_by}", f"chunk = {self.part}"]
        return [
            f"chunks = tl.num_programs(0){self.shared_by} // {self.sizes.divisor(self._n_kept)}",
            f"chunk = {self.part} % chunks",
            *self._indices(f"{self.part} // chunks", self.space.kept),
        ]

    def _outer_lines(self) -> list[str]:
        """The indices of rows that are counted by the program number."""
        return self._indices(f"{self.row_program} // row_tiles", self.space.rows[:-1])

    def _indices(self, rest: str, groups: Sequence[Group]) -> list[str]:
        """The index of each group of axes, from the index of their product."""
        lines = []
        for position, group in reversed(list(enumerate(groups))):
            if position == 0:
                lines.append(f"{group.axis} = {rest}")
            else:
                lines.append(f"{group.axis} = {rest} % {self.sizes.divisor(group.size)}")
                rest = f"{rest} // {self.sizes.divisor(group.size)}"
        return lines

    def _inner_lines(self) -> list[str]:
        """The indices of columns that memory does not walk as one."""
        if len(self.space.columns) == 1:
            return []
        lines = []
        inside: sympy.Expr = sympy.S.One
        for position, group in reversed(list(enumerate(self.space.columns))):
            index = "col" if inside == 1 else f"col // {self.sizes.divisor(inside)}"
            bound = "" if position == 0 else f" % {self.sizes.divisor(group.size)}"
            lines.append(f"{group.axis} = {index}{bound}")
            inside = inside * group.size
        return lines

    def preload(self, body: Body, *levels: Level) -> None:
        """The values that are simply read."""
        for level in levels:
            loads = self.direct_loads(level)
            self.read_groups(loads, body)
            if level == Level.ROW:
                self._read_records(loads, body, self.direct_loads(Level.ELEMENT) if Level.ELEMENT in levels else [])
            for node in loads:
                body.state(node)

    def condition_of(self, load: Node) -> Node | None:
        # Where an access is of one row, a condition per row is the same for all of it.
        condition = super().condition_of(load)
        if condition is None or self.kernel.level(condition) == Level.ELEMENT:
            return condition
        level = self.kernel.level
        is_of_rows = (level(load), level(condition)) == (Level.ELEMENT, Level.ROW)
        return condition if is_of_rows and self.space.columns_adjacent and not self.skew else None

    def _read_records(self, loads: Sequence[Node], body: Body, elements: Sequence[Node]) -> None:
        """Of loads per row, those of neighbouring elements; they may be the whole row, among the `elements`."""
        row = self.space.rows[-1].axis if self.space.rows else None
        for record in records_of(loads, self.space):
            if row is None or row not in record.start.free_symbols:  # one for all rows of a tile
                continue
            whole = [node for node in elements if self._is_whole_row(node, record)]
            if whole:
                self.passes |= dict.fromkeys(record.parts, 0)
                name = body.state(whole[0])
            else:
                name = self.names.new(record.buffer.name)
                body.lines.append(f"{name} = {self.record_load(record, row, 'row', 'row_mask')}")
            self.take_apart(record, name, body)

    def _is_whole_row(self, node: Node, record: Record[Node]) -> bool:
        buffer, index = node.attrs
        sizes = [group.size for group in self.space.columns]
        starts = buffer is record.buffer and start_of_row(buffer.offset(index), self.space) == record.start
        return starts and sizes == [len(record.parts)]

    def read_groups(self, loads: Sequence[Node], body: Body) -> None:
        """Of some loads, those from rows that begin anywhere."""
        grouped = {node: (body.name(node), self.load(node)) for node in loads if self._is_grouped(node)}
        padded = {node: read for node, read in grouped.items() if self._is_padded(node)}
        body.lines += self._in_groups([read for node, read in grouped.items() if node not in padded])
        if padded:
            ends = [f"{name} = tl.where(col_mask, {name}, {self.padding(node)})" for node, (name, _) in padded.items()]
            lines = [*self._in_groups(list(padded.values())), *ends]
            if self.is_edge:
                whole = (replace(load, mask=WITHIN, other=None) for _, load in padded.values())
                lines = [f"if {self.is_edge}:", *(f"    {line}" for line in lines), "else:"]
                lines += [f"    {name} = {load}" for (name, _), load in zip(padded.values(), whole, strict=True)]
            body.lines += lines
        for node, (name, _) in grouped.items():
            body.know(node, name)

    def _in_groups(self, reads: Sequence[tuple[str, Load]]) -> list[str]:
        """Reading whole groups, with what they hold beyond the ends of rows; the last tile of all reads no more than is
        there.
        """
        if not reads:
            return []
        # Without `other`: branches that differ in a mask alone would be made one, of narrow loads.
        wide = [(name, replace(load, mask=OVERLAPPING, other=None)) for name, load in reads]
        lines = ["if is_last:", *(f"    {name} = {load}" for name, load in reads)]
        return [*lines, "else:", *(f"    {name} = {load}" for name, load in wide)]

    def pointer(
        self,
        buffer: ir.Buffer,
        index: Sequence[sympy.Expr],
        level: Level,
        computed: Sequence[str] = (),
        *,
        has_shape: bool = False,
    ) -> str:
        if not computed and self._begins_anywhere(buffer, index):
            return f"{buffer.name}_ptr + place"
        return super().pointer(buffer, index, level, computed, has_shape=has_shape)

    def padding(self, node: Node) -> str:
        return identity("max", node.dtype) if self._is_padded(node) else super().padding(node)

    def _is_padded(self, node: Node) -> bool:
        """Whether a load has -inf in columns that do not exist, as its maximum is wanted."""
        is_plain = node.op == "load" and not node.args and node.dtype.is_floating_point
        return is_plain and node in self._maximised

    def _vanishes(self, node: Node, start: str) -> bool:
        """Whether a value is its reduction's identity by itself in columns that do not exist: a padded load, which is
        -inf there, in a maximum, and its exponential after its maximum was subtracted, in a sum.
        """
        if start == identity("max", node.dtype):
            return self._is_padded(node)
        if start != identity("sum", node.dtype) or node.op not in ir.EXPONENTIALS or node.args[0].op != "sub":
            return False
        value, largest = node.args[0].args
        return self._is_padded(value) and largest.op == "reduce" and largest.args[0] is value

    def masked(self, node: Node, body: Body, start: str) -> str:
        """A value with its reduction's identity in columns that do not exist."""
        if self._vanishes(node, start):
            return body.term(node)
        subscript = self.broadcast_to(Level.COLUMN, self.kernel.level(node))
        return f"tl.where(col_mask{subscript}, {body.term(node)}, {start})"

    def along_columns(self, kind: str, value: str, level: Level) -> str:
        """Values of a level reduced over the columns."""
        if level == Level.COLUMN and self.skew:  # in a tile of one row
            value = self.along(kind, value, 1)
        return self.along(kind, value, 1 if level == Level.ELEMENT else 0)

    def fill(self) -> dict[str, Any]:
        outer = self.scalars()
        body = self.inside(outer)
        self.preload(body, Level.ROW, Level.COLUMN, Level.ELEMENT)
        self.gather(body)
        self.reduce_rows(body)
        totals = self.totals(body)
        stores = self.store_rows(body) + self.store_elements(body)
        return {
            **self.head(),
            "before": "\n".join(outer.lines),
            "body": "\n".join(body.lines),
            "stores": "\n".join(stores),
            **self.last_block(totals, outer),
        }

    def gather(self, body: Body) -> None:
        """What is read per row from computed places, so that a program waits for it and for the elements together."""
        for node in self.kernel.loads():
            is_at_once = node.args and not any(each.op in ir.ALONG_AXES for each in ir.topological(node.args))
            if is_at_once and self.kernel.level(node) == Level.ROW:
                body.state(node)

    def inside(self, outer: Body) -> Body:
        """Where the statements of a tile are, given that of the values that there is one of."""
        return outer

    def reduce_rows(self, body: Body) -> None:
        """What is reduced or added up along the columns, all of which are there."""
        for node in self.kernel.along_rows():
            kind, reduced = node.attrs[0], node.args[0]
            masked = self.masked(reduced, body, identity(kind, node.dtype))
            level = self.kernel.level(reduced)
            if node.op == "reduce":
                text = self.along_columns(kind, masked, level)
            else:
                text = self.running(node, masked, 1 if level == Level.ELEMENT or self.skew else 0)
            body.assign(node, text)

    def store_rows(self, body: Body) -> list[str]:
        """The stores of results per row, and of scalars that need no other program."""
        lines, of_rows = [], []
        for root in self.kernel.stores:
            level = self.store_level(root)
            if level == Level.ROW:
                of_rows += self._store(root, body, "row_mask")
            elif level == Level.SCALAR:
                parts = self.store_text(root, body)
                lines += ["if program == 0:", f"    tl.store({parts['pointer']}, {parts['value']})"]
        if of_rows and self.stores_rows_if:
            of_rows = [f"if {self.stores_rows_if}:", *(f"    {line}" for line in of_rows)]
        return lines + of_rows

    def store_elements(self, body: Body) -> list[str]:
        """The stores of results per element."""
        lines = []
        for root in self.kernel.stores:
            level = self.store_level(root)
            if level in (Level.ELEMENT, Level.COLUMN):
                lines += self._store(root, body, str(self.mask_of(level)))
        return lines

    def _store(self, root: Root, body: Body, mask: str) -> list[str]:
        """The store of a result, of whole groups where rows begin anywhere."""
        parts = self.store_text(root, body)
        store = f"tl.store({parts['pointer']}, {parts['value']}, mask="
        if not self._begins_anywhere(root.buffer, root.index):
            return [f"{store}{mask})"]
        ends = f"{store}{mask} & ~{INSIDE})"
        return [f"{store}{INSIDE})", *([f"if {self.is_edge}:", f"    {ends}"] if self.is_edge else [ends])]


class Tiled(Rows):
    """Elements with broadcast rows and columns: a program has a tile, and nothing is reduced per row."""

    template = "tiled.jinja"
    row_program = "row_tile"
    stores_rows_if = "program % col_tiles == 0"
    is_edge = IS_EDGE

    def summary(self) -> str:
        return "a tile of ROWS x COLS elements per program."

    def program_count(self) -> str:
        return f"{super().program_count()} * tl.cdiv(n_cols, COLS)"


class Resident(Rows):
    """Rows that fit on chip: loaded once."""

    template = "rows_resident.jinja"
    has_whole_rows = True

    def summary(self) -> str:
        return "whole rows on chip, ROWS of them per program." if self.space.rows else "one row on chip."
