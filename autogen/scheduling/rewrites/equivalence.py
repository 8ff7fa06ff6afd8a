"""Values that are the same but for the names of their axes, such as a statistic of a tensor and of its transpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import sympy

from autogen import ir
from autogen.ir import Axis, Node

Limit: TypeAlias = tuple[Axis, sympy.Expr]
"""An axis, and what it is below."""


def limits_of(roots: Sequence[Node]) -> dict[Node, frozenset[Limit]]:
    """The limits under which the value of each node below `roots` is chosen: beyond them, it may be anything."""
    found: dict[Node, frozenset[Limit]] = dict.fromkeys(roots, frozenset())
    for node in reversed(ir.topological(roots)):
        for position, arg in enumerate(node.args):
            limits = found[node]
            if node.op == "where" and position == 1:
                limits |= frozenset(_limits(node.args[0]))
            if node.op in ir.ALONG_AXES:  # inside, these are other axes of the same names
                limits = frozenset(limit for limit in limits if limit[0] not in node.attrs[1])
            found[arg] = found[arg] & limits if arg in found else limits
    return found


def _limits(condition: Node) -> Iterator[Limit]:
    if condition.op == "logical_and":
        for part in condition.args:
            yield from _limits(part)
    elif condition.op == "lt" and all(arg.op == "index" for arg in condition.args):
        place, bound = (arg.attrs[0] for arg in condition.args)
        if isinstance(place, Axis) and not condition.args[1].axes:
            yield place, bound


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

    def find_within(self, node: Node, limits: Iterable[Limit]) -> tuple[Node, dict[Axis, Axis | Node]] | None:
        """`find`, where it is enough that they agree below the limits of axes; beyond, what is found is not read: axes
        with a limit are given as computed indices.
        """
        whole = {axis for each in ir.topological([node]) if each.op == "scan" for axis in each.attrs[1]}
        own = sorted((limit for limit in limits if limit[0] in node.axes - whole), key=str)  # the same in every process
        shorter = {axis: Axis(f"{axis}_within", size) for axis, size in own}
        found = self.find(_renamed(node, shorter)) if shorter else None
        if found is None:
            return None
        longer = {new: ir.index(axis) for axis, new in shorter.items()}
        return found[0], {known: longer.get(axis, axis) for known, axis in found[1].items()}

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
        elif below.op in ir.ALONG_AXES:
            done[below] = ir.along(below, [names.get(axis, axis) for axis in below.attrs[1]], args[0])
        else:
            done[below] = ir.rebuild(below, args)
    return done[node]
