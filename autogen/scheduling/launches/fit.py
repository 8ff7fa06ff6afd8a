"""Find the axes of one kernel: its rows, its columns, and what each of its programs computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Axis, Buffer, Node
from autogen.ir.program import Root
from autogen.scheduling.launches.kernel import MAX_RANK, Kernel, spaces
from autogen.scheduling.launches.records import taken_apart


def fit(name: str, roots: Sequence[Root], hints: Mapping[str, int]) -> Kernel:
    """One kernel that computes all roots; of records, value by value, if it then has rows only.

    Raises:
        ScheduleError: there is none.
    """
    values = taken_apart(roots)
    if values is not None:
        kernel = _fit(name, values, hints)
        if not kernel.columns:
            return kernel
    return _fit(name, roots, hints)


def _fit(name: str, roots: Sequence[Root], hints: Mapping[str, int]) -> Kernel:
    order = ir.topological(root.node for root in roots)
    for root in roots:
        assert root.node.axes <= root.index_axes, f"{root.buffer.name} is not one value per index"
    reductions = [node for node in order if node.op == "reduce"]
    inner = _inner_reductions(roots, reductions)
    columns = columns_along([node for node in order if node in inner or node.op == "scan"])
    outer = [node for node in reductions if node not in inner]
    everything = frozenset().union(
        *(root.node.axes for root in roots),
        *(root.index_axes for root in roots),
        *(node.attrs[1] for node in reductions),
    )
    place = memory_order(order, roots, hints)
    in_memory = sorted(everything, key=place)
    accesses = [*(node.axes for node in order if node.op == "load"), *(root.index_axes for root in roots)]
    if not columns and any(everything <= node.axes for node in order) and not any(everything <= a for a in accesses):
        columns = _broadcast_columns(accesses, in_memory)  # of pairs: a program goes through many for each of its rows
    whole_rows = bool(columns)
    rows = everything - columns

    walked = any(node.op == "load" and rows <= node.axes for node in order)
    split = {node: _split_total(node, rows, columns, walked=walked) for node in outer}
    nodes = ir.replace([root.node for root in roots], {old: new for old, new in split.items() if old is not new})
    roots = [replace(root, node=node) for root, node in zip(roots, nodes, strict=True)]
    totals = tuple(dict.fromkeys(node for node in split.values() if rows and set(node.attrs[1]) == rows))

    finals = tuple(root for root in roots if not root.index_axes and _mentions(root.node, totals))
    if any(node.op == "reduce" for node in _above(totals, [root.node for root in finals])):
        raise ScheduleError("the loss reduces over different axes in one expression")
    stores = tuple(root for root in roots if root not in finals)
    if not whole_rows:
        columns = _broadcast_columns(accesses, in_memory)
    for root in stores:
        axes = root.index_axes
        if axes and axes not in (everything, everything - columns):
            raise ScheduleError(f"{root.buffer.name} has fewer dimensions than the elements it is computed from")
        if _mentions(root.node, totals):
            raise ScheduleError("a value of the whole loss feeds back into its elements")
    return Kernel(
        name,
        tuple(axis for axis in in_memory if axis not in columns),
        tuple(axis for axis in in_memory if axis in columns),
        whole_rows,
        stores,
        finals,
        totals,
    )


def one_block(name: str, roots: Sequence[Root], hints: Mapping[str, int]) -> Kernel:
    """A kernel of one program that computes all roots, whatever they reduce.

    Raises:
        ScheduleError: there is too much of it.
    """
    order = ir.topological(root.node for root in roots)
    axes = frozenset().union(*spaces(roots))
    place = memory_order(order, roots, hints)
    first: dict[Axis, int] = {}
    for position, node in enumerate(order):
        for axis in node.axes:
            first.setdefault(axis, position)
    # What is adjacent in memory is so in the tile: long sums then run along it, which is where they are exact.
    columns = tuple(sorted(axes, key=lambda axis: (place(axis)[0], first.get(axis, len(order)), str(axis))))
    kernel = Kernel(name, (), columns, True, tuple(roots), (), (), one_block=True)
    if len(columns) > MAX_RANK or not kernel.holds(hints):
        raise ScheduleError("the loss is too large for one program")
    return kernel


def columns_along(inner: Collection[Node]) -> frozenset[Axis]:
    """The axes that reductions inside a kernel, and running sums, go along.

    Raises:
        ScheduleError: not all of them over the same.
    """
    columns = frozenset().union(*(node.attrs[1] for node in inner))
    for node in inner:
        if set(node.attrs[1]) != columns or (node.op == "reduce" and node.axes & columns):
            raise ScheduleError("the loss reduces over different axes in one expression")
    return columns


def _broadcast_columns(accesses: Sequence[frozenset[Axis]], in_memory: Sequence[Axis]) -> frozenset[Axis]:
    """The columns of a kernel that reduces nothing per row: the axes that tell its broadcast tensors apart best.

    None if every tensor is accessed along all axes, or none. The best columns leave few tensors that vary along rows
    and columns, but not along all, then few that are neither per row, per column nor per element; they lie together in
    memory, and hold the innermost axis.
    """
    everything = frozenset(in_memory)
    partial = [axes for axes in accesses if axes and axes != everything]
    choices = {axes for own in partial for axes in (own, everything - own)}

    def badness(columns: frozenset[Axis]) -> tuple[int, int, bool, bool, list[int]]:
        mixed = sum(bool(own & columns) and bool(own - columns) for own in partial)
        strays = sum(own not in (columns, everything - columns) for own in partial)
        places = sorted(in_memory.index(axis) for axis in columns)
        apart = places[-1] - places[0] >= len(places)
        return mixed, strays, apart, in_memory[-1] not in columns, places

    return min(choices, key=badness, default=frozenset())


def _above(cut: Sequence[Node], roots: Sequence[Node]) -> set[Node]:
    """The nodes that roots are computed from once those of the cut are known."""
    return {node for node in ir.downward(roots, cut.__contains__) if node not in cut}


def _mentions(node: Node, wanted: Sequence[Node]) -> bool:
    return bool(wanted) and not set(wanted).isdisjoint(ir.topological([node]))


def _inner_reductions(roots: Sequence[Root], reductions: Sequence[Node]) -> set[Node]:
    """The reductions whose result is used per row, per element, or inside another reduction."""
    inner = {node for node in reductions if node.axes}
    users = [*(root.node for root in roots if root.index_axes), *(arg for node in reductions for arg in node.args)]
    return inner | {node for node in ir.topological(users) if node.op == "reduce"}


def _split_total(node: Node, rows: frozenset[Axis], columns: frozenset[Axis], *, walked: bool) -> Node:
    """A reduction over everything as one over columns, then one over rows.

    `walked` says whether the kernel walks all rows in any case, so that a sum over some of them costs nothing.
    """
    kind, axes = node.attrs
    across, down = frozenset(axes) & columns, frozenset(axes) & rows
    if across not in (columns, frozenset()):
        raise ScheduleError("the loss sums over part of its axes only")
    body = node.args[0]
    if down != rows and down and not walked:
        raise ScheduleError("the loss sums over tensors of different sizes")
    if down and kind not in ir.EXTREMES:  # along other rows it is the same: it counts in the first
        for axis in sorted(rows - down, key=str):
            is_first = ir.apply("eq", ir.index(axis), ir.const(0, torch.int64))
            body = ir.apply("where", is_first, body, ir.const(ir.identity(kind, body.dtype), body.dtype))
    return ir.reduce(kind, rows if down else down, ir.reduce(kind, across, body))


def memory_order(
    order: Sequence[Node], roots: Sequence[Root], hints: Mapping[str, int]
) -> Callable[[Axis], tuple[float, str]]:
    """A sort key for axes: the one with the longest stride first."""
    steps: dict[Axis, float] = {}
    accesses = [node.attrs for node in order if node.op == "load"]
    accesses += [(root.buffer, root.index) for root in roots]
    known = tuple(hints.items())
    for buffer, index in accesses:
        for axis, step in _steps(buffer, index, known):
            steps[axis] = max(steps.get(axis, 0.0), step)
    return lambda axis: (-steps.get(axis, 0.0), str(axis))


@functools.lru_cache(4096)
def _steps(
    buffer: Buffer, index: tuple[sympy.Expr, ...], hints: tuple[tuple[str, int], ...]
) -> tuple[tuple[Axis, float], ...]:
    """How far apart neighbours along an axis are in memory, for each axis of an access; 0.0 if that differs."""
    numbers = {sympy.Symbol(name, integer=True, positive=True): value for name, value in hints}
    offset = sympy.sympify(buffer.offset(index).xreplace(numbers))  # of a symbol alone it makes a number
    axes = [symbol for symbol in offset.free_symbols if isinstance(symbol, Axis)]
    steps = (offset.subs(axis, 1) - offset.subs(axis, 0) for axis in axes)
    return tuple((axis, float(step) if step.is_number else 0.0) for axis, step in zip(axes, steps, strict=True))
