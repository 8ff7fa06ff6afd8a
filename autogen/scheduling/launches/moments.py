"""Expand sums that depend on other reductions of the row, such as variances, into sums that do not.

`sum((x - mean)**2)` is `sum(x**2) - 2 * mean * sum(x) + n * mean**2`: what depends on other reductions is the same all
along the row, and leaves the sum, once the summand is written as a polynomial. Such sums nearly cancel, so that they
are added up in double precision, of which the products of single precision are a part: of numbers a thousand times as
far from 0 as from each other, the variance keeps ten digits. Sums of double precision themselves wait.

`sum(exp(x - m) * ((x - m) - log(s)))` is taken apart likewise, into sums with a running form
(`autogen.scheduling.launches.running`). Those have one sign, so they are added up as they are, but for squares.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Node, apply
from autogen.scheduling.launches.running import Walks, is_shifted, product_of
from autogen.scheduling.rewrites.folding import fold, is_at_least_zero

MOST_TERMS = 12

_Term = tuple[Node, ...]
"""What is multiplied in a summand: what depends on no reduction, exponentials, the rest. Nothing is 1."""

_Polynomial = dict[_Term, Node | None]
"""Of each term, its coefficient, which is the same all along the row, in double precision; None is 1."""


def apart(reductions: Sequence[Node], moved: Callable[[Node, Node], None]) -> dict[Node, Node]:
    """Of the reductions of a row, arguments first, what takes the place of those that would wait for others."""
    walks = Walks()
    done: dict[Node, Node] = {}
    for node in reductions:
        (new,) = ir.replace([node], done, moved)
        number = walks.number(new)[0]
        made, sums = _apart(new) if number else (new, [])
        if sums and max(walks.number(each)[0] for each in sums) < number:
            moved(node, made)
            new = made
        else:
            sums = [new]
        for each in sums:
            walks.add(each)
        if new is not node:
            done[node] = new
    exact = {each: ir.cast(own, each.dtype) for own, each in _singles(walks)}
    known = {node: ir.replace([new], exact, moved)[0] for node, new in done.items()}
    return known | {node: new for node, new in exact.items() if node in reductions}


def _singles(walks: Walks) -> Iterator[tuple[Node, Node]]:
    """Sums in double precision, and the same in single precision that there are as well."""
    sums = [node for walk in walks.found for node in walk.reductions]
    for node in sums:
        (body,) = node.args
        if body.op == "cast" and node.dtype == torch.float64:
            kind, axes = node.attrs
            single = ir.reduce(kind, axes, body.args[0])
            yield from [(node, single)] if single in sums else []


def _apart(node: Node) -> tuple[Node, list[Node]]:
    """A sum as an expression of others, and these; none if it is no polynomial."""
    (kind, axes), (body,) = node.attrs, node.args
    found = _polynomial(body, frozenset(axes)) if kind == "sum" and node.dtype.is_floating_point else None
    if found is None or any(factor.dtype != node.dtype for term in found for factor in term):
        return node, []
    cancels = not any(factor.reduces for term in found for factor in term)
    if cancels and node.dtype == torch.float64:
        return node, []
    is_square = any(sum(_is_linear((factor,)) and factor.reduces for factor in term) > 1 for term in found)
    dtype = torch.float64 if cancels or is_square else node.dtype
    sums: list[Node] = []
    parts: list[Node] = []
    for term, coefficient in found.items():
        factors = [ir.cast(factor, torch.float64) if cancels else factor for factor in term]
        if factors:
            sums.append(ir.reduce("sum", axes, ir.cast(product_of(factors), dtype)))
            part = ir.cast(sums[-1], torch.float64)
        else:
            part = ir.cast(ir.index(sympy.Mul(*(axis.size for axis in axes))), torch.float64)
        parts.append(part if coefficient is None else apply("mul", coefficient, part))
    total = reduce(lambda one, other: apply("add", one, other), parts)
    if is_at_least_zero(body):
        total = apply("maximum", total, ir.const(0, total.dtype))
    return ir.cast(total, node.dtype), sums


def _polynomial(node: Node, axes: frozenset[Axis]) -> _Polynomial | None:
    """A summand as a polynomial in what is known per element, or follows a running maximum."""
    if not node.axes & axes:
        return {(): ir.cast(node, torch.float64)}
    if not node.reduces or is_shifted(node) or (node.op in ir.EXPONENTIALS and is_shifted(node.args[0])):
        return {(node,): None}
    own = [_polynomial(arg, axes) for arg in node.args] if node.op in ("neg", "add", "sub", "mul", "div") else [None]
    if node.op == "where" and not node.args[0].reduces and node.args[2].op == "const" and node.args[2].attrs[0] == 0:
        own = [_polynomial(node.args[1], axes)]
        return None if own[0] is None else {_where(node, term): factor for term, factor in own[0].items()}
    if any(each is None for each in own):
        return None
    found: list[_Polynomial] = [each for each in own if each is not None]
    match node.op:
        case "neg":
            return {term: _times(factor, -1) for term, factor in found[0].items()}
        case "add" | "sub":
            return _sum(node.op, *found)
        case "div" if set(found[1]) != {()}:
            return None
        case "div":
            divisor, one = found[1][()], ir.const(1, torch.float64)
            assert divisor is not None, "only what varies along the row has no coefficient"
            return {term: apply("div", factor or one, divisor) for term, factor in found[0].items()}
    return _product(*found)


def _where(node: Node, term: _Term) -> _Term:
    """A term where a condition holds: each factor, of those that are multiplied in double precision."""
    condition, value, nothing = node.args
    if term and not any(factor.reduces for factor in term):
        return tuple(sorted((apply("where", condition, factor, nothing) for factor in term), key=_order))
    return (apply("where", condition, product_of(term) if term else ir.const(1, value.dtype), nothing),)


def _times(factor: Node | None, sign: int) -> Node | None:
    if sign == 1:
        return factor
    return ir.const(sign, torch.float64) if factor is None else apply("neg", factor)


def _sum(op: str, one: _Polynomial, other: _Polynomial) -> _Polynomial:
    """Of two that have a term per element with no coefficient, these are taken together before they are added up."""
    found, rest = dict(one), dict(other)
    plain, beside = (next((t for t, f in p.items() if f is None and _is_linear(t)), None) for p in (one, other))
    if plain is not None and beside is not None and plain != beside:
        del found[plain], rest[beside]
        found[(apply(op, plain[0], beside[0]),)] = None
    for term, factor in rest.items():
        own = _times(factor, -1 if op == "sub" else 1)
        if term in found:
            one_of = ir.const(1, torch.float64)
            found[term] = fold(apply("add", found[term] or one_of, own or one_of))
        else:
            found[term] = own
    return found


def _is_linear(term: _Term) -> bool:
    """Whether a term is a sum and difference of shifted values and of what depends on no reduction."""
    if len(term) != 1:
        return False
    (node,) = term
    if not node.reduces or is_shifted(node):
        return True
    return node.op in ("add", "sub", "neg") and all(_is_linear((arg,)) for arg in node.args)


def _product(one: _Polynomial, other: _Polynomial) -> _Polynomial | None:
    found: _Polynomial = {}
    for (term, factor), (rest, by) in itertools.product(one.items(), other.items()):
        whole = tuple(sorted((*term, *rest), key=_order))
        coefficient = fold(apply("mul", factor, by)) if factor and by else factor or by
        if whole in found:
            one_of = ir.const(1, torch.float64)
            coefficient = fold(apply("add", found[whole] or one_of, coefficient or one_of))
        found[whole] = coefficient
    return found if len(found) <= MOST_TERMS else None


def _order(factor: Node) -> tuple[int, str]:
    """What depends on no reduction first, then exponentials, the same in every process."""
    return (0 if not factor.reduces else 1 if factor.op in ir.EXPONENTIALS else 2), ir.format_nodes([factor])
