"""Make sums cheaper: factors leave them, one-hot rows are one read, and log-softmaxes are split.

A factor that does not depend on the summed axes leaves the sum, unless it might keep the sum from an overflow; what
upstream gradients multiply leaves in any case, so that the rest is known in forward. The sum of a one-hot row is read
at its one index. A weighted sum of a log-softmax is split where that saves a walk over the row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Node, apply, const
from autogen.ir.substitution import substitute
from autogen.scheduling.rewrites.folding import fold, is_at_least_zero, is_size, number_of
from autogen.scheduling.rewrites.softmax import is_log_softmax

_FLOATS = (torch.float32, torch.float64)
_LINEAR = frozenset({
    "neg", "abs", "add", "sub", "mul", "minimum", "maximum", "relu", "log_sigmoid", "log_sigmoid_neg", "cast", "reduce",
})  # fmt: skip


def sums(node: Node) -> Node:
    """A sum over axes, made of smaller ones: what does not depend on the axes leaves the sum, a one-hot row is read
    at its one place, and a log-softmax is split where that saves a pass over the row.
    """
    if node.op != "reduce":
        return node
    kind, axes = node.attrs
    return _sum(frozenset(axes), node.args[0]) if kind == "sum" else present(node)


def present(node: Node) -> Node:
    """A reduction over those of its axes that its body depends on."""
    (kind, axes), (body,) = node.attrs, node.args
    absent = set(axes) - body.axes
    if absent and kind == "prod":
        for axis in sorted(absent, key=str):
            body = ir.at_each(axis, body)
        return ir.reduce(kind, axes, body)
    inner = ir.reduce(kind, body.axes & set(axes), body) if absent else node
    return _times(absent, inner) if absent and kind == "sum" else inner


def _times(axes: Collection[Axis], term: Node) -> Node:
    """The sum over axes of what does not depend on them."""
    count = ir.cast(ir.index(sympy.Mul(*(axis.size for axis in sorted(axes, key=str)))), term.dtype)
    return fold(apply("mul", count, term))


def _sum(axes: frozenset[Axis], body: Node) -> Node:
    absent = axes - body.axes
    if absent:
        return _times(absent, _sum(axes - absent, body) if axes - absent else body)
    factored = _pull_factor(axes, body)
    if factored is not None:
        return factored
    if body.op in ("add", "sub") and _separates(axes, body.args):
        return fold(apply(body.op, *(_sum(axes, arg) for arg in body.args)))
    hot = _one_hot(axes, body)
    if hot is not None:
        return hot
    counted = _count(axes, body)
    if counted is not None:
        return counted
    split = _split_log_softmax(axes, body)
    return split if split is not None else ir.reduce("sum", axes, body)


def what_forward_knows(roots: Sequence[Node], moved: Callable[[Node, Node], None]) -> list[Node]:
    """`roots` of backward with sums of what does not depend on upstream gradients, as far as these are factors."""

    def rule(node: Node) -> Node:
        terms = None
        if node.op == "reduce" and node.attrs[0] == "sum" and _adds_what_arrives(node.args[0]):
            terms = _by_arrival(frozenset(node.attrs[1]), node.args[0])
        if terms is None:
            return node
        sums = ((by, _sum(frozenset(node.attrs[1]), term)) for by, term in terms.items())
        parts = [total if by is None else apply("mul", by, total) for by, total in sums]
        return functools.reduce(lambda one, other: fold(apply("add", one, other)), parts)

    return ir.transform(roots, rule, moved)


def _by_arrival(axes: frozenset[Axis], node: Node) -> dict[Node | None, Node] | None:
    """A summand as the sum of terms by what multiplies them that arrives in backward, so that what is left is known in
    forward; None if that is no factor. What all of the axes have in common is a factor.
    """
    if not _arrives(node):
        return {None: node}
    if not node.axes & axes:
        return {node: const(1, node.dtype)}
    own = [_by_arrival(axes, arg) for arg in node.args] if node.op in ("neg", "add", "sub", "mul", "div") else [None]
    found = [each for each in own if each is not None]
    if len(found) < len(node.args):
        return None
    match node.op:
        case "neg":
            return {by: fold(apply("neg", term)) for by, term in found[0].items()}
        case "add" | "sub":
            one, other = found
            made = {by: fold(apply(node.op, term, other[by])) if by in other else term for by, term in one.items()}
            rest = {by: term for by, term in other.items() if by not in one}
            return made | {by: fold(apply("neg", term)) if node.op == "sub" else term for by, term in rest.items()}
        case "div" if set(found[1]) == {None}:
            return {by: fold(apply("div", term, found[1][None])) for by, term in found[0].items()}
        case "mul" if len(found[0]) == 1 or len(found[1]) == 1:
            pairs = itertools.product(found[0].items(), found[1].items())
            return {_both(by, other): fold(apply("mul", term, rest)) for (by, term), (other, rest) in pairs}
    return None


def _adds_what_arrives(node: Node) -> bool:
    """Whether a product has a sum of upstream gradients as a factor: a factor by itself has left the sum already."""
    if node.op in ("add", "sub"):
        return _arrives(node)
    return node.op in ("mul", "div", "neg") and any(map(_adds_what_arrives, node.args))


def _both(one: Node | None, other: Node | None) -> Node | None:
    return apply("mul", one, other) if one is not None and other is not None else one or other


def _arrives(node: Node) -> bool:
    """Whether a value depends on an upstream gradient."""
    return any(load.attrs[0].role == "upstream" for load in ir.loads([node]))


def _separates(axes: frozenset[Axis], terms: Sequence[Node]) -> bool:
    """Whether a sum of terms may be taken term by term. `sum(1 - x)` may not: `n - sum(x)` would cancel."""
    return any(_one_hot(axes, term) is not None for term in terms)


def _pull_factor(axes: frozenset[Axis], body: Node) -> Node | None:
    """`sum(r * x)` as `r * sum(x)`, likewise through negation and division by `r`, however deep `r` is in a product."""
    for op, factor, rest in _around(axes, body) if body.dtype in _FLOATS else ():
        if _leaves(axes, op, factor, rest):
            total = _sum(axes, rest)
            return fold(apply("mul", factor, total) if op == "mul" else apply("div", total, factor))
    return None


def _around(axes: frozenset[Axis], node: Node) -> Iterator[tuple[str, Node, Node]]:
    """Each part of `node` that is the same all along the axes: whether it is to "mul" or "div"; itself; the rest."""
    match node.op:
        case "neg":
            yield "mul", const(-1, node.dtype), node.args[0]
            for op, factor, rest in _around(axes, node.args[0]):
                yield op, factor, fold(apply("neg", rest))
        case "div":
            dividend, divisor = node.args
            if not divisor.axes & axes:
                yield "div", divisor, dividend
            for op, factor, rest in _around(axes, dividend):
                yield op, factor, fold(apply("div", rest, divisor))
        case "mul":
            pairs = dict.fromkeys((node.args, node.args[::-1]))
            for outside, inside in pairs:
                if not outside.axes & axes:
                    yield "mul", outside, inside
            for outside, inside in pairs:
                for op, factor, rest in _around(axes, outside):
                    yield op, factor, fold(apply("mul", rest, inside))
        case "where" if number_of(node.args[2]) == 0:
            condition, chosen, zero = node.args
            for op, factor, rest in _around(axes, chosen):
                if _arrives(factor):
                    yield op, factor, apply("where", condition, rest, zero)


def _leaves(axes: frozenset[Axis], op: str, factor: Node, rest: Node) -> bool:
    """Whether what `op` does with a factor may be done to a sum of the rest over axes.

    What may shrink stays, masks above all, where that sum may be infinite though no summand is: 0 makes nan of it. So
    does what may be 0 and divides, as 0 / 0 is nan, and not infinite. What is waited for leaves whatever it is.
    """
    if _is_waited_for(op, factor):
        return True
    divisors = [factor] if op == "div" else []
    divisors += [node.args[-1] for node in ir.downward([factor], _is_reduced) if node.op in ("div", "reciprocal")]
    if any(map(_may_be_0, divisors)):
        return False
    number = number_of(factor)
    if number is not None and (abs(number) >= 1 if op == "mul" else abs(number) <= 1):
        return True
    counts = op == "mul" and is_size(factor) and _is_positive(factor)
    return counts or not _may_overflow(rest) or _one_hot(axes, rest) is not None


def _is_reduced(node: Node) -> bool:
    return node.op == "reduce"


def _is_waited_for(op: str, factor: Node) -> bool:
    """Whether a factor arrives in backward, or is reduced, from floats if it multiplies: a sum without it is taken in
    the same walk, or by forward. What is reduced from conditions is a mask, which may be 0.
    """
    ends = ir.downward([factor], lambda node: _is_reduced(node) or node.dtype == torch.bool)
    arrives = any(node.op == "load" and node.attrs[0].role == "upstream" for node in ends)
    return arrives or any(_is_reduced(node) and (op == "div" or _is_float(node)) for node in ends)


def _is_float(node: Node) -> bool:
    """Whether a value is computed from floats, and not by comparing them."""
    below = ir.downward([node], lambda each: not each.dtype.is_floating_point)
    return any(each.op == "load" and each.dtype in _FLOATS for each in below)


def _may_be_0(divisor: Node) -> bool:
    """Whether a divisor may be 0, as far as can be seen; what is reduced is taken not to be."""
    number = number_of(divisor)
    return number == 0 if number is not None else not _is_positive(divisor)


def _is_positive(node: Node) -> bool:
    """Whether a value is above 0 by its form, but for one so small that it is rounded to 0."""
    match node.op:
        case "const":
            return bool(node.attrs[0] > 0)
        case "index":
            return bool(node.attrs[0].is_positive)
        case "reduce" | "exp" | "sigmoid" | "sigmoid_neg":
            return True
        case "maximum":
            return any(map(_is_positive, node.args))
        case "add":
            return all(map(is_at_least_zero, node.args)) and any(map(_is_positive, node.args))
        case "cast" | "sqrt" | "reciprocal" | "mul" | "div" | "minimum":
            return all(map(_is_positive, node.args))
    return False


def _may_overflow(node: Node) -> bool:
    """Whether a sum of values may be infinite though none of them is: they grow as what is read from memory does, with
    numbers next to the largest, with which masks are filled. A square of those is infinite itself.
    """
    found: dict[Node, None] = {}
    todo = [node]
    while todo:
        each = todo.pop()
        if each not in found:
            found[each] = None
            todo += _grows_as(each)
    return any(each.op == "load" and each.dtype in _FLOATS for each in found)


def _grows_as(node: Node) -> Sequence[Node]:
    """The arguments as which a value grows."""
    match node.op:
        case "where":
            return node.args[1:]
        case "div":
            return node.args[:1]
        case "mul" if node.args[0] is node.args[1]:
            return ()
        case "reduce" if node.attrs[0] == "prod":
            return ()
    return node.args if node.op in _LINEAR else ()


def _one_hot(axes: frozenset[Axis], body: Node) -> Node | None:
    """`sum over c of where(c == t, v, 0)` is `v` at `c = t` if `t` is a place on the axis, else 0."""
    if body.op != "where" or number_of(body.args[2]) != 0:
        return None
    condition, value, zero = body.args
    if condition.op != "eq":
        return None
    for place, target in (condition.args, condition.args[::-1]):
        if place.op != "index" or place.attrs[0] not in axes or target.axes & {place.attrs[0]}:
            continue
        axis = place.attrs[0]
        try:
            picked = substitute(value, {axis: target})
        except NotImplementedError:
            continue
        inside = apply(
            "logical_and",
            apply("ge", target, const(0, torch.int64)),
            apply("lt", target, ir.index(axis.size)),
        )
        row = apply("where", inside, picked, zero)
        rest = axes - {axis}
        return _sum(rest, row) if rest else row
    return None


def _count(axes: frozenset[Axis], body: Node) -> Node | None:
    """`sum(where(c, where(d, r, 0), 0))` as `r` times how often the conditions hold; 0 if never, whatever `r` is."""
    conditions = []
    value = body
    while value.op == "where" and number_of(value.args[2]) == 0 and value.axes & axes:
        conditions.append(value.args[0])
        value = value.args[1]
    if value.axes & axes or value.op == "const" or value.dtype not in _FLOATS:
        return None
    one, zero = const(1, value.dtype), const(0, value.dtype)
    held = one
    for condition in reversed(conditions):
        held = apply("where", condition, held, zero)
    count = ir.reduce("sum", axes, held)
    return apply("where", apply("ne", count, zero), apply("mul", value, count), zero)


def _split_log_softmax(axes: frozenset[Axis], body: Node) -> Node | None:
    """`sum(w * ((x - max) - log(s)))` as `sum(w * (x - max)) - log(s) * sum(w)`.

    Both parts have the sign of w, so nothing cancels; and neither needs `s`, so one pass over the row is enough.
    """
    found = _weighted(axes, body)
    if found is None:
        return None
    log_softmax, weight = found
    shifted, log_total = log_softmax.args
    if log_total.axes & axes:  # more is summed than the softmax's own axes: those first
        return _sum(axes & log_total.axes, _sum(axes - log_total.axes, body))
    weighted = shifted if weight is None else apply("mul", weight, shifted)
    total = _sum(axes, const(1, body.dtype) if weight is None else weight)
    return apply("sub", _sum(axes, weighted), fold(apply("mul", log_total, total)))


def _weighted(axes: frozenset[Axis], node: Node) -> tuple[Node, Node | None] | None:
    """The log-softmax in a product, however deep, and its weight (None is 1)."""
    if is_log_softmax(node, axes):
        return node, None
    for own, other in (node.args, node.args[::-1]) if node.op == "mul" else ():
        found = _weighted(axes, own)
        if found is not None:
            log_softmax, weight = found
            return log_softmax, other if weight is None else apply("mul", weight, other)
    return None
