"""Values that are the same but for the names of their axes, such as a statistic of a tensor and of its transpose."""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from autogen import ir
from autogen.ir import Axis, Node


class Equivalents:
    """Nodes, found again under other axes."""

    def __init__(self) -> None:
        self._known: dict[Node, tuple[Node, tuple[Axis, ...]]] = {}
        self._canonical: dict[Node, tuple[Node, tuple[Axis, ...]]] = {}

    def add(self, node: Node) -> None:
        """Remember a node, unless an equivalent one is known."""
        canonical, axes = self._canonically(node)
        self._known.setdefault(canonical, (node, axes))

    def find(self, node: Node) -> tuple[Node, dict[Axis, Axis]] | None:
        """A known node that is equivalent to `node`, and which of `node`'s axes stands for each of its own."""
        canonical, axes = self._canonically(node)
        found = self._known.get(canonical)
        return None if found is None else (found[0], dict(zip(found[1], axes, strict=True)))

    def _canonically(self, node: Node) -> tuple[Node, tuple[Axis, ...]]:
        """`node` with its axes numbered in the order in which they are met, and they in this order."""
        if node not in self._canonical:
            axes = tuple(dict.fromkeys(_met(node)))
            numbered = {axis: Axis(f"axis_{k}", axis.size) for k, axis in enumerate(axes)}
            self._canonical[node] = (_renamed(node, numbered), axes)
        return self._canonical[node]


def _met(node: Node) -> Iterator[Axis]:
    for below in ir.topological([node]):
        if below.op == "reduce":
            continue  # what it binds was met before
        for expression in below.attrs[1] if below.op == "load" else below.attrs if below.op == "index" else ():
            axes = [symbol for symbol in expression.free_symbols if isinstance(symbol, Axis)]
            yield from sorted(axes, key=lambda axis: (str(expression.coeff(axis, 1)), str(axis)))


def _renamed(node: Node, names: dict[Axis, Axis]) -> Node:
    done: dict[Node, Node] = {}
    for below in ir.topological([node]):
        args = [done[arg] for arg in below.args]
        if below.op == "index":
            done[below] = ir.index(below.attrs[0].xreplace(names))
        elif below.op == "load":
            done[below] = ir.load_at(below, args, [sympy.sympify(e).xreplace(names) for e in below.attrs[1]])
        elif below.op == "reduce":
            kind, axes = below.attrs
            done[below] = ir.reduce(kind, [names.get(axis, axis) for axis in axes], args[0])
        else:
            done[below] = ir.rebuild(below, args)
    return done[node]
