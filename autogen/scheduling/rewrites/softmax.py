"""Share the exponentials and logarithms of softmaxes, so that each is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autogen import ir
from autogen.ir import Axis, Node, apply, const
from autogen.scheduling.launches.running import is_finite_form, is_shifted, largest_of


def softmax(node: Node) -> Node:
    """`exp` of a log-softmax as an exponential of its sum, over that sum: there is one division per row. And `xlogy` of
    a softmax by its logarithm.
    """
    if node.op == "exp" and is_log_softmax(node.args[0], node.axes):
        shifted, log_total = node.args[0].args
        return apply("mul", apply("exp", shifted), apply("reciprocal", log_total.args[0]))
    if node.op == "xlogy" and node.args[0] is node.args[1] and node.args[0].op == "mul":
        exponential, scale = node.args[0].args
        if scale.op == "reciprocal" and is_log_softmax(log := _logarithm(exponential, scale), exponential.axes):
            return apply("mul", _unless_never(exponential, log), scale)
    return node


def _logarithm(exponential: Node, scale: Node) -> Node:
    """The logarithm of `exp(x) * (1 / s)`."""
    return apply("sub", exponential.args[0], apply("log", scale.args[0])) if exponential.op == "exp" else exponential


def _unless_never(exponential: Node, log: Node) -> Node:
    """`exp(x - m) * log`, and 0 where x is -inf."""
    value, zero = exponential.args[0].args[0], const(0, exponential.dtype)
    ever = apply("ne", value, const(-math.inf, value.dtype))
    return apply("where", ever, apply("mul", exponential, log), zero)


def is_log_softmax(node: Node, axes: frozenset[Axis]) -> bool:
    """Whether a node is `(x - max(x)) - log(sum(exp(x - max(x))))`, the maximum over `axes`, and the sum at least over
    those of the maximum: so it is at least 1.
    """
    if node.op != "sub" or node.args[0].op != "sub" or node.args[1].op != "log":
        return False
    shifted, total = node.args[0], node.args[1].args[0]
    largest = shifted.args[1]
    return (
        largest.op == "reduce"
        and largest.attrs[0] == "max"
        and set(largest.attrs[1]) <= axes
        and largest.args[0] is shifted.args[0]
        and total.op == "reduce"
        and set(largest.attrs[1]) <= set(total.attrs[1])
        and total.args[0].op == "exp"
        and total.args[0].args[0] is shifted
    )


def normalizers(roots: Sequence[Node], moved: Callable[[Node, Node], None]) -> list[Node]:
    """`roots` with one sum of exponentials for a softmax and a `logsumexp` of the same values. What these subtract
    differs where the maximum is infinite, and there the softmax's sum is nan.
    """
    found: dict[tuple[Node, tuple[Axis, ...]], dict[bool, Node]] = {}
    for node in ir.topological(roots):
        (kind, axes), body = node.attrs if node.op == "reduce" else ("", ()), node.args[0] if node.args else node
        if kind == "sum" and body.op == "exp" and is_shifted(body.args[0]):
            shift = body.args[0].args[1]
            found.setdefault((largest_of(shift), axes), {})[is_finite_form(shift)] = node
    known = {
        own[False]: apply("where", _is_infinite(largest), ir.nothing(largest.dtype), own[True])
        for (largest, _), own in found.items()
        if len(own) == 2
    }
    return ir.replace(roots, known, moved)


def _is_infinite(largest: Node) -> Node:
    return apply("eq", apply("abs", largest), const(math.inf, largest.dtype))
