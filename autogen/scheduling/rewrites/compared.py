"""Sums that decide whether values are equal.

Backward of `v.amax(0)` looks where `v` equals the maximum, and somewhere it must. If `v` depends on a sum, such as a
mean, two kernels that add it up in different orders make two values of it, which differ in their last bits: nothing
equals its maximum then. So does one kernel that adds up `s` along two axes, for `s[:, None] >= s`. Such sums have to be
in memory, for everything to read the same bits. Values that are made of the same numbers by the same operations are
the same, as no product is fused with a sum (`autogen.runtime.build.OPTIONS`), and their extremes are, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autogen import ir
from autogen.errors import ComparedSumError
from autogen.ir import Node, is_inexact
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Step
from autogen.scheduling.rewrites.equivalence import Equivalents

# What jumps where two values meet.
SHARP = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "sign"})


def compared_sums(roots: Sequence[Node]) -> set[Node]:
    """The sums of values that are compared with extremes of themselves, or with themselves along other axes.

    Raises:
        ComparedSumError: an extreme is of other sums, as where these are seen through a view.
    """
    found: set[Node] = set()
    for node in ir.topological(roots):
        if node.op in SHARP:
            met = ir.downward([node], _is_extreme)
            around = set(filter(is_inexact, met))
            within = set(filter(is_inexact, ir.topological(filter(_is_extreme, met))))
            known, _ = _equivalents(within)
            if within and any(known.find(each) is None for each in around):
                raise ComparedSumError
            if around and (within or _equivalents(around)[1]):
                found |= around | within
    return found


def may_differ(sums: set[Node], steps: Sequence[Step], later: Sequence[Node]) -> bool:
    """Whether some of the compared sums may be added up more than once, by the steps of forward or for what is computed
    `later`. A kernel alone may do so with a scan: where it needs the values in two layouts, Triton may have it run
    twice.
    """
    kernels = [step for step in steps if isinstance(step, Kernel)]
    if len(kernels) > 1 or any(kernel.parts or kernel.last_block for kernel in kernels):
        return bool(sums)
    computed = ir.topological(root.node for kernel in kernels for root in kernel.roots)
    is_repeated = not sums.isdisjoint(ir.topological(later)) or _equivalents(filter(is_inexact, computed))[1]
    return bool(sums) and (is_repeated or any(node.op == "scan" for node in sums))


def _equivalents(nodes: Iterable[Node]) -> tuple[Equivalents, bool]:
    """These nodes, and whether some are the same but for the names of their axes."""
    known, has_equals = Equivalents(), False
    for node in nodes:
        has_equals = has_equals or known.find(node) is not None
        known.add(node)
    return known, has_equals


def _is_extreme(node: Node) -> bool:
    return node.op == "reduce" and node.attrs[0] in ir.EXTREMES
