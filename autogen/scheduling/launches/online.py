"""How many passes over a row its reductions need.

A sum that depends on a maximum of the same row usually waits for it. Two forms need not: with a running maximum m
that grows to m', `sum(v * exp(x - m))` is corrected by the factor `exp(m - m')`, and `sum(w * (x - m))` by the term
`(m - m') * sum(w)`. Softmax, its logarithm under any weights, and their relatives thus take one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from autogen import ir
from autogen.ir import Node


class Form(Enum):
    """How a summand depends on a running maximum m."""

    FREE = "not at all"
    SCALED = "v * exp(x - m)"
    SHIFTED = "w * (x - m)"


@dataclass
class Online:
    """A sum that is accumulated while its maximum is still running; `weight` is the w of a SHIFTED one (None is 1)."""

    form: Form
    largest: Node
    weight: Node | None = None


@dataclass
class Pass:
    """The reductions of one walk over the columns, `online` the ones that follow a maximum of the same walk."""

    reductions: list[Node] = field(default_factory=list)
    online: dict[Node, Online] = field(default_factory=dict)


def passes(reductions: Sequence[Node]) -> list[Pass]:
    """The reductions of a row, arguments first, in as few walks over it as their dependencies allow."""
    number: dict[Node, int] = {}
    found: list[Pass] = []
    wanted = set(reductions)
    for node in reductions:
        below = [each for each in ir.topological(node.args) if each in wanted]
        partner = _partner(node, below)
        position = max(
            (number[each] + 1 for each in below if partner is None or each is not partner.largest), default=0
        )
        if partner is not None:
            position = max(position, number[partner.largest])
        number[node] = position
        while len(found) <= position:
            found.append(Pass())
        found[position].reductions.append(node)
        if partner is not None and number[partner.largest] == position:
            found[position].online[node] = partner
    return found


def _partner(node: Node, below: Sequence[Node]) -> Online | None:
    if node.attrs[0] != "sum":
        return None
    for largest in below:
        if largest.attrs[0] == "max":
            form, weight = form_of(node.args[0], largest)
            if form in (Form.SCALED, Form.SHIFTED):
                return Online(form, largest, weight)
    return None


def form_of(node: Node, largest: Node) -> tuple[Form | None, Node | None]:
    """The form in which a summand depends on a maximum, None if it is neither; and the weight of a SHIFTED one."""
    if largest not in ir.topological([node]):
        return Form.FREE, None
    if _is_shift(node, largest):
        return Form.SHIFTED, None
    if node.op in ir.EXPONENTIALS and _is_shift(node.args[0], largest):
        return Form.SCALED, None
    if node.op == "neg":
        form, weight = form_of(node.args[0], largest)
        if form == Form.SHIFTED:
            return form, ir.apply("neg", weight) if weight is not None else ir.const(-1, node.dtype)
        return (form, None) if form == Form.SCALED else (None, None)
    if node.op == "mul":
        for factor, rest in (node.args, node.args[::-1]):
            if form_of(factor, largest)[0] == Form.FREE:
                form, weight = form_of(rest, largest)
                if form == Form.SHIFTED:
                    return form, factor if weight is None else ir.apply("mul", factor, weight)
                return (form, None) if form == Form.SCALED else (None, None)
    return None, None


def _is_shift(node: Node, largest: Node) -> bool:
    return node.op == "sub" and node.args[1] is largest and node.args[0] is largest.args[0]
