"""Choose the function for each exponential and logarithm, by the accuracy that its kernel needs.

An exponential within 3 ulp of single precision is most of the instructions of a softmax, and what a memory of 4 TB/s
waits for. It may be less exact

- where it is of what is at most 0, by its form: then only about what would overflow;
- where all that depends on it is rounded to half precision in the end (`Op.half`);
- in sums alone, each with its own greatest, which is 1: no such sum shows an error that is small beside that 1.

What decides something stays exact: comparisons, and casts that the loss itself makes, jump.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from autogen import ir
from autogen.ir import Node, apply
from autogen.ir.ops import OPS
from autogen.ir.program import Root
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.launches.running import is_finite_form, is_shifted, largest_of
from autogen.scheduling.rewrites.folding import is_at_least_zero

_ROUNDING = ("floor", "ceil", "trunc", "round", "floor_divide", "fmod", "remainder", *ir.ROUNDINGS.values())

Moved = Callable[[Node, Node], None]


_ON_THE_WAY = ("saved", "scratch", "partial")


def shown_exactly(roots: Sequence[Root], read_by_torch: Iterable[str] = ()) -> set[str]:
    """Of the buffers that kernels store on the way to other `roots`, those that must be exact: what results of more
    than half precision are made of, what decides something, and what torch reads.
    """
    made = {root.buffer.name: root.node for root in roots}
    found = set(read_by_torch)
    exact = [root.node for root in roots if _is_exact(root, found)]
    exact += [arg for node in ir.topological(root.node for root in roots) if _jumps(node) for arg in node.args]
    while exact:
        names = {load.attrs[0].name for load in ir.loads(exact)} - found
        found |= names
        exact = [made[name] for name in names if name in made]
    return found


def _is_exact(root: Root, exact: Collection[str]) -> bool:
    """Whether what is stored may show how exact it is."""
    is_shown = root.buffer.role not in _ON_THE_WAY or root.buffer.name in exact
    return is_shown and root.buffer.dtype not in ir.ROUNDINGS


def with_instructions(kernel: Kernel, exact: Collection[str], kept: Mapping[Node, Node], moved: Moved) -> Kernel:
    """A kernel with the cheapest functions that do for what it stores, of which the buffers called `exact` are exact.

    `kept` are the reductions that it reads from memory.
    """
    shown = [root.node for root in kernel.roots if _is_exact(root, exact)]
    if kernel.last_block is not None:
        shown += kernel.totals if any(_is_exact(root, exact) for root in kernel.finals) else ()
        last = replace(kernel.last_block, kernel=with_instructions(kernel.last_block.kernel, exact, kept, moved))
        kernel = replace(kernel, last_block=last)
    return kernel.on(lambda nodes: _in_sums(_in_half_precision(nodes, shown, kept, moved), moved))


def _in_half_precision(
    nodes: Sequence[Node], shown: Sequence[Node], kept: Mapping[Node, Node], moved: Moved
) -> list[Node]:
    """Nodes with cheaper functions, where that is not `shown`."""
    order = ir.topological(nodes)
    exact = set(ir.topological([*shown, *(arg for node in order if _jumps(node) for arg in node.args)]))
    done: dict[Node, Node] = {}
    for node in order:
        done[node] = new = _cheaper(node, done, kept, is_exact=node in exact)
        if new is not node:
            moved(node, new)
    return [done[node] for node in nodes]


def _cheaper(node: Node, done: Mapping[Node, Node], kept: Mapping[Node, Node], *, is_exact: bool) -> Node:
    args = [done[arg] for arg in node.args]
    half = OPS[node.op].half if node.op in OPS and node.dtype == torch.float32 else None
    if half is not None and not is_exact:
        return apply(half, *args)
    if node.op == "exp" and _is_at_most_zero(args[0], kept):
        return apply("exp_nonpositive", *args)
    return ir.rebuild(node, args)


def _jumps(node: Node) -> bool:
    """Whether a small change of an argument may be a large one of the value."""
    return node.op in ("sign", *_ROUNDING) or not node.dtype.is_floating_point


def _is_at_most_zero(node: Node, kept: Mapping[Node, Node]) -> bool:
    if node.op == "neg":
        return is_at_least_zero(node.args[0])
    return is_shifted(node, kept) and not is_finite_form(node.args[1])


def _in_sums(nodes: Sequence[Node], moved: Moved) -> list[Node]:
    """Nodes with the exponentials that are in sums alone."""
    users: dict[Node, list[Node]] = {}
    for node in ir.topological(nodes):
        for arg in node.args:
            users.setdefault(arg, []).append(node)
    cheaper = {
        node: apply("exp_summand", *node.args)
        for node, sums in users.items()
        if node.op in ("exp", "exp_nonpositive")
        and node.dtype == torch.float32
        and is_shifted(node.args[0])
        and node not in nodes
        and all(_is_its_sum(each, node) for each in sums)
    }
    for node, summand in cheaper.items():
        moved(node, summand)
    return ir.replace(nodes, cheaper, moved)


def _is_its_sum(user: Node, exponential: Node) -> bool:
    """Whether a node is the sum of an exponential over the axes of its maximum, or more."""
    if user.op != "reduce" or user.attrs[0] != "sum":
        return False
    return set(largest_of(exponential.args[0].args[1]).attrs[1]) <= set(user.attrs[1])
