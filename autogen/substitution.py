"""Values at other places: axes of the IR replaced by expressions and computed indices."""

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
