"""Split few long rows among several programs, whose results the last block combines.

A program computes what is reduced of its columns as for a row of its own, with a maximum of its own. The last block has
the maximum of all, and moves the sums to it as a walk over a row does (`autogen.scheduling.launches.running`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import sympy
import torch

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Axis, Node, apply
from autogen.ir.names import unique
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.ir.sizes import evaluator_of
from autogen.ir.substitution import substitute
from autogen.scheduling.launches.fit import one_block
from autogen.scheduling.launches.kernel import MANY_PROGRAMS, Kernel, LastBlock
from autogen.scheduling.launches.running import Running, Shift, is_finite_form, largest_of

COLUMNS = (8192, 4096, 2048, 1024)  # of a program: as many as give a large device something to do everywhere


def split_rows(kernel: Kernel, hints: Mapping[str, int], provenance: Provenance) -> Kernel:
    """A kernel of whole rows, for walking them in steps, as one with several programs for each.

    Raises:
        ScheduleError: it stores more than one value per row, or walks its rows more than once.
    """
    if len(kernel.columns) != 1 or len(kernel.passes) != 1 or kernel.holds_rows or kernel.last_block:
        raise ScheduleError("rows are walked more than once, or in several dimensions")
    (column,) = kernel.columns
    if any(column in root.index_axes for root in kernel.roots):
        raise ScheduleError("there is a result for each element")
    split = _Split(kernel, column, hints, provenance)
    nodes = ir.replace([root.node for root in kernel.roots], split.combined(), provenance.moved)
    if any(column in node.axes or column in _bound(node) for node in nodes):
        raise ScheduleError("rows are walked for more than what is reduced")
    roots = [replace(root, node=node) for root, node in zip(kernel.roots, nodes, strict=True)]
    last = one_block(f"{kernel.name}_last_block", roots, hints)
    return Kernel(
        kernel.name,
        (split.part, *split.rows),
        (split.within,),
        whole_rows=True,
        stores=(),
        finals=kernel.roots,
        totals=tuple(root.node for root in split.partials.values()),
        last_block=LastBlock(last, tuple(split.partials.values()), chunked=False),
        ends=(split.place, column.size),
    )


def _bound(node: Node) -> set[Axis]:
    return {axis for each in ir.topological([node]) if each.op in ir.ALONG_AXES for axis in each.attrs[1]}


class _Split:
    """What programs store of each reduction of a row, in `partials`; `part` counts them, `within` their columns."""

    def __init__(self, kernel: Kernel, column: Axis, hints: Mapping[str, int], provenance: Provenance) -> None:
        rows, columns = (
            math.prod(evaluator_of(*(axis.size for axis in axes))(hints)) for axes in (kernel.rows, [column])
        )
        width = next((each for each in COLUMNS if rows * -(-columns // each) >= 2 * MANY_PROGRAMS), COLUMNS[-1])
        self.part = Axis(f"{column}_part", (column.size + width - 1) // width)
        self.within = Axis(f"{column}_within", sympy.Integer(width))
        self.partials: dict[Node | None, Root] = {}  # None is the number of columns
        (self._walk,) = kernel.passes
        self.rows = kernel.rows or (Axis("single", sympy.S.One),)
        self._column, self._provenance = column, provenance
        self.place = self.part * width + self.within
        self._taken = {*provenance.inputs, *(root.buffer.name for root in kernel.roots)}
        self._own: dict[Node | None, Node] = {}  # in terms of a program's columns
        for node in self._walk.reductions:
            self._add(node, node.args[0], provenance.called(node))
        if any(None in form.lower for form in self._walk.running.values()):
            self._add(None, ir.at_each(column, ir.const(1, torch.float32)), "columns")

    def _add(self, node: Node | None, body: Node, called: str) -> None:
        """What a program reduces of its columns, and where it stores that."""
        kind, dtype = (node.attrs[0], node.dtype) if node is not None else ("sum", body.dtype)
        form = self._form(node)
        known: dict[Node, Node] = {}
        for each in form.followed:
            own = self._own[largest_of(each)]
            known[each] = own if form.restarts is not None else _finite(own)
        try:
            body = substitute(body, {self._column: self.place})
        except NotImplementedError as error:
            raise ScheduleError("columns are read at other places than their own") from error
        (body,) = ir.replace([body], known, self._provenance.moved)
        own = self._own[node] = ir.reduce(kind, [self.within], body)
        name = unique(f"{called}_partial", self._taken)
        self._taken.add(name)
        index = (self.part, *self.rows)
        shape = tuple(axis.size for axis in index)
        buffer = ir.Buffer(name, dtype, shape, ir.contiguous_strides(shape), "partial")
        self.partials[node] = Root(buffer, index, own)

    def _form(self, node: Node | None) -> Running:
        return Running() if node is None else self._walk.running.get(node, Running())

    def _read(self, node: Node | None) -> Node:
        root = self.partials[node]
        own = {self.part, *(node.axes if node is not None else ())}  # of other rows, all have stored the same
        return ir.load(root.buffer, [axis if axis in own else sympy.S.Zero for axis in root.index])

    def combined(self) -> dict[Node, Node]:
        """The reductions of whole rows, of what programs have stored."""
        found: dict[Node, Node] = {}
        for node in self._walk.reductions:
            found[node] = ir.reduce(node.attrs[0], [self.part], self._moved(node, found))
            self._provenance.moved(node, found[node])
        return found

    def _moved(self, node: Node, found: Mapping[Node, Node]) -> Node:
        """What a program has stored of a reduction, for the maxima of the whole row."""
        form, value = self._form(node), self._read(node)
        if form.restarts is not None:
            largest = self._read(form.restarts)
            same = apply("logical_or", apply("eq", largest, found[form.restarts]), apply("isnan", largest))
            return apply("where", same, value, ir.const(ir.identity(node.attrs[0], node.dtype), node.dtype))
        whole = {shift: ir.replace([shift], found)[0] for shift in form.shifts}
        terms = [
            apply("mul", apply("sub", _finite(self._read(largest_of(shift))), whole[shift]), ir.const(by, shift.dtype))
            for shift, by in form.moves
        ]
        move = reduce(lambda one, other: apply("add", one, other), terms) if terms else None
        correction: Node | None = None
        for k, lower in enumerate(form.lower):  # the binomial theorem, by Horner's rule
            times = ir.const(math.comb(len(form.lower), k), node.dtype)
            own = apply("mul", times, ir.cast(self._read(lower), node.dtype))
            own = apply("add", correction, own) if correction is not None else own
            assert move is not None
            correction = apply("mul", ir.cast(move, node.dtype), own)
        value = apply("add", value, correction) if correction is not None else value
        for shift in form.scales:
            scale = apply("exp", apply("sub", _before(shift, self._read(largest_of(shift))), whole[shift]))
            value = apply("mul", value, ir.cast(scale, node.dtype))
        return value


def _finite(largest: Node) -> Node:
    """What a program subtracts: its maximum, or 0 in its place where that is infinite."""
    infinite = apply("eq", apply("abs", largest), ir.const(math.inf, largest.dtype))
    return apply("where", infinite, ir.const(0, largest.dtype), largest)


def _before(shift: Shift, largest: Node) -> Node:
    """What a program's sums are multiplied for: nothing counts where its maximum is -inf."""
    if not is_finite_form(shift):
        return largest
    infinite = apply("eq", largest, ir.const(math.inf, largest.dtype))
    return apply("where", infinite, ir.const(0, largest.dtype), largest)
