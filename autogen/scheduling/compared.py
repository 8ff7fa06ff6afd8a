"""Sums that decide whether a value equals its own extreme.

Backward of `v.amax(0)` looks where `v` equals the maximum, and somewhere it must. If `v` depends on a sum, such as a
mean, two kernels that add it up in different orders make two values of it, which differ in their last bits: nothing
equals its maximum then. So one kernel stores such a sum, and all others read it. Nothing else has to be stored: values
that are made of the same numbers by the same operations are the same, as no product is fused with a sum
(`autogen.runtime.build.OPTIONS`), and their extremes are, in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autogen import ir
from autogen.ir import Axis, Node, is_inexact
from autogen.names import unique
from autogen.program import Root
from autogen.provenance import Provenance
from autogen.scheduling.cuts import is_statistic, stored
from autogen.scheduling.equivalence import Equivalents
from autogen.scheduling.inexact import is_extreme
from autogen.scheduling.kernel import Kernel, memory_order
from autogen.scheduling.plan import Step

# What jumps where a value meets its extreme.
SHARP = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "sign"})


def compared_sums(roots: Sequence[Node]) -> tuple[Node, ...]:
    """The sums of values that are compared with extremes of themselves, arguments first."""
    order = ir.topological(roots)
    summed: set[Node] = set()
    extreme: set[Node] = set()
    found: set[Node] = set()
    for node in order:
        if is_inexact(node) or not summed.isdisjoint(node.args):
            summed.add(node)
        if (is_extreme(node) and node in summed) or not extreme.isdisjoint(node.args):
            extreme.add(node)
        if node.op in SHARP and node in extreme:
            met = ir.downward([node], is_extreme)
            around = set(filter(is_inexact, met))
            within = set(filter(is_inexact, ir.topological(arg for e in met if is_extreme(e) for arg in e.args)))
            if around and within:
                found |= around | within
    return tuple(node for node in order if node in found)


def may_repeat(steps: Sequence[Step], sums: Collection[Node]) -> bool:
    """Whether some of these steps may compute one of the sums each in its own way.

    A kernel alone may do so with a scan: where it needs the values in two layouts, Triton may have it run twice.
    """
    kernels = [step for step in steps if isinstance(step, Kernel)]
    if not sums or not kernels:
        return False
    if any(node.op == "scan" for node in sums):
        return True
    if len(kernels) > 1 or kernels[0].parts:
        return True
    (kernel,) = kernels
    if kernel.last_block is None:
        return False
    last = ir.topological(root.node for root in kernel.last_block.kernel.roots)
    return not set(ir.topological(kernel.computed)).isdisjoint(sums) and not set(sums).isdisjoint(last)


def stored_once(
    roots_of: Sequence[list[Root]],
    sums: Sequence[Node],
    hints: Mapping[str, int],
    provenance: Provenance,
    taken: set[str],
) -> None:
    """Have the first region that needs a sum store it, and all else read it.

    Args:
        roots_of: what each region stores; changed.
        sums: the sums, arguments first; those that differ in the names of their axes alone are one.
        hints: the sizes of a sample call.
        provenance: names and source lines.
        taken: names of buffers, to which those of new ones are added.
    """
    known = Equivalents()
    same: dict[Node, tuple[Node, Mapping[Axis, Axis]]] = {}
    for node in sums:
        known.add(node)
        same[node] = known.find(node) or (node, {})
    stored_in: dict[Node, int] = {}
    for region, roots in enumerate(roots_of):
        below = set(ir.topological(root.node for root in roots))
        for node in sums:
            if node in below:
                stored_in.setdefault(same[node][0], region)
    loads: dict[Node, Node] = {}
    made: dict[Node, Root] = {}
    for node in sums:
        own, under = same[node]
        if own not in stored_in:
            continue
        if own not in made:
            (body,) = ir.replace([own], loads, provenance.moved)
            root = _taken_out(own, roots_of) or _new(own, roots_of[stored_in[own]], hints, provenance, taken)
            made[own] = replace(root, node=body)
        root = made[own]
        loads[node] = ir.load(root.buffer, [under.get(axis, axis) for axis in root.index])
        provenance.moved(node, loads[node])
    for region, roots in enumerate(roots_of):
        nodes = ir.replace([root.node for root in roots], loads, provenance.moved)
        before = [root for own, root in made.items() if stored_in[own] == region]
        roots[:] = [*before, *(replace(root, node=node) for root, node in zip(roots, nodes, strict=True))]


def _taken_out(node: Node, roots_of: Sequence[list[Root]]) -> Root | None:
    """The root that keeps a sum for later, if there is one, which is a root no more."""
    for roots in roots_of:
        for root in roots:
            if is_statistic(root, node):
                roots.remove(root)
                return root
    return None


def _new(node: Node, beside: Sequence[Root], hints: Mapping[str, int], provenance: Provenance, taken: set[str]) -> Root:
    place = memory_order(ir.topological(root.node for root in beside), beside, hints)
    name = unique(provenance.called(node), taken)
    taken.add(name)
    return stored(node, name, "scratch", sorted(node.axes, key=place))
