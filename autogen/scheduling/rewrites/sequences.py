"""Compute what is reduced of a sequence once per sequence, not once per item."""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from autogen import ir
from autogen.ir import Axis, Node, const
from autogen.ir.substitution import with_other_axes
from autogen.lowering.entries import is_nonnegative, plus, position
from autogen.lowering.sequences import at_sequence, within
from autogen.lowering.values import fresh_axis
from autogen.scheduling.rewrites.folding import fold


def by_sequence(node: Node) -> Node:
    """A reduction over items, of which each asks for what is reduced of its sequence, as one over sequences of that of
    their items: `sum(f(x[t], total[sequence of t]))` is the sum over b of that of `f(x[t], total[b])` in sequence b.
    """
    if node.op != "reduce":
        return node
    (kind, axes), (body,) = node.attrs, node.args
    for axis in axes:
        found = _sequence_asked(body, axis)
        if found is not None:
            search, first, size = found
            row = fresh_axis(size, _axes_of(body))
            inside = within(search, plus(row, -first))
            assert inside is not None
            of_row = _along(fold_all(at_sequence(body, search, row - first)), axis)
            if any(below.op == "reduce" and axis in below.axes for below in ir.topological([of_row])):
                continue
            nothing = const(ir.identity(kind, body.dtype), body.dtype)
            inner = ir.reduce(kind, [axis], ir.apply("where", inside, of_row, nothing))
            # Of a sequence without items, what is reduced of it need not be finite.
            start, end = (part.args[1] for part in inside.args)
            of_any = ir.apply("where", ir.apply("lt", start, end), inner, nothing)
            return ir.reduce(kind, [row, *(each for each in axes if each is not axis)], of_any)
    return node


def table_of_sequences(node: Node) -> tuple[Node, dict[Axis, Node]] | None:
    """A reduction that depends on the place of an item by its sequence alone, as one value per sequence, and the place
    at which it is wanted.
    """
    if node.op != "reduce":
        return None
    for axis in sorted(node.axes, key=str):
        found = _sequence_asked(node, axis)
        if found is None:
            continue
        search, first, size = found
        row = fresh_axis(size, _axes_of(node))
        table = fold_all(at_sequence(node, search, row - first))
        if axis not in table.axes:
            return _along(table, fresh_axis(axis.size, {row})), {row: position(plus(search, first))}
    return None


def _sequence_asked(node: Node, axis: Axis) -> tuple[Node, sympy.Expr, sympy.Expr] | None:
    """The one search by which reductions below a node depend on an axis, what has to be added to it to count sequences
    from 0, and how many there are.
    """
    searches = {
        below
        for each in ir.topological([node])
        if each.op == "reduce" and axis in each.axes
        for below in ir.topological(each.args)
        if below.op == "search" and axis in below.axes
    }
    if len(searches) != 1:
        return None
    (search,) = searches
    if search.axes != {axis}:
        return None
    read = list(_read_at(node, search))
    if not read:
        return None
    first = min(added for added, _ in read)
    sizes = [size - added + first for added, size in read]
    least = next((each for each in sizes if all(is_nonnegative(other - each) for other in sizes)), None)
    return None if least is None else (search, first, least)


def _read_at(node: Node, search: Node) -> Iterator[tuple[sympy.Expr, sympy.Expr]]:
    """Where tensors are read at what a search finds: what is added to it, and the size of the dimension."""
    for below in ir.topological([node]):
        if below.op != "load":
            continue
        args = iter(below.args)
        for entry, size in zip(below.attrs[1], below.attrs[0].shape, strict=True):
            arg = next(args) if ir.is_hole(entry) else None
            if arg is search:
                yield sympy.S.Zero, size
            elif arg is not None and arg.op == "add" and arg.args[0] is search and arg.args[1].op == "const":
                yield sympy.Integer(arg.args[1].attrs[0]), size


def fold_all(node: Node) -> Node:
    """`fold` of a node, and of all below it."""
    return ir.transform([node], fold)[0]


def _along(node: Node, axis: Axis) -> Node:
    """A value in which all that is reduced along items is so along one axis, as what one walk reduces has to be."""

    def rule(below: Node) -> Node:
        if below.op != "reduce" or len(below.attrs[1]) != 1 or axis in below.axes:
            return below
        (own,) = below.attrs[1]
        is_taken = any(n.op in ir.ALONG_AXES and axis in n.attrs[1] for n in ir.topological(below.args))
        return below if is_taken or own.size != axis.size else with_other_axes(below, {own: axis})

    return ir.transform([node], rule)[0]


def _axes_of(node: Node) -> set[Axis]:
    return {axis for below in ir.topological([node]) for axis in below.axes}
