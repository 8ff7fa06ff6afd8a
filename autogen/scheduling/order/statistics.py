"""Choose the reductions that forward saves for backward, one number per row or per loss.

Forward saves each reduction of the gradients that does not need the upstream gradient, if that costs forward no launch:
as a table over the whole dimensions of its tensors (`equivalence.table_of`), so that chunks, shifts and slices find it.
Nothing of the size of the inputs is saved beside the inputs; what pieces store, they store for the same direction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Node
from autogen.ir.names import unique
from autogen.ir.program import Root, stored
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.cost import read_by
from autogen.scheduling.launches.fit import memory_order
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.order.regions import sequence
from autogen.scheduling.plan import Direction, Step, names_of
from autogen.scheduling.rewrites.equivalence import Equivalents, Place, limits_of
from autogen.scheduling.rewrites.sums import what_forward_knows

MOST_READ = 1.25  # times as much as forward reads for itself, if statistics are to cost it no more
LITTLE = 2**20  # bytes, which a GPU reads in less time than a launch takes


class _Which(Enum):
    """Which statistics forward is to keep."""

    ALL = "all"
    FLAT = "those that are made of no other, but of what forward computes"
    AT_HAND = "those that forward computes anyway"


@dataclass(frozen=True)
class Statistics:
    """Statistics that forward stores, and how each reduction in the gradients is read from them."""

    roots: tuple[Root, ...] = ()
    loads: Mapping[Node, Node] = field(default_factory=dict)

    def read_back(self, nodes: Sequence[Node], provenance: Provenance) -> list[Node]:
        """The gradients with kept statistics read from memory."""
        for node, read in self.loads.items():
            provenance.moved(node, read)
        return ir.replace(nodes, self.loads, provenance.moved)


def _statistics(
    forward: Direction,
    backward: Direction,
    hints: Mapping[str, int],
    provenance: Provenance,
    which: _Which,
) -> Statistics:
    """The reductions in the gradients that do not wait for the upstream gradient, as results of forward, in the order
    in which it computes them. What is the same under other axes is kept once.
    """
    computed = ir.topological(root.node for root in forward.roots)
    offered = set(computed)
    later = backward.made()
    waits: dict[Node, bool] = {}
    order = ir.topological(root.node for root in backward.roots)
    place = memory_order(order, backward.roots, hints)
    for node in order:
        upstream = node.op == "load" and (node.attrs[0].role == "upstream" or node.attrs[0].name in later)
        waits[node] = upstream or any(waits[arg] for arg in node.args)
    wanted: dict[Node, None] = {}
    read_as: dict[Node, tuple[Node, Mapping[ir.Axis, Place]]] = {}
    limits = limits_of([root.node for root in backward.roots])
    known = Equivalents()
    for node in computed:
        if node.op == "reduce":
            known.add(node)
    seen: set[Node] = set()
    todo = [root.node for root in backward.roots]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        is_nested = which is _Which.FLAT and node not in offered and _is_nested(node, offered)
        if node.op == "reduce" and not waits[node] and not is_nested:
            met = (node, {}) if node in offered else known.find_within(node, limits[node]) or known.find(node)
            read_as[node] = met or known.enter(node)
            if read_as[node][0] in offered or which is not _Which.AT_HAND:
                wanted[read_as[node][0]] = None
                provenance.moved(node, read_as[node][0])
                continue
            del read_as[node]
        todo += node.args
    ordered = [node for node in (*computed, *order, *wanted) if node in wanted]  # tables are in none of them
    called = Counter(provenance.called(node) for node in set(ordered))
    found: dict[Node, Root] = {}
    taken = {*provenance.inputs, *(root.buffer.name for root in (*forward.roots, *backward.roots))}
    taken.update(node.attrs[0].name for node in (*computed, *order) if node.op == "load")
    taken.update(name for step in (*forward.steps, *backward.steps) for name in (*step.reads, *step.writes))
    for node in dict.fromkeys(ordered):
        alike = called[provenance.called(node)] > 1
        name = unique(provenance.qualified(node, {}) if alike else provenance.called(node), taken)
        taken.add(name)
        provenance.names[node] = name  # both kernels call it so
        provenance.sources[name] = tuple(dict.fromkeys(names_of([node])))
        found[node] = stored(node, name, "saved", sorted(node.axes, key=place))
    loads = {
        node: ir.load(found[own].buffer, [under.get(axis, axis) for axis in found[own].index])
        for node, (own, under) in read_as.items()
    }
    return Statistics(tuple(found.values()), loads)


def _is_nested(node: Node, offered: Collection[Node]) -> bool:
    """Whether a value is made of a reduction that is not on offer."""
    return any(each.op == "reduce" and each not in offered for each in ir.topological(node.args))


Kept = tuple[tuple[Step, ...], Statistics, Direction]


def with_statistics(forward: Direction, backward: Direction, hints: Mapping[str, int], provenance: Provenance) -> Kept:
    """The forward launches, the statistics that they keep if that costs no launch, and backward, written otherwise
    where that lets forward know more of it and backward read less.
    """
    plain = sequence(forward, hints, provenance)
    least = _read_by(plain, hints)

    def kept(later: Direction, kinds: Iterable[_Which]) -> Kept | None:
        for which in kinds:
            statistics = _statistics(forward, later, hints, provenance, which)
            try:
                steps = sequence(forward, hints, provenance, statistics.roots)
            except ScheduleError:
                continue
            # One program that computes everything has no registers for more than it needs.
            is_full = any(isinstance(step, Kernel) and step.one_block for step in steps)
            # Forward of a slice does not read all rows for what backward, which walks them all, does not ask of them.
            is_more = _read_by(steps, hints) > max(MOST_READ * least, least + LITTLE)
            if len(steps) <= len(plain) and not is_more and (which is _Which.AT_HAND or not is_full):
                return steps, statistics, later
        return None

    found = kept(backward, _Which) or (plain, Statistics(), backward)
    rewritten = backward.on(what_forward_knows([root.node for root in backward.roots], provenance.moved))
    other = kept(rewritten, [_Which.ALL]) if rewritten != backward else None
    return min(found, other, key=lambda each: _read_later(each, hints, provenance)) if other else found


def _read_later(kept: Kept, hints: Mapping[str, int], provenance: Provenance) -> float:
    """Bytes that backward reads."""
    _, statistics, backward = kept
    nodes = statistics.read_back([root.node for root in backward.roots], provenance)
    try:
        return _read_by(sequence(backward.on(nodes), hints, provenance), hints)
    except ScheduleError:
        return math.inf


def _read_by(steps: Sequence[Step], hints: Mapping[str, int]) -> int:
    return read_by((step for step in steps if isinstance(step, Kernel)), hints)
