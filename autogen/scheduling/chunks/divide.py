"""Rewrite one direction so that its large matrix products are made in chunks of rows.

All that a kernel computes of the products themselves, it computes in the chunk: each value of a row becomes a table
that the rest of the loss reads, each gradient of a product goes straight into the products that autograd makes of it,
and what is summed over rows for each column is added up from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from autogen import ir
from autogen.ir import Axis, Buffer, Node
from autogen.ir.names import unique
from autogen.ir.program import Root, stored
from autogen.ir.provenance import Provenance
from autogen.ir.torch_step import TorchStep
from autogen.scheduling.chunks.body import Body, NotByRowsError, columns_of, of_chunk
from autogen.scheduling.chunks.chunk import Chunk, step_of
from autogen.scheduling.chunks.matrices import Matrices, Matrix
from autogen.scheduling.chunks.rows import Rows, row_at, rows_of
from autogen.scheduling.plan import Direction, RowProducts, names_of
from autogen.scheduling.rewrites.equivalence import Equivalents


@dataclass(frozen=True)
class Divided:
    """A direction in chunks, and where it keeps the values of rows that were asked for, as loads."""

    direction: Direction
    kept: Mapping[Node, Node]


def divided(
    direction: Direction,
    products: RowProducts,
    provenance: Provenance,
    kept: Sequence[Node] = (),
    gradients: Collection[str] = (),
) -> Divided:
    """A direction whose `products` are made in chunks; the values `kept` of their rows are stored. Those of its results
    that are `gradients` may be as large as the products.

    Raises:
        NotByRowsError: it is not computed row by row.
    """
    return _Division(direction, products, provenance, gradients).run(kept)


class _Division:
    def __init__(
        self, direction: Direction, products: RowProducts, provenance: Provenance, gradients: Collection[str]
    ) -> None:
        self._direction, self._size, self._provenance = direction, products.size, provenance
        self._gradients = gradients
        self._operands = {root.buffer.name: root for root in direction.operands}
        made = {each.name: each for step in direction.steps for each in step.results if each is not None}
        self._products = products.names
        self._taken = {*names_of(root.node for root in direction.roots), *made}
        self._taken.update(root.buffer.name for root in direction.roots)
        self._taken.update(name for step in direction.steps for name in step.reads)
        self._columns = {name: columns_of(made[name], self._size.rows) for name in products.names}
        self._body = Body(self._columns, self._size.rows, provenance, self._taken, _late(direction, products.names))
        self._matrices = Matrices(self._size.rows, self._taken, products.sums)
        self._equivalents = Equivalents()
        self._tables: dict[Node, Buffer] = {}  # by what they are in the chunk
        self._results: list[Root] = []  # of a chunk
        self._parts: list[Root] = []
        self._rows: list[Buffer] = []
        self._totals: dict[Node, Buffer] = {}
        self._done: dict[Node, Node] = {}

    def run(self, kept: Sequence[Node]) -> Divided:
        outside = list(self._sorted_steps())
        loads = {node: self._outside(node) for node in kept}
        results = [self._result(root) for root in self._direction.results]
        operands = [
            replace(root, node=self._outside(root.node))
            for root in self._direction.operands
            if root.buffer.name not in self._matrices.known
        ]
        nodes = self._relaid([root.node for root in (*results, *operands)])
        results = [replace(root, node=node) for root, node in zip(results, nodes, strict=False)]
        operands = [replace(root, node=node) for root, node in zip(operands, nodes[len(results) :], strict=True)]
        operands += [*self._body.operands, *self._in_half(outside)]
        step = self._step()
        before, after, made = _around(step, outside, operands)
        waits = sorted(made.intersection(step.reads))
        if waits:
            raise NotByRowsError(f"`{waits[0]}` is computed of all rows before the gradient of each")
        direction = replace(
            self._direction, results=tuple(results), operands=tuple(operands), steps=(*before, step, *after)
        )
        return Divided(direction, loads)

    # What torch does ------------------------------------------------------------------------------------------------

    def _sorted_steps(self) -> Iterator[TorchStep]:
        """Take what is done by rows; yields the other steps."""
        for step in self._direction.steps:
            if not set(self._products).isdisjoint(step.writes):
                self._matrices.begin(step)
                continue
            for name in step.reads:
                if name in self._operands and name not in self._matrices.known and self._is_matrix(name):
                    self._parts.append(self._by_rows(self._operands[name], self._operands[name].buffer.name))
                    self._matrices.known[name] = Matrix(name)
            if self._matrices.known.keys().isdisjoint(step.reads):
                yield step
            else:
                self._matrices.add(step)

    def _is_matrix(self, name: str) -> bool:
        """Whether an operand is as large as a product."""
        shape = self._operands[name].buffer.shape
        numel = sympy.Mul(*shape)
        sizes = (sympy.expand(self._size.rows * columns) for columns in self._columns.values())
        return any(sympy.expand(numel - size) == 0 for size in sizes) and shape[-1] in self._columns.values()

    def _by_rows(self, root: Root, name: str) -> Root:
        """A matrix of the rows of the loss, as one of those of a chunk.

        Raises:
            NotByRowsError: it is none.
        """
        columns = columns_of(root.buffer, self._size.rows)
        row = row_at(root.buffer, root.index[:-1], columns)
        rows = None if row is None else rows_of(row, self._size.rows)
        if rows is None or not rows.is_all:
            raise NotByRowsError(f"{name} has other rows than the product", root.node)
        buffer = replace(of_chunk(root.buffer, columns), name=name)
        value = self._body.value(root.node, rows)
        return Root(buffer, (self._body.row, root.index[-1]), value)

    def _in_half(self, steps: Sequence[TorchStep]) -> Iterator[Root]:
        """Totals in single precision that torch reads in half."""
        read = {name for step in steps for name in step.reads}
        by_name = {each.name: each for step in self._direction.steps for each in step.results if each is not None}
        for name, total in self._matrices.totals.items():
            if name in read and name != total.name:
                axes = [Axis(f"{name}_{k}", size) for k, size in enumerate(total.shape)]
                yield Root(replace(by_name[name], role="scratch"), tuple(axes), ir.load(total, axes))

    def _relaid(self, nodes: Sequence[Node]) -> list[Node]:
        """Totals read from where they are."""
        totals = {name: total for name, total in self._matrices.totals.items() if name != total.name}
        loads = (load for load in ir.loads(nodes) if load.attrs[0].name in totals)
        moved = {load: ir.reload(load, totals[load.attrs[0].name]) for load in loads}
        return ir.replace(nodes, moved, self._provenance.moved)

    # What kernels do ------------------------------------------------------------------------------------------------

    def _result(self, root: Root) -> Root:
        try:
            return replace(root, node=self._outside(root.node))
        except NotByRowsError:
            if root.buffer.name not in self._gradients:
                raise
        whole = replace(root.buffer, name=self._new(f"{root.buffer.name}_by_rows"), role="torch", allocated=None)
        self._results.append(self._by_rows(root, whole.name))
        self._rows.append(whole)
        return replace(root, node=ir.load(whole, root.index))

    def _outside(self, node: Node) -> Node:
        """A value, of what the chunks have stored.

        Raises:
            NotByRowsError: it is made of more than that.
        """
        if node not in self._done:
            self._done[node] = new = self._visit(node)
            if new is not node:
                self._provenance.moved(node, new)
        return self._done[node]

    def _visit(self, node: Node) -> Node:
        rows = self._body.rows_in(node)
        if not rows:
            return node
        each = row_if_known(rows, self._size.rows)
        if each is not None and node.axes <= each.axes:
            return self._table(node, each)
        own = row_if_known(self._body.rows_in(node.args[0]), self._size.rows) if node.op == "reduce" else None
        if own is not None:
            kind, bound = node.attrs
            of_rows, within = own.axes & set(bound), set(bound) - own.axes
            if of_rows and within:
                return self._outside(ir.reduce(kind, of_rows, ir.reduce(kind, within, node.args[0])))
            if _is_total(node, self._body, self._size.rows):
                return self._total(node, own)
        if node.op == "load" and node.attrs[0].name in self._columns:
            raise self._refusal(node)
        return ir.rebuild(node, [self._outside(arg) for arg in node.args])

    def _refusal(self, product: Node) -> NotByRowsError:
        """Why an element of a product is needed where no value of its row is: the first thing that mixes rows."""
        order = ir.topological(root.node for root in self._direction.roots)
        for node in order:
            of_rows = (
                row_if_known(self._body.rows_in(node.args[0]), self._size.rows) if node.op in ir.ALONG_AXES else None
            )
            if of_rows is not None and of_rows.axes & set(node.attrs[1]) and not node.args[0].axes <= of_rows.axes:
                return NotByRowsError(f"a {node.attrs[0]} over rows is a part of the loss of each row", node)
        return NotByRowsError(f"elements of {product.attrs[0].name} are needed when all rows are done", product)

    def _table(self, node: Node, rows: Rows) -> Node:
        """A value of each row, stored by the chunks for all rows."""
        value = self._body.value(node, rows)
        self._equivalents.add(value)
        known, _ = self._equivalents.find(value) or (value, {})
        if known not in self._tables:
            name = self._new(self._provenance.called(node))
            self._tables[known] = stored(known, name, "torch", [Axis("row", self._size.rows)]).buffer
            self._rows.append(self._tables[known])
            self._results.append(stored(known, name, "scratch", [self._body.row]))
        return ir.load(self._tables[known], [ir.index(rows.row) if self._body.is_checked(node) else rows.row])

    def _total(self, node: Node, rows: Rows) -> Node:
        """A sum over the rows for each column."""
        value = self._body.value(node.args[0], rows)
        condition = rows.is_one(self._body.row)
        if condition is not None:
            raise NotByRowsError("a sum for each column leaves rows out", node)
        part = ir.reduce("sum", [self._body.row], value)
        if part not in self._totals:
            name = self._new(self._provenance.called(node))
            root = stored(part, self._new(f"{name}_part"), "scratch", sorted(part.axes, key=str))
            self._parts.append(root)
            self._totals[part] = replace(root.buffer, name=name, role="torch")
            self._matrices.add_part(root.buffer, self._totals[part])
        return ir.load(self._totals[part], sorted(part.axes, key=str))

    def _new(self, name: str) -> str:
        name = unique(name, self._taken)
        self._taken.add(name)
        return name

    def _step(self) -> TorchStep:
        matrices, body = self._matrices, self._body
        direction = Direction(
            f"{self._direction.name}_chunk", tuple(self._results), tuple(self._parts), tuple(matrices.steps)
        )
        read = set(names_of(root.node for root in direction.roots))
        slices = tuple(each for each in body.slices.values() if each.buffer.name in read)
        own = {each.buffer.name for each in slices} | {each.name for each in matrices.sliced.values()}
        rows = (*self._rows, *matrices.rows.values())
        totals = (*matrices.totals.values(), *self._totals.values())
        own |= {each.name for each in (*rows, *totals)} | direction.made()
        read |= {name for step in direction.steps for name in step.reads}
        whole = tuple(sorted(read - own))
        if any(each.whole in whole for each in slices):
            raise NotByRowsError("a tensor is read by rows, and as a whole")
        line = next(step.line for step in self._direction.steps if not set(self._products).isdisjoint(step.writes))
        chunk = Chunk(direction, self._size, slices, tuple(matrices.sliced.values()), whole, rows, totals)
        return step_of(chunk, line, backward=all(step.backward for step in self._direction.steps))


def _around(
    step: TorchStep, others: Sequence[TorchStep], operands: Sequence[Root]
) -> tuple[list[TorchStep], list[TorchStep], set[str]]:
    """The other steps: those before, and those that need what a step makes; and all that is made of that."""
    made = set(step.writes)
    before, after = list[TorchStep](), list[TorchStep]()
    needs = {root.buffer.name: set(names_of([root.node])) for root in operands}
    for other in others:
        while grown := {name for name, own in needs.items() if own & made} - made:
            made |= grown
        is_after = not made.isdisjoint(other.reads)
        made |= set(other.writes) if is_after else set()
        (after if is_after else before).append(other)
    while grown := {name for name, own in needs.items() if own & made} - made:
        made |= grown
    return before, after, made


def values_of_rows(direction: Direction, products: RowProducts, provenance: Provenance) -> list[Node]:
    """What a direction computes of each row of products, or sums up over them, and does not wait for autograd with."""
    made = direction.made() - set(products.names)
    buffers = {each.name: each for step in direction.steps for each in step.results if each is not None}
    size = products.size
    body = Body({name: columns_of(buffers[name], size.rows) for name in products.names}, size.rows, provenance, set())
    roots = [root.node for root in direction.roots]
    waits: dict[Node, bool] = {}
    for node in ir.topological(roots):
        own = node.op == "load" and (node.attrs[0].role == "upstream" or node.attrs[0].name in made)
        waits[node] = own or any(waits[arg] for arg in node.args)

    def is_one(node: Node) -> bool:
        if waits[node]:
            return False
        each = row_if_known(body.rows_in(node), size.rows)
        return (each is not None and node.axes <= each.axes) or _is_total(node, body, size.rows)

    return list(filter(is_one, ir.downward(roots, lambda node: not body.rows_in(node) or is_one(node))))


def row_if_known(found: frozenset[sympy.Expr | None], count: sympy.Expr) -> Rows | None:
    """The rows that a value is made of, if they are one for each value of its axes."""
    if len(found) != 1:
        return None
    (row,) = found
    return None if row is None else rows_of(row, count)


def _is_total(node: Node, body: Body, count: sympy.Expr) -> bool:
    """Whether a value is a sum over the rows for each column."""
    if node.op != "reduce" or node.attrs[0] != "sum" or not node.axes:
        return False
    rows = row_if_known(body.rows_in(node.args[0]), count)
    return rows is not None and set(node.attrs[1]) == rows.axes and not node.axes & rows.axes


def _late(direction: Direction, products: Sequence[str]) -> set[str]:
    """What a direction makes of products, but for what kernels do."""
    found = set(products)
    needs = {root.buffer.name: set(names_of([root.node])) for root in direction.operands}
    for step in direction.steps:
        for name in needs.keys() & set(step.reads):
            found |= {name} if needs[name] & found else set()
        found |= set(step.writes) if found.intersection(step.reads) else set()
    return found - set(products)
