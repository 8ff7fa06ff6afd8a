"""Simplify IR expressions by one named, ordered list of rewrites.

Each keeps the value up to the rounding of a sum that is taken in another order (one that does not wait for a factor may
overflow, or meet 0 * inf, where eager does not).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autogen import ir
from autogen.ir import Node, apply
from autogen.scheduling.rewrites.folding import fold, is_size
from autogen.scheduling.rewrites.sequences import by_sequence
from autogen.scheduling.rewrites.softmax import softmax
from autogen.scheduling.rewrites.sums import present, sums

Pass = Callable[[Node], Node]


def simplify(roots: Sequence[Node], moved: Callable[[Node, Node], None] = lambda old, new: None) -> list[Node]:
    """`roots` after all passes; `moved` hears of every node that changed."""
    result = list(roots)
    for rule in PASSES:
        result = ir.transform(result, rule, moved)
    return result


def settled(node: Node) -> Node:
    """`fold`, and reductions over no axes but those that their bodies still depend on."""
    return present(node) if node.op == "reduce" else fold(node)


def once_per_row(node: Node) -> Node:
    """`(x * r) / n` as `x * (r / n)`, for a size `n` and an `r` of fewer axes than `x`."""
    if node.op == "div" and node.args[0].op == "mul" and is_size(node.args[1]):
        product, size = node.args
        for element, row in (product.args, product.args[::-1]):
            if row.axes < element.axes:
                return apply("mul", element, fold(apply("div", row, size)))
    return node


PASSES: tuple[Pass, ...] = (fold, by_sequence, softmax, sums, once_per_row, settled)
