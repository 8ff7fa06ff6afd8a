"""Horizontal fusion: independent kernels side by side in one launch.

`a.exp().mean() + b.abs().sum()` walks two tensors that have no elements in common. Each is a part with programs of its
own; what needs the totals of several is left to the last block of all. `(a.sum(1) - b.sum(1)).sum()` is such a loss
too, once its sum is taken apart: in double precision, as the two sums may nearly cancel where their terms do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from autogen import ir
from autogen.ir import Node
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel

MOST_PARTS = 8


def side_by_side(
    name: str, kernels: Sequence[Kernel], wanted: Collection[ir.Buffer], provenance: Provenance
) -> tuple[Kernel, ...]:
    """Kernels, in an order in which they can run, in as few launches as their dependencies allow.

    What they store for each other is stored only if it is `wanted`, or read by a later launch.
    """
    launches: list[list[Kernel]] = []
    for kernel in kernels:
        for launch in launches[_first_launch(kernel, launches) :]:
            if len(launch) < MOST_PARTS and all(map(_may_be_a_part, (*launch, kernel))):
                launch.append(kernel)
                break
        else:
            launches.append([kernel])
    kept = set(wanted)
    found: list[Kernel] = []
    for k, launch in reversed(list(enumerate(launches))):
        found.append(_joined(name if k == 0 else f"{name}_{k + 1}", launch, kept, provenance))
        kept |= _read(found[-1])
    return tuple(reversed(found))


def _may_be_a_part(kernel: Kernel) -> bool:
    """Whether a kernel leaves nothing but finals to a last block."""
    return not kernel.one_block and kernel.last_block is None


def _read(kernel: Kernel) -> set[ir.Buffer]:
    return {load.attrs[0] for load in ir.loads(root.node for root in kernel.roots)}


def _first_launch(kernel: Kernel, launches: Sequence[Sequence[Kernel]]) -> int:
    """The first launch that a kernel may be a part of. Its elements need what earlier ones store, its finals may need
    finals of the same one.
    """
    elements = [*kernel.totals, *(root.node for root in kernel.stores)]
    read_early = {load.attrs[0] for load in ir.loads(elements)}
    first = 0
    for k, launch in enumerate(launches):
        needed = _read(kernel) & {root.buffer for part in launch for root in part.roots}
        finals = {root.buffer for part in launch for root in part.finals}
        if needed:
            first = k + 1 if needed & read_early or needed - finals else k
    return first


def _joined(name: str, parts: Sequence[Kernel], kept: Collection[ir.Buffer], provenance: Provenance) -> Kernel:
    """One kernel of several parts, with those of their finals that are `kept`."""
    if len(parts) == 1:
        return replace(parts[0], name=name)
    known: dict[ir.Buffer, Node] = {}
    finals: list[Root] = []
    for part in parts:
        for root in part.finals:
            reads = {load: known[load.attrs[0]] for load in ir.loads([root.node]) if load.attrs[0] in known}
            (node,) = ir.replace([root.node], reads, provenance.moved)
            known[root.buffer] = node
            finals.append(replace(root, node=node))
    return Kernel(
        name,
        rows=(),
        columns=(),
        whole_rows=False,
        stores=tuple(root for part in parts for root in part.stores),
        finals=tuple(root for root in finals if root.buffer in kept),
        totals=tuple(dict.fromkeys(node for part in parts for node in part.totals)),
        parts=tuple(replace(part, name=f"{name}_part_{k + 1}", finals=()) for k, part in enumerate(parts)),
    )


def sums_apart(roots: Sequence[Root], provenance: Provenance) -> list[Node]:
    """The roots with a sum of sums and differences of rows as the sum and difference of their sums."""

    def apart(node: Node) -> Node:
        if node.op != "reduce" or node.attrs[0] != "sum" or not node.dtype.is_floating_point:
            return node
        (body,) = node.args
        terms = _terms(body)
        if len(terms) == 1 or any(term.axes != body.axes or not term.reduces for term, _ in terms):
            return node
        sums = [ir.reduce("sum", node.attrs[1], ir.cast(term, torch.float64)) for term, _ in terms]
        found = sums[0] if terms[0][1] == "add" else ir.apply("neg", sums[0])
        for each, (_, sign) in zip(sums[1:], terms[1:], strict=True):
            found = ir.apply(sign, found, each)
        return ir.cast(found, node.dtype)

    return ir.transform([root.node for root in roots], apart, provenance.moved)


def _terms(node: Node) -> list[tuple[Node, str]]:
    """What a node is the sum of, each with "add" or "sub"."""
    if node.op == "neg":
        return [(term, _OTHER[sign]) for term, sign in _terms(node.args[0])]
    if node.op not in ("add", "sub"):
        return [(node, "add")]
    first, second = map(_terms, node.args)
    return [*first, *(second if node.op == "add" else [(term, _OTHER[sign]) for term, sign in second])]


_OTHER = {"add": "sub", "sub": "add"}
