"""Recognise values that differ only in the names of their axes, as of a tensor and its transpose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Node
from autogen.scheduling.rewrites.folding import fold
from autogen.scheduling.rewrites.sequences import table_of_sequences

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

    def enter(self, node: Node) -> tuple[Node, dict[Axis, Place]]:
        """`find`, of a node along whole dimensions (`table_of`), which is remembered if it is new."""
        table, places = table_of(node)
        self.add(table)
        known, axes = self.find(table) or (table, {})
        return known, {own: places.get(axis, axis) for own, axis in axes.items()}

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


Place: TypeAlias = sympy.Expr | Node
"""Where along an axis a value is read; a node is an index that is computed."""


def table_of(node: Node) -> tuple[Node, dict[Axis, Place]]:
    """A value as one per place of the whole dimensions that it is read from, and the places at which it is wanted.

    `max(x[i + 2, c])` over c, for i below 2, is `max(x[n, c])` for n below 4, wanted at `i + 2`: what is known of rows
    of x is then known of all slices, chunks and shifts of them. So is what is known of sequences of all their items.
    """
    sequences = table_of_sequences(node)
    if sequences is not None:
        return sequences
    seen: dict[Axis, set[tuple[sympy.Expr, sympy.Expr]]] = {axis: set() for axis in node.axes}
    unclear: set[Axis] = set()
    computed: set[Axis] = set()
    order = ir.topological([node])
    for below in order:
        for expression, size, is_computed in _places(below):
            axes = expression.free_symbols & node.axes
            for axis in axes:
                seen[axis].add((expression, size))
                computed |= {axis} if is_computed else set()
                unclear |= {axis} if len(axes) > 1 or (expression - axis).atoms(Axis) else set()
    whole: dict[Axis, sympy.Expr] = {}
    places: dict[Axis, Place] = {}
    for axis, found in seen.items():
        if len(found) != 1 or axis in unclear:
            continue
        ((expression, size),) = found
        if expression != axis or size != axis.size:
            row = Axis(f"{axis}_whole", size)
            whole[axis] = row - (expression - axis)
            places[row] = ir.index(expression) if axis in computed else expression
    return (_whole(order, whole, set(places)), places) if whole else (node, {})


def _places(node: Node) -> Iterator[tuple[sympy.Expr, sympy.Expr, bool]]:
    """The places that a load reads along each dimension, the size of that, and whether it is a computed index."""
    if node.op == "load":
        args = iter(node.args)
        for entry, size in zip(node.attrs[1], node.attrs[0].shape, strict=True):
            arg = next(args) if ir.is_hole(entry) else None
            if arg is None or arg.op == "index":
                yield (entry, size, False) if arg is None else (arg.attrs[0], size, True)


def _whole(order: Sequence[Node], whole: dict[Axis, sympy.Expr], rows: set[Axis]) -> Node:
    """The last of some nodes along whole dimensions, `rows`, where an index is within its dimension."""

    def is_within(node: Node) -> bool:
        return node.op == "index" and node.attrs[0] in rows

    done: dict[Node, Node] = {}
    for node in order:
        args = [done[arg] for arg in node.args]
        if node.op == "index":
            done[node] = ir.index(node.attrs[0].xreplace(whole))
        elif node.op == "load":
            given = iter(args)
            entries = [next(given) if ir.is_hole(entry) else entry.xreplace(whole) for entry in node.attrs[1]]
            known = [e.attrs[0] if isinstance(e, Node) and is_within(e) else e for e in entries]
            done[node] = ir.load(node.attrs[0], known)
        elif node.op in ("lt", "ge") and is_within(args[0]):
            size, at_least = args[0].attrs[0].size, node.op == "ge"
            bound = ir.const(0, torch.int64) if at_least else ir.index(size)
            done[node] = ir.const(True, torch.bool) if args[1] is bound else ir.rebuild(node, args)
        else:
            done[node] = fold(ir.rebuild(node, args))
    return done[order[-1]]


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
