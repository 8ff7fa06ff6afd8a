"""Nested reductions of large tensors in one launch, finished by the last block.

`1 - (2 * overlap[n, c] / total[n, c]).mean()` sums over pixels, then over classes and images. The sums over pixels are
*totals*: each program adds up its share of them, with one value for each result that they keep. What remains is small,
and the last block to arrive computes it alone, as a kernel of one program would, from what the others have stored.

Axes of the totals that they keep are *kept* rows, counted by the program number, or columns. The rows that are left are
split into chunks, one for each program. Where no rows are left, a program stores totals that are whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Axis, Node
from autogen.ir.names import unique
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.ir.sizes import evaluator_of
from autogen.scheduling.launches.fit import columns_along, fit, memory_order, one_block
from autogen.scheduling.launches.kernel import (
    CHUNKS,
    Kernel,
    LastBlock,
    is_small,
)
from autogen.scheduling.rewrites.equivalence import Equivalents, Place, table_of

# A program that works for one result should have something to do, where there are many.
MANY_RESULTS = 64
SHORT_CHUNK = 512
MOST_OF = 1.25  # times as many rows may be reduced as are asked for, where one table then has all of them


def with_last_block(name: str, roots: Sequence[Root], hints: Mapping[str, int], provenance: Provenance) -> Kernel:
    """One kernel that computes all roots, the small ones in its last block.

    Raises:
        ScheduleError: there is none.
    """
    streamed, small, totals = _divide(roots, hints)
    if not totals:
        return _with_first_block(name, streamed, small, hints)
    tables = _tables(streamed, totals, hints)
    order = ir.topological([*(node.args[0] for node, _ in tables.values()), *(root.node for root in streamed)])
    place = memory_order(order, streamed, hints)
    space = _space(order, streamed, [node for node, _ in tables.values()], place)
    for root in streamed:
        if root.index_axes not in (space.everything, space.everything - space.columns):
            raise ScheduleError(f"{root.buffer.name} has fewer dimensions than the elements it is computed from")
    taken = {*provenance.inputs, *(root.buffer.name for root in roots)}
    partials: dict[Node, Root] = {}
    reads: dict[Node, Node] = {}
    for node, (table, places) in tables.items():
        own, left, index = _share(table, space)
        if own not in partials:
            called = unique(f"{provenance.called(node)}_partial", taken)
            taken.add(called)
            partials[own] = Root(_buffer(called, own.dtype, index, space), index, own)
            provenance.moved(node, own)
        read = ir.load(partials[own].buffer, [places.get(axis, axis) for axis in index])
        reads[node] = ir.reduce(node.attrs[0], left, read)
        provenance.moved(node, reads[node])
    nodes = ir.replace([root.node for root in small], reads, provenance.moved)
    last = one_block(f"{name}_last_block", [replace(r, node=n) for r, n in zip(small, nodes, strict=True)], hints)
    kernel = Kernel(
        name,
        tuple(axis for axis in space.in_memory if axis in (space.chunked or space.rows)),
        tuple(axis for axis in space.in_memory if axis in space.columns),
        space.whole_rows,
        tuple(streamed),
        tuple(small),
        tuple(partials),
        kept=space.kept_rows,
        last_block=LastBlock(last, tuple(partials.values()), bool(space.chunked)),
    )
    if not kernel.holds(hints):
        raise ScheduleError("the loss is too large for one program")
    if _places(kernel.kept, hints) > MANY_RESULTS and _places(space.chunked | space.columns, hints) < SHORT_CHUNK:
        raise ScheduleError("there are too many results of too few elements")
    return kernel


def _tables(
    streamed: Sequence[Root], totals: Sequence[Node], hints: Mapping[str, int]
) -> dict[Node, tuple[Node, dict[Axis, Place]]]:
    """Of each total, the one that is to be stored for it, and where that is read: one for all rows of a tensor, if most
    of these are asked for, by several totals or by what programs store.
    """
    known = Equivalents()
    for node in (*(root.node for root in streamed), *totals):
        if node.op == "reduce" and table_of(node)[0] is node:
            known.add(node)
    found = {node: known.enter(node) for node in totals}
    asked: dict[Node, int] = {}
    for node, (table, _) in found.items():
        asked[table] = asked.get(table, 0) + _places(node.axes, hints)
    stored = {root.node for root in streamed}
    return {
        node: (table, places)
        if table in stored or MOST_OF * asked[table] >= _places(table.axes, hints)
        else (node, {axis: axis for axis in node.axes})
        for node, (table, places) in found.items()
    }


def _places(axes: Iterable[Axis], hints: Mapping[str, int]) -> int:
    """How many values some axes have together."""
    return math.prod(evaluator_of(*(axis.size for axis in axes))(hints))


def _with_first_block(name: str, streamed: Sequence[Root], small: Sequence[Root], hints: Mapping[str, int]) -> Kernel:
    """The same where what is small needs nothing of the rest: the first program computes it."""
    if not (streamed and small):
        raise ScheduleError("no reduction is left for the last block")
    kernel = fit(name, streamed, hints)
    if kernel.totals or not kernel.holds(hints):
        raise ScheduleError("the loss is too large for one program")
    last = one_block(f"{name}_first_block", small, hints)
    return replace(kernel, finals=tuple(small), last_block=LastBlock(last, (), chunked=False))


@dataclass(frozen=True)
class _Space:
    """The axes of a kernel: `rows` are `kept` by totals, or `chunked`; `in_memory` has all, outermost first."""

    in_memory: tuple[Axis, ...]
    columns: frozenset[Axis]
    kept: frozenset[Axis]
    whole_rows: bool

    @property
    def everything(self) -> frozenset[Axis]:
        return frozenset(self.in_memory)

    @property
    def rows(self) -> frozenset[Axis]:
        return self.everything - self.columns

    @property
    def chunked(self) -> frozenset[Axis]:
        return self.rows - self.kept

    @property
    def kept_rows(self) -> tuple[Axis, ...]:
        """The rows that the program number counts; none where programs store totals that are whole."""
        return tuple(axis for axis in self.in_memory if axis in self.kept) if self.chunked else ()


def _divide(roots: Sequence[Root], hints: Mapping[str, int]) -> tuple[list[Root], list[Root], list[Node]]:
    """The roots with many values, the others, and the reductions of many values that the others are computed from."""
    streamed = [root for root in roots if not is_small(root.node.axes | root.index_axes, hints)]
    small = [root for root in roots if root not in streamed]
    bodies = [node.args[0] for node in _totals(small, hints)]
    # What a program has anyway on the way to a total, such as the maxima of the rows, it stores itself.
    inside = {node for node in ir.topological([*bodies, *(root.node for root in streamed)]) if node.op == "reduce"}
    streamed = [root for root in roots if root in streamed or root.node in inside]
    small = [root for root in small if root not in streamed]
    return streamed, small, _totals(small, hints)


def _totals(small: Sequence[Root], hints: Mapping[str, int]) -> list[Node]:
    """The reductions of many values that small roots are computed from."""

    def is_total(node: Node) -> bool:
        return node.op == "reduce" and not is_small(node.args[0].axes | set(node.attrs[1]), hints)

    return list(filter(is_total, ir.downward([root.node for root in small], is_total)))


def _space(
    order: Sequence[Node], streamed: Sequence[Root], totals: Sequence[Node], place: Callable[[Axis], Any]
) -> _Space:
    columns = columns_along([node for node in order if node.op in ir.ALONG_AXES])
    everything = frozenset().union(
        *(root.index_axes for root in streamed), *(node.args[0].axes | set(node.attrs[1]) for node in totals)
    )
    walked = [*(node.axes for node in order), *(root.index_axes for root in streamed)]
    if not any(everything <= axes for axes in walked):  # each would be walked once for every element of the others
        raise ScheduleError("the loss reduces tensors that have no elements in common")
    in_memory = tuple(sorted(everything | columns, key=place))
    if any(axis.size == 0 for axis in in_memory):
        raise ScheduleError("there is nothing to reduce")
    kept = frozenset().union(*(node.axes for node in totals))
    whole_rows = bool(columns)
    if not whole_rows:
        trailing = len(in_memory)
        while trailing and in_memory[trailing - 1] in kept:
            trailing -= 1
        columns = frozenset(in_memory[trailing:])
    found = _Space(in_memory, columns, kept - columns, whole_rows)
    if found.chunked and in_memory[-1] in found.kept:
        raise ScheduleError("neighbouring results are computed from elements that are apart")
    if not found.chunked and not whole_rows:
        raise ScheduleError("the loss reduces over different axes in one expression")
    return found


def _share(node: Node, space: _Space) -> tuple[Node, frozenset[Axis], tuple[Axis, ...]]:
    """What a program stores of a total, the axes that the last block has to reduce, and the index of what is stored."""
    kind, axes, body = node.attrs[0], frozenset(node.attrs[1]), node.args[0]
    has_columns = bool(space.columns & body.axes) or not space.whole_rows
    missing = space.everything - axes - body.axes - (frozenset() if has_columns else space.columns)
    if missing and kind != "sum":
        raise ScheduleError("the loss sums over part of its axes only")
    for axis in sorted(missing, key=str):  # along these it is the same: it counts in the first
        is_first = ir.apply("eq", ir.index(axis), ir.const(0, torch.int64))
        body = ir.apply("where", is_first, body, ir.const(0, body.dtype))
    if space.whole_rows and has_columns and space.columns <= axes:
        body = ir.reduce(kind, space.columns, body)
        has_columns = False
    reduced = axes & space.columns  # of columns that the body does not have: nothing would reduce these
    if not space.columns <= body.axes if has_columns else reduced - node.args[0].axes:
        raise ScheduleError("the loss sums over part of its axes only")
    if not space.chunked:
        if has_columns:
            raise ScheduleError("the loss reduces over different axes in one expression")
        index = tuple(axis for axis in space.in_memory if axis in space.rows)
        return body, (axes | missing) & space.rows, index
    if not body.axes & space.chunked:
        raise ScheduleError("the loss sums over part of its axes only")
    left = (axes | missing) & (space.kept | (space.columns if has_columns else frozenset()))
    columns = tuple(axis for axis in space.in_memory if has_columns and axis in space.columns)
    return ir.reduce(kind, space.chunked, body), left, (*space.kept_rows, *columns)


def _buffer(name: str, dtype: torch.dtype, index: tuple[Axis, ...], space: _Space) -> ir.Buffer:
    """Where programs store a total: for each place of the kept rows, one line for each chunk."""
    shape = tuple(axis.size for axis in index)
    strides = ir.contiguous_strides(shape)
    if space.chunked:
        strides = tuple(
            step * CHUNKS if axis in space.kept else step for axis, step in zip(index, strides, strict=True)
        )
    return ir.Buffer(name, dtype, shape, strides, "partial")
