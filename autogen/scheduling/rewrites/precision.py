"""Functions no more exact than results can show: those in half precision, and sums.

An exponential within 3 ulp of single precision is most of the instructions of a softmax, and what a memory of 4 TB/s
waits for. Where all that depends on it is rounded to half precision in the end, one of a third of the instructions
serves as well (`Op.half`). What decides something stays exact: comparisons, and casts that the loss itself makes, jump.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from autogen import ir
from autogen.ir import Node
from autogen.ops import OPS
from autogen.program import Root
from autogen.scheduling.rewrites.simplify import is_shifted

_ROUNDING = ("floor", "ceil", "trunc", "round", "floor_divide", "fmod", "remainder", *ir.ROUNDINGS.values())


def in_half_precision(roots: Sequence[Root], moved: Callable[[Node, Node], None]) -> list[Root]:
    """All roots of a loss, forward and backward, with cheaper functions; `moved` hears of every node that changed."""
    order = ir.topological(root.node for root in roots)
    exact = set(ir.topological(root.node for root in roots if root.buffer.dtype not in ir.ROUNDINGS))
    exact.update(ir.topological(arg for node in order if _jumps(node) for arg in node.args))
    done: dict[Node, Node] = {}
    for node in order:
        done[node] = new = _cheaper(node, done, is_exact=node in exact)
        if new is not node:
            moved(node, new)
    return [replace(root, node=done[root.node]) for root in roots]


def _cheaper(node: Node, done: Mapping[Node, Node], *, is_exact: bool) -> Node:
    args = [done[arg] for arg in node.args]
    half = OPS[node.op].half if node.op in OPS and node.dtype == torch.float32 else None
    return ir.rebuild(node, args) if half is None or is_exact else ir.apply(half, *args)


def _jumps(node: Node) -> bool:
    """Whether a small change of an argument may be a large one of the value."""
    return node.op in ("sign", *_ROUNDING) or not node.dtype.is_floating_point


def in_sums(roots: Sequence[Root], moved: Callable[[Node, Node], None]) -> list[Root]:
    """Roots with the exponentials that are in sums alone, each with its own greatest, which is 1: no such sum shows an
    error that is small beside that 1.
    """
    nodes = [root.node for root in roots]
    users: dict[Node, list[Node]] = {}
    for node in ir.topological(nodes):
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    cheaper = {
        node: ir.apply("exp_summand", *node.args)
        for node, sums in users.items()
        if node.op == "exp_nonpositive"
        and node.dtype == torch.float32
        and is_shifted(node.args[0])
        and node not in nodes
        and all(_is_its_sum(each, node) for each in sums)
    }
    for node, summand in cheaper.items():
        moved(node, summand)
    return [replace(root, node=node) for root, node in zip(roots, ir.replace(nodes, cheaper, moved), strict=True)]


def _is_its_sum(user: Node, exponential: Node) -> bool:
    """Whether a node is the sum of an exponential over the axes of its maximum, or more."""
    if user.op != "reduce" or user.attrs[0] != "sum":
        return False
    largest = exponential.args[0].args[1]
    return set(largest.attrs[1]) <= set(user.attrs[1])
