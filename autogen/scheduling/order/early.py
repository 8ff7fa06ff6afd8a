"""Compute the gradient in forward, for an upstream gradient of 1.

Some of what a gradient depends on is known only when forward ends, such as how many labels are not ignored. A count is
taken for granted: that everything counts. Backward's kernel looks whether all that was granted has come true, and if so
has nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from autogen import ir
from autogen.errors import ScheduleError
from autogen.ir import Node
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Granted
from autogen.scheduling.order.regions import sequence
from autogen.scheduling.plan import Direction, Early
from autogen.scheduling.rewrites.simplify import simplify


def gradients_in_forward(
    forward: Direction,
    backward: Direction,
    kept: Sequence[Root],
    loads: Mapping[Node, Node],
    hints: Mapping[str, int],
    provenance: Provenance,
) -> Early:
    """Forward with the gradients among its results.

    Args:
        forward, backward: the directions, before anything that forward keeps is read back.
        kept: the statistics that forward stores.
        loads: how reductions in backward are read from them.
        hints: the sizes of a sample call.
        provenance: names and source lines.
    """
    order = ir.topological(root.node for root in backward.roots)
    if forward.steps or backward.steps:
        return Early(refused="torch runs a part of the loss")
    arriving = [node for node in order if node.op == "load" and node.attrs[0].role == "upstream"]
    if len(forward.results) != 1 or len(arriving) != 1 or arriving[0].attrs[0].shape:
        return Early(refused="the loss is not one number")
    (upstream,) = arriving
    assumed = {upstream: ir.const(1, upstream.dtype)}
    granted = [Granted(upstream.attrs[0], sympy.S.One)]
    for node in order:
        if node in loads and (count := _count(node)) is not None:
            assumed[node] = ir.cast(ir.index(count), node.dtype)
            granted.append(Granted(loads[node].attrs[0], count))
    nodes = ir.replace([root.node for root in backward.roots], assumed, provenance.moved)
    nodes = simplify(nodes, provenance.moved)
    gradients = tuple(replace(root, node=node) for root, node in zip(backward.roots, nodes, strict=True))
    results = (*forward.results, *gradients)
    try:
        steps = sequence(replace(forward, results=results), hints, provenance, kept)
    except ScheduleError as error:
        return Early(refused=error.reason)
    if len(steps) != 1:
        totals = [node for node in ir.topological(nodes) if node.op == "reduce" and not node.axes]
        if totals:
            return Early(refused=f"it depends on {provenance.called(totals[0])}, which is known only at the end")
        return Early(refused="forward would take more than one launch" if steps else "there is nothing to compute")
    return Early(steps, tuple(root.buffer for root in gradients), tuple(granted))


def _count(node: Node) -> sympy.Expr | None:
    """How large a sum of conditions is at most, if the node is one: as many as there are."""
    if node.op != "reduce" or node.attrs[0] != "sum" or node.axes:
        return None
    summed = node.args[0]
    if summed.op == "cast" and summed.args[0].dtype == torch.bool:
        return sympy.Mul(*(axis.size for axis in node.attrs[1]))
    if summed.op == "where" and [arg.attrs[0] for arg in summed.args[1:] if arg.op == "const"] == [1, 0]:
        return sympy.Mul(*(axis.size for axis in node.attrs[1]))
    return None
