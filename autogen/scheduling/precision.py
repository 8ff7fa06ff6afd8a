"""Functions no more exact than results in half precision can show.

An exponential within 3 ulp of single precision is most of the instructions of a softmax, and what a memory of 4 TB/s
waits for. Where all that depends on it is rounded to half precision in the end, one of a third of the instructions
serves as well (`Op.half`). What decides something stays exact: comparisons, and casts that the loss itself makes, jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from autogen import ir
from autogen.ir import Node
from autogen.ops import OPS
from autogen.program import Root

_ROUNDING = ("floor", "ceil", "trunc", "round", "floor_divide", "fmod", "remainder", *ir.ROUNDINGS.values())


def in_half_precision(roots: Sequence[Root], moved: Callable[[Node, Node], None]) -> list[Node]:
    """The nodes of all roots of a loss, forward and backward; `moved` hears of every node that changed."""
    nodes = [root.node for root in roots]
    order = ir.topological(nodes)
    exact = set(ir.topological(root.node for root in roots if root.buffer.dtype not in ir.ROUNDINGS))
    exact.update(ir.topological(arg for node in order if _jumps(node) for arg in node.args))
    done: dict[Node, Node] = {}
    for node in order:
        done[node] = new = _cheaper(node, done, is_exact=node in exact)
        if new is not node:
            moved(node, new)
    return [done[node] for node in nodes]


def _cheaper(node: Node, done: Mapping[Node, Node], *, is_exact: bool) -> Node:
    args = [done[arg] for arg in node.args]
    half = OPS[node.op].half if node.op in OPS and node.dtype == torch.float32 else None
    return ir.rebuild(node, args) if half is None or is_exact else ir.apply(half, *args)


def _jumps(node: Node) -> bool:
    """Whether a small change of an argument may be a large one of the value."""
    return node.op in ("sign", *_ROUNDING) or not node.dtype.is_floating_point
