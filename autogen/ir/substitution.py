"""Substitute axes and nodes of IR expressions."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from autogen import ir
from autogen.ir import Axis, Node


def substitute(node: Node, values: Mapping[Axis, sympy.Expr | Node]) -> Node:
    """`node` with axes replaced by index expressions or by computed indices (int64 nodes)."""
    expressions = {axis: v for axis, v in values.items() if not isinstance(v, Node)}
    computed = {axis: v for axis, v in values.items() if isinstance(v, Node)}

    incoming = {a for v in values.values() for a in (v.axes if isinstance(v, Node) else v.free_symbols)}
    mentioned = incoming | values.keys()

    def visit(node: Node) -> Node:
        if not node.axes & values.keys():
            return node
        if node.op in ir.ALONG_AXES and mentioned & set(node.attrs[1]):
            raise NotImplementedError(f"an axis of the old or the new index is bound in {node!r}")
        args = [memo[arg] for arg in node.args]
        if node.op == "index":
            expression = node.attrs[0]
            if expression in computed:
                return computed[expression]
            if expression.free_symbols & computed.keys():
                raise NotImplementedError(f"computed index inside {expression}")
            return ir.index(expression.subs(expressions, simultaneous=True))
        if node.op == "load":
            buffer, entries = node.attrs
            at: list[sympy.Expr | Node] = []
            for entry in entries:
                holes = [k for k in range(len(args)) if ir.hole(k) in entry.free_symbols]
                if holes and entry == ir.hole(holes[0]):
                    at.append(args[holes[0]])
                elif entry in computed:
                    at.append(computed[entry])
                elif holes or entry.free_symbols & computed.keys():
                    raise NotImplementedError(f"computed index inside {entry}")
                else:
                    at.append(entry.subs(expressions, simultaneous=True))
            return ir.load(buffer, at)
        return ir.rebuild(node, args)

    memo: dict[Node, Node] = {}
    for below in ir.topological([node]):
        memo[below] = visit(below)
    return memo[node]


def replace_nodes(node: Node, values: Mapping[Node, Node]) -> Node:
    """`node` with nodes replaced by others, of whose axes no reduction inside then takes any for its own."""
    incoming = frozenset().union(*(value.axes for value in values.values()))
    taken = {str(axis) for below in ir.topological([node]) for axis in below.axes} | {str(axis) for axis in incoming}

    def apart(node: Node) -> Node:
        if node.op not in ir.ALONG_AXES or incoming.isdisjoint(node.attrs[1]):
            return node
        others = {axis: _another(axis, taken) for axis in node.attrs[1] if axis in incoming}
        return with_other_axes(node, others)

    (found,) = ir.transform([node], apart)
    own = frozenset().union(*(each.axes for each in values))
    done = dict(values)
    for below in ir.topological([found], values):
        is_another = below.op in ir.ALONG_AXES and not own.isdisjoint(below.attrs[1])  # of the same name, inside of it
        done[below] = below if is_another else ir.rebuild(below, [done[arg] for arg in below.args])
    return done[found]


def with_other_axes(node: Node, others: Mapping[Axis, Axis]) -> Node:
    """A reduction or running sum whose own axes are others, of which its body has none."""
    body = substitute(node.args[0], others)
    return ir.along(node, [others.get(axis, axis) for axis in node.attrs[1]], body)


def _another(axis: Axis, taken: set[str]) -> Axis:
    """An axis of the same size whose name is not taken, and then is."""
    copy = 2
    while f"{axis}_{copy}" in taken:
        copy += 1
    taken.add(f"{axis}_{copy}")
    return Axis(f"{axis}_{copy}", axis.size)
