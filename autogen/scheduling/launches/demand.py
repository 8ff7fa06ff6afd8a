"""Estimate what a kernel takes of a thread: instructions, and values that are alive at once.

Triton prints a thread's part of a tile element by element, so that both grow with the elements that a thread has, and
the time of its passes with the square of the instructions. The first remedy is therefore a smaller tile
(`autogen.tiling.tiler`), the second another launch (`autogen.scheduling.launches.pieces`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from autogen import ir
from autogen.ir import Node
from autogen.ir.ops import OPS
from autogen.scheduling.launches.kernel import Kernel, Level

MOST_WORK, MOST_LIVE = 1200, 96  # of one launch: Triton then takes a second or two, and nothing spills
OF_ROW = 4  # values per row, of which a thread has one for so many elements
FREE = ("const", "index", "scalar")  # what is known wherever it is used
ACCESS = 8  # instructions of a load, with its address and its mask
EXCHANGE = 8  # of a reduction, or a scan, beside those of its elements


@dataclass(frozen=True)
class Demand:
    """`work` is in instructions for an element, `live` the values per element that are alive at once, at most."""

    work: int = 0
    live: int = 0


def is_bearable(demand: Demand) -> bool:
    """Whether one launch can do it."""
    return demand.work <= MOST_WORK and demand.live <= MOST_LIVE


def work_of(node: Node) -> int:
    """About how many instructions a node is, without what is below it."""
    if node.op in FREE:
        return 0
    if node.op in ir.ALONG_AXES:
        return EXCHANGE
    return OPS[node.op].work if node.op in OPS else ACCESS if node.op == "load" else 1


def demand_of(kernel: Kernel) -> Demand:
    """The demand of a kernel; of several parts, all work together, and what the greatest has alive."""
    if kernel.parts:
        each = [demand_of(part) for part in kernel.parts]
        return Demand(sum(one.work for one in each), max(one.live for one in each))
    last = demand_of(kernel.last_block.kernel) if kernel.last_block else Demand()
    width = {Level.ELEMENT: OF_ROW, Level.COLUMN: OF_ROW, Level.ROW: 1 if kernel.columns else OF_ROW}

    def width_of(node: Node) -> int:
        return width.get(kernel.level(node), 0) if node.axes and node.op not in FREE else 0

    own = demand(kernel.computed, width_of, kernel.totals)
    return Demand(own.work + last.work, max(own.live, last.live))


def demand(
    roots: Sequence[Node],
    width: Callable[[Node], int],
    totals: Sequence[Node] = (),
    known: Collection[Node] = (),
) -> Demand:
    """The demand of values that are computed one after the other, of which each takes its `width` of `OF_ROW`.

    Each program adds the `totals` up element by element, until it ends. What is loaded, or `known`, is so from the
    beginning.
    """
    order = ir.topological(roots, known)
    last = {arg: position for position, node in enumerate(order) for arg in node.args}
    early = {node for node in order if node.op == "load"} | {node for node in last if node in known}
    live = sum(map(width, early)) + sum(width(node.args[0]) for node in totals)
    most = live
    ends: dict[int, int] = {}
    for node, position in last.items():
        ends[position] = ends.get(position, 0) + width(node)
    for position, node in enumerate(order):
        live += width(node) if node not in early and node not in totals and node in last else 0
        most = max(most, live)
        live -= ends.get(position, 0)
    return Demand(sum(map(work_of, order)), -(-most // OF_ROW))
