"""Rewrite what is computed of the rows of products for one chunk of rows.

In the whole loss a value has the axes of its tensors. Here all of these that tell rows apart are one, the row of the
chunk: a product is read from the chunk's own, a tensor of rows from a slice, and what is known of a row but not of its
products (a label, a weight that depends on the sequence) from a table that is computed before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import sympy

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Axis, Buffer, Node
from autogen.ir.names import unique
from autogen.ir.program import Root, stored
from autogen.ir.provenance import Provenance
from autogen.scheduling.chunks.rows import Rows, quotient, row_of

ROWS = sympy.Symbol("chunk_rows", integer=True, positive=True)
"""How many rows the chunk at hand has."""


class NotByRowsError(ScheduleError):
    """A loss cannot be computed in chunks of rows: `reason`, because of `node`."""

    def __init__(self, reason: str, node: Node | None = None) -> None:
        super().__init__(reason)
        self.node = node


@dataclass(frozen=True)
class Slice:
    """A tensor `whole`, and the `buffer` that kernels see the rows of a chunk of it as."""

    whole: str
    buffer: Buffer


@dataclass
class Body:
    """The values of one chunk.

    Args:
        products: the matrices that exist in chunks only, by name, each with its columns.
        count: how many rows there are in all.
        provenance: names and lines.
        taken: names of buffers.
        late: tensors that are made of what chunks give, by name: known when all chunks are done.
    """

    products: Mapping[str, sympy.Expr]
    count: sympy.Expr
    provenance: Provenance
    taken: set[str]
    late: Collection[str] = ()
    row: Axis = field(default_factory=lambda: Axis("row", ROWS))
    slices: dict[tuple[str, sympy.Expr, tuple[sympy.Expr, ...]], Slice] = field(default_factory=dict)
    operands: list[Root] = field(default_factory=list)
    _known: dict[Node, Root] = field(default_factory=dict)
    _rows: dict[Node, frozenset[sympy.Expr | None]] = field(default_factory=dict)
    _done: dict[tuple[Node, sympy.Expr], Node] = field(default_factory=dict)

    def rows_in(self, node: Node) -> frozenset[sympy.Expr | None]:
        """The rows of products that a value is made of; None for several at once, and for such as depend on values."""
        for below in ir.topological([node], self._rows):
            found = frozenset[sympy.Expr | None]().union(*(self._rows[arg] for arg in below.args))
            if below.op == "load" and below.attrs[0].name in self.products:
                found |= {row_of(below, self.products[below.attrs[0].name])}
            if below.op == "load" and below.attrs[0].name in self.late:
                found |= {None}
            if below.op in ir.ALONG_AXES:
                bound = set(below.attrs[1])
                found = frozenset(None if row is None or row.free_symbols & bound else row for row in found)
            self._rows[below] = found
        return self._rows[node]

    def is_checked(self, node: Node) -> bool:
        """Whether a value is read from products at rows that may lie outside."""
        products = (load for load in ir.loads([node]) if load.attrs[0].name in self.products)
        return any(ir.is_hole(entry) for load in products for entry in load.attrs[1][:-1])

    def value(self, node: Node, rows: Rows) -> Node:
        """A value, of the row of the chunk.

        Raises:
            NotByRowsError: more than one row is in it, or it cannot be read row by row.
        """
        key = node, rows.row
        if key not in self._done:
            self._done[key] = new = self._value(node, rows)
            self.provenance.moved(node, new)
        return self._done[key]

    def _value(self, node: Node, rows: Rows) -> Node:
        if not self.rows_in(node):
            if not node.axes & rows.axes:
                return self._of_no_row(node)
            if node.axes <= rows.axes:
                return self._of_row(node, rows)
        return self._rebuilt(node, rows)

    def _of_no_row(self, node: Node) -> Node:
        """What is the same for all rows: computed before, if it is summed up, or waits for autograd."""
        order = ir.topological([node])
        waits = (each.op == "load" and each.attrs[0].role == "upstream" for each in order)
        if any(map(_is_along, order)) or any(waits):
            node = self._before(node, sorted(node.axes, key=str)).read()
        return node

    def _of_row(self, node: Node, rows: Rows) -> Node:
        """What is known of a row: made of what lies in memory row by row, or else stored before."""
        met = ir.downward([node], lambda below: not below.axes & rows.axes)
        if all(self._is_by_row(below, rows) for below in met):
            return self._rebuilt(node, rows)
        sums = [each for each in ir.downward([node], _is_along) if _is_along(each)]
        (known,) = ir.replace([node], {each: self._before(each, sorted(each.axes, key=str)).read() for each in sums})
        row = Axis("row", self.count)
        buffer = self._before(rows.at(known, row), [row]).buffer
        return self._slice(buffer, sympy.S.One, (self.row,), ())

    def _is_by_row(self, node: Node, rows: Rows) -> bool:
        """Whether a value can be had of a chunk, if what it is made of can."""
        if not node.axes & rows.axes:
            return True
        if node.op == "load":
            by_row = [k for k, entry in enumerate(node.attrs[1]) if entry.free_symbols & rows.axes]
            return not by_row or self._steps(node, by_row, rows) is not None
        expressions = node.attrs if node.op == "index" else ()
        bound = node.attrs[1] if node.op in ir.ALONG_AXES else ()
        return not rows.axes & set(bound) and not any(e.free_symbols & rows.axes for e in expressions)

    def _before(self, node: Node, axes: list[Axis]) -> Root:
        """A value that kernels store before the chunks."""
        if node not in self._known:
            name = unique(self.provenance.called(node), self.taken)
            self.taken.add(name)
            self._known[node] = stored(node, name, "scratch", axes)
            self.operands.append(self._known[node])
        return self._known[node]

    def _rebuilt(self, node: Node, rows: Rows) -> Node:
        if node.op == "index" or (node.op in ir.ALONG_AXES and rows.axes & set(node.attrs[1])):
            raise NotByRowsError("rows are put together before the loss of each is known", node)
        if node.op == "load":
            return self._load(node, rows)
        return ir.rebuild(node, [self.value(arg, rows) for arg in node.args])

    def _load(self, node: Node, rows: Rows) -> Node:
        buffer, entries = node.attrs
        if buffer.name in self.products:
            columns = self.products[buffer.name]
            if row_of(node, columns) != rows.row:
                raise NotByRowsError("a row's loss is made of other rows", node)
            *_, last = entries
            if last.free_symbols & rows.axes:  # as on the diagonal
                column: Node | sympy.Expr = self.value(ir.index(last), rows)
            else:
                column = self.value(node.args[-1], rows) if ir.is_hole(last) else last
            return ir.load(of_chunk(buffer, columns), [self.row, column])
        args = [self.value(arg, rows) for arg in node.args]
        by_row = [k for k, entry in enumerate(entries) if entry.free_symbols & rows.axes]
        if not by_row:
            return ir.load_at(node, args, entries)
        step = self._steps(node, by_row, rows)
        if step is None:
            raise NotByRowsError(f"{buffer.name} is read in other rows than the product", node)
        rest = [k for k in range(len(entries)) if k not in by_row]
        return self._slice(
            buffer, step, (self.row, *(entries[k] for k in rest)), tuple(args), [buffer.shape[k] for k in rest],
            [buffer.strides[k] for k in rest],
        )  # fmt: skip

    def _steps(self, node: Node, by_row: list[int], rows: Rows) -> sympy.Expr | None:
        """How far apart the rows of a tensor are in memory, if they are those of the product."""
        buffer, entries = node.attrs
        offset = sympy.expand(sum(entries[k] * buffer.strides[k] for k in by_row))
        step = offset.coeff(rows.digits[-1].axis, 1)
        apart = sympy.expand(offset - step * rows.row)
        is_whole = rows.is_all or sympy.Mul(*(buffer.shape[k] for k in by_row)) == rows.count
        mixed = any(isinstance(symbol, Axis) for symbol in step.free_symbols)
        return step if apart == 0 and is_whole and not mixed else None

    def _slice(
        self,
        buffer: Buffer,
        step: sympy.Expr,
        entries: tuple[sympy.Expr, ...],
        args: tuple[Node, ...],
        shape: list[sympy.Expr] | None = None,
        strides: list[sympy.Expr] | None = None,
    ) -> Node:
        """A load of the rows of a chunk; a tensor of rows that lie alike is one slice."""
        layout = tuple(strides or ())
        key = buffer.name, step, layout
        if key not in self.slices:
            name = buffer.name if buffer.name not in {each.whole for each in self.slices.values()} else None
            name = name or unique(f"{buffer.name}_rows", self.taken)
            self.taken.add(name)
            chunk = replace(buffer, name=name, shape=(ROWS, *(shape or ())), strides=(step, *layout), allocated=None)
            self.slices[key] = Slice(buffer.name, chunk)
        holes = iter(args)
        at = [next(holes) if ir.is_hole(entry) else entry for entry in entries]
        return ir.load(self.slices[key].buffer, at)


def _is_along(node: Node) -> bool:
    return node.op in ir.ALONG_AXES


def of_chunk(buffer: Buffer, columns: sympy.Expr) -> Buffer:
    """A matrix, for the rows of a chunk."""
    shape = (ROWS, columns)
    return replace(buffer, shape=shape, strides=ir.contiguous_strides(shape), allocated=None)


def columns_of(buffer: Buffer, count: sympy.Expr) -> sympy.Expr:
    """How many columns a matrix of `count` rows has, whose other dimensions are rows.

    Raises:
        NotByRowsError: it has no such rows.
    """
    columns = quotient(sympy.Mul(*buffer.shape), count)
    if columns is None or (buffer.shape and buffer.shape[-1] != columns):
        raise NotByRowsError(f"{buffer.name} has other rows than the product")
    return columns
