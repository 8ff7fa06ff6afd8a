"""Rewrites on the IR, in one named, ordered list. Each keeps the value up to the rounding of a sum that is taken in
another order (one that does not wait for a factor may overflow, or meet 0 * inf, where eager does not).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Node, apply, const
from autogen.ops import OPS
from autogen.substitution import substitute

Pass = Callable[[Node], Node]

_FLOATS = (torch.float32, torch.float64)
_LINEAR = frozenset({
    "neg", "abs", "add", "sub", "mul", "minimum", "maximum", "relu", "log_sigmoid", "log_sigmoid_neg", "cast", "reduce",
})  # fmt: skip
_OPPOSITE = {"eq": "ne", "ne": "eq"}  # nan makes no other pair opposites


def simplify(roots: Sequence[Node], moved: Callable[[Node, Node], None] = lambda old, new: None) -> list[Node]:
    """`roots` after all passes; `moved` hears of every node that changed."""
    result = list(roots)
    for rule in PASSES:
        result = ir.transform(result, rule, moved)
    return result


def _number(node: Node) -> float | None:
    return node.attrs[0] if node.op == "const" else None


def fold(node: Node) -> Node:
    """Arithmetic that does nothing: `x * 1`, `x / 1`, `x - 0`, `-(-x)`, `a + -b`, a choice already made.

    `1 - sigmoid(-x)` is `sigmoid(x)`, in which nothing cancels; `1 - sigmoid(x)` stays, which takes one instruction.

    `x + 0` goes where it turns no -0.0 into 0.0. `x * 0` stays: it may be nan.
    """
    args = node.args
    numbers = [_number(arg) for arg in args]
    match node.op:
        case "add" if (term := _beside_0(node)) is not None:
            return term
        case "add" if args[0] is args[1] and node.dtype.is_floating_point:  # as in the gradient of a square
            return fold(apply("mul", args[0], const(2, node.dtype)))
        case "add" if 0 in numbers and (choice := args[1 - numbers.index(0)]).op == "where" and _has_number(choice):
            sums = (fold(apply("add", arg, const(0, node.dtype))) for arg in choice.args[1:])
            return fold(apply("where", choice.args[0], *sums))
        case "sub" if numbers[1] == 0:  # and `x - -0.0` is `x + 0.0`
            return fold(apply("add", args[0], const(-numbers[1], node.dtype)))
        case "sub" if numbers[0] == 1 and args[1].op == "sigmoid_neg":
            return apply("sigmoid", *args[1].args)
        case "add" if args[1].op == "neg":
            return fold(apply("sub", args[0], args[1].args[0]))
        case "add" if args[0].op == "neg":
            return fold(apply("sub", args[1], args[0].args[0]))
        case "sub" if args[1].op == "neg":
            return fold(apply("add", args[0], args[1].args[0]))
        case "mul" if 1 in numbers:
            return args[1 - numbers.index(1)]
        case "mul" if -1 in numbers:
            return fold(apply("neg", args[1 - numbers.index(-1)]))
        case "div" if numbers[1] == 1:
            return args[0]
        case "sigmoid" | "log_sigmoid" if args[0].op == "neg":  # which shares its exponential with that of `x`
            return apply(f"{node.op}_neg", args[0].args[0])
        case "floor_divide" | "fmod" | "remainder" if numbers[1] == 0 and not node.dtype.is_floating_point:
            return const(0, node.dtype)  # of no elements, as it would be an error
        case "mul" | "div" if any(arg.op == "neg" for arg in args):  # the sign goes outside, where two cancel
            bare = [arg.args[0] if arg.op == "neg" else arg for arg in args]
            product = fold(apply(node.op, *bare))
            return product if all(arg.op == "neg" for arg in args) else fold(apply("neg", product))
        case "neg" if args[0].op == "neg":
            return args[0].args[0]
        case "neg" if numbers[0] is not None:
            return const(-numbers[0], node.dtype)
        case "where" if numbers[0] is not None:
            return args[1] if numbers[0] else args[2]
        case "where" if args[1] is args[2]:
            return args[1]
        case "where" if _is_turned(node):  # a label that is not ignored is asked for as one that is
            return fold(apply("where", apply(_OPPOSITE[args[0].op], *args[0].args), args[2], args[1]))
        case "where" if (value := _chosen_in(args[0], args[1])) is not args[1]:
            return fold(apply("where", args[0], value, args[2]))
        case "where" if numbers[1:] == [1, 0] and not _may_be_negative_0(args[2]):
            return ir.cast(args[0], node.dtype)
        case "logical_and" if True in numbers:
            return args[1 - numbers.index(True)]
        case "logical_or" if False in numbers:
            return args[1 - numbers.index(False)]
        case "logical_not" | "bitwise_not" if args[0].op in _OPPOSITE and node.dtype == torch.bool:
            return apply(_OPPOSITE[args[0].op], *args[0].args)
        case "logical_not" if args[0].op == "logical_not":
            return args[0].args[0]
        case "round_to_float16" | "round_to_bfloat16" if _is_rounded(args[0], node.op):
            return args[0]
    if node.op in OPS and None not in numbers:
        # Rounded as the kernel would round it.
        given = zip(numbers, args, strict=True)
        values = [torch.tensor(number, dtype=arg.dtype, device="cpu") for number, arg in given]
        return const(OPS[node.op].twin(*values).item(), node.dtype)
    return node


def _is_turned(choice: Node) -> bool:
    """Whether a number is chosen where integers are equal, or different, and what is computed elsewhere."""
    condition, number, other = choice.args
    return (
        condition.op in _OPPOSITE
        and not condition.args[0].dtype.is_floating_point
        and (number.op == "const" and other.op != "const")
    )


def _chosen_in(condition: Node, value: Node) -> Node:
    """A value where a condition holds: if it is chosen by the same, or is read at a place that is."""
    if value.op == "where" and value.args[0] is condition:
        return value.args[1]
    return ir.rebuild(value, [_chosen_in(condition, arg) for arg in value.args]) if value.op == "load" else value


def _beside_0(node: Node) -> Node | None:
    """What a zero is added to that turns no -0.0 into 0.0; None if there is no such zero."""
    for term, zero in (node.args, node.args[::-1]):
        if _number(zero) == 0 and (_may_be_negative_0(zero) or not _may_be_negative_0(term)):
            return term
    return None


def _may_be_negative_0(node: Node) -> bool:
    """Whether a value may be -0.0, as far as can be seen."""
    if not node.dtype.is_floating_point:
        return False
    match node.op:
        case "const":
            return node.attrs[0] == 0 and math.copysign(1, node.attrs[0]) < 0
        case "cast":
            return _may_be_negative_0(node.args[0])
        case "sub":  # of 0.0 and 0.0, it is 0.0
            return node.args[0].op != "const" or _may_be_negative_0(node.args[0])
        case "add":  # a sum is only of two
            return all(map(_may_be_negative_0, node.args))
        case "reduce" if node.attrs[0] == "sum":
            return False
        case "mul" if node.args[0] is node.args[1]:
            return False
    return node.op not in ("abs", "exp")


def _has_number(choice: Node) -> bool:
    return any(arg.op == "const" for arg in choice.args)


def _is_rounded(node: Node, rounding: str) -> bool:
    """Whether the op `rounding` leaves a value as it is, as far as can be seen."""
    choices = node.args[1:] if node.op == "where" else (node,)
    return all(_fits(each, rounding) for each in choices)


def _fits(node: Node, rounding: str) -> bool:
    while node.op == "cast" and node.args[0].dtype not in ir.HELD_BY_HALVES:
        node = node.args[0]
    if node.op == "const":
        value = torch.tensor(float(node.attrs[0]), device="cpu")
        return bool(OPS[rounding].twin(value) == value)
    is_stored_so = node.op == "load" and ir.ROUNDINGS.get(node.attrs[0].dtype) == rounding
    return is_stored_so or node.op == rounding or node.op == "cast"


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


def sums(node: Node) -> Node:
    """A sum over axes, made of smaller ones: what does not depend on the axes leaves the sum, a one-hot row is read
    at its one place, and a log-softmax is split where that saves a pass over the row.
    """
    if node.op != "reduce":
        return node
    kind, axes = node.attrs
    return _sum(frozenset(axes), node.args[0]) if kind == "sum" else _present(node)


def settled(node: Node) -> Node:
    """`fold`, and reductions over no axes but those that their bodies still depend on."""
    return _present(node) if node.op == "reduce" else fold(node)


def _present(node: Node) -> Node:
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
    number = _number(factor)
    if number is not None and (abs(number) >= 1 if op == "mul" else abs(number) <= 1):
        return True
    is_size = op == "mul" and _is_size(factor) and _is_positive(factor)
    return is_size or not _may_overflow(rest) or _one_hot(axes, rest) is not None


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
    number = _number(divisor)
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
    if body.op != "where" or _number(body.args[2]) != 0:
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
    while value.op == "where" and _number(value.args[2]) == 0 and value.axes & axes:
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


def once_per_row(node: Node) -> Node:
    """`(x * r) / n` as `x * (r / n)`, for a size `n` and an `r` of fewer axes than `x`."""
    if node.op == "div" and node.args[0].op == "mul" and _is_size(node.args[1]):
        product, size = node.args
        for element, row in (product.args, product.args[::-1]):
            if row.axes < element.axes:
                return apply("mul", element, fold(apply("div", row, size)))
    return node


def _is_size(node: Node) -> bool:
    return node.op == "cast" and node.args[0].op == "index" and not node.axes


def is_at_least_zero(node: Node) -> bool:
    """Whether a value is at least 0 by its form."""
    match node.op:
        case "abs" | "sqrt" | "relu" | "exp":
            return True
        case "const":
            return bool(node.attrs[0] >= 0)
        case "mul" if node.args[0] is node.args[1]:
            return True
        case "mul" | "div" | "add":
            return all(map(is_at_least_zero, node.args))
    return False


PASSES: tuple[Pass, ...] = (fold, softmax, sums, once_per_row, settled)
