"""Sums whose last bits depend on the order in which a kernel adds, and what looks at these bits."""

from __future__ import annotations

from collections.abc import Sequence

from autogen import ir
from autogen.ir import Node, is_inexact
from autogen.scheduling.equivalence import Equivalents


def is_extreme(node: Node) -> bool:
    """Whether a node is the largest or smallest of some values."""
    return node.op == "reduce" and node.attrs[0] in ir.EXTREMES


def adds_differently(roots: Sequence[Node]) -> bool:
    """Whether a value is asked whether it equals an extreme, and the two add up by other expressions, as where one is
    seen through a view: nothing makes their last bits the same, so that nothing may equal the extreme.
    """
    for node in ir.topological(roots):
        if node.op != "eq" or not node.args[0].dtype.is_floating_point:
            continue
        for largest, value in (node.args, node.args[::-1]):
            if not is_extreme(largest):
                continue
            within = ir.topological(largest.args)
            known = Equivalents()
            for each in filter(is_inexact, within):
                known.add(each)
            around = filter(is_inexact, ir.topological([value], within))
            if any(known.find(each) is None for each in around):
                return True
    return False
