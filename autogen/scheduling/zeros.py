"""The sign of zero: where `x + 0.0`, which makes 0.0 of -0.0, is as good as `x`.

Python's `sum`, and tensors of zeros that something is added to, add zeros all the time. They cost nothing where `x` is
no -0.0 by its form, nor where no result depends on it: a sum begins at 0.0, and a comparison takes both for the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autogen import ir
from autogen.ir import Node

# What 1/0.0 and 1/-0.0 differ in, and what is the same of 0.0 and -0.0.
_TELL = frozenset({"atan2", "copysign", "signbit", "reciprocal", "rsqrt", "pow", "floor_divide", "digamma"})
_EVEN = frozenset({
    *ir.EXPONENTIALS, "abs", "exp2", "cos", "cosh", "log", "log2", "log10", "sigmoid", "sigmoid_neg", "log_sigmoid",
    "log_sigmoid_neg", "erfc", "erfcx", "acos", "lgamma",
})  # fmt: skip
_NOT_BELOW_0 = frozenset({*ir.EXPONENTIALS, "abs", "exp2", "cosh", "sigmoid", "sigmoid_neg"})


def without_unseen(roots: Sequence[Node], moved: Callable[[Node, Node], None]) -> list[Node]:
    """`roots` without the zeros that are added where none of them shows the sign of a zero."""
    order = ir.topological(roots)
    seen = set(roots)
    for node in reversed(order):
        seen.update(_shown(node, is_seen=node in seen))
    done: dict[Node, Node] = {}
    for node in order:
        found = None if node in seen else _beside_0(node)
        done[node] = new = done[found[0]] if found else ir.rebuild(node, [done[arg] for arg in node.args])
        if new is not node:
            moved(node, new)
    return [done[root] for root in roots]


def without_0(node: Node) -> Node | None:
    """The same as a sum with a zero, in all bits, without it; None if there is no such zero."""
    found = _beside_0(node)
    if found is None:
        return None
    term, zero = found
    return term if is_negative_0(zero) or not _may_be_negative_0(term) else None


def _beside_0(node: Node) -> tuple[Node, Node] | None:
    """What a zero is added to, and that zero."""
    if node.op == "add":
        for term, zero in (node.args, node.args[::-1]):
            if zero.op == "const" and zero.attrs[0] == 0:
                return term, zero
    return None


def is_negative_0(node: Node) -> bool:
    """Whether a node is the number -0.0."""
    return node.op == "const" and node.attrs[0] == 0 and math.copysign(1, node.attrs[0]) < 0


def _shown(node: Node, *, is_seen: bool) -> Sequence[Node]:
    """The arguments the sign of whose zeros shows in a value, the sign of which `is_seen` or not."""
    match node.op:
        case "div" | "div_rn":
            return node.args if is_seen else node.args[1:]
        case "mul" if node.args[0] is node.args[1]:
            return ()
        case "reduce" if node.attrs[0] == "sum":
            return ()
    is_even = node.op in _EVEN or not node.dtype.is_floating_point
    return node.args if node.op in _TELL or (is_seen and not is_even) else ()


def _may_be_negative_0(node: Node) -> bool:
    """Whether a value may be -0.0, as far as can be seen."""
    match node.op:
        case "const":
            return is_negative_0(node)
        case "cast":
            return _may_be_negative_0(node.args[0])
        case "where":
            return any(map(_may_be_negative_0, node.args[1:]))
        case "add":
            terms = [each for each in ir.downward([node], lambda each: each.op != "add") if each.op != "add"]
            return all(map(_may_be_negative_0, terms))
        case "sub":  # of 0.0 and 0.0, it is 0.0
            return node.args[0].op != "const" or is_negative_0(node.args[0])
        case "reduce" if node.attrs[0] == "sum":
            return False
        case "mul" if node.args[0] is node.args[1]:
            return False
    return node.dtype.is_floating_point and node.op not in _NOT_BELOW_0
