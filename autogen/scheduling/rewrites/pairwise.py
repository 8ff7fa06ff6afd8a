"""Unroll sums over the few coordinates of pairs.

The distance of each point from each other is one value per pair, which no tensor in memory has: a kernel that reduces
distances computes them on the way. The sum over coordinates would be one reduction inside another, and its results, one
per pair, would have to be stored. So its terms are written out, for a number of coordinates that is fixed from then on.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sympy

from autogen import ir
from autogen.ir import Axis, Node
from autogen.ir.program import Root
from autogen.ir.sizes import evaluator_of
from autogen.ir.substitution import substitute
from autogen.lowering.unrolling import COMBINED, MOST
from autogen.scheduling.plan import Direction

MOST_READ = 32  # elements, of all terms together

Moved = Callable[[Node, Node], None]
Fixed = dict[sympy.Expr, int]
"""Sizes, and the one value of each that something is made for."""


def pairs_term_by_term(
    forward: Direction, backward: Direction, hints: Mapping[str, int], moved: Moved
) -> tuple[Direction, Direction, Fixed]:
    """Both directions without reductions over the few coordinates of pairs, and the sizes that this holds for."""
    fixed: Fixed = {}

    def rule(node: Node) -> Node:
        if node.op != "reduce" or not _is_of_pairs(node):
            return node
        kind, axes = node.attrs
        counts = evaluator_of(*(axis.size for axis in axes))(hints)
        reads = sum(not each.axes.isdisjoint(axes) for each in ir.loads(node.args))
        if math.prod(counts) > MOST or math.prod(counts) * reads > MOST_READ:
            return node
        places = itertools.product(*(map(sympy.Integer, range(count)) for count in counts))
        try:
            terms = [substitute(node.args[0], dict(zip(axes, place, strict=True))) for place in places]
        except NotImplementedError:  # coordinates that are computed
            return node
        fixed.update((axis.size, n) for axis, n in zip(axes, counts, strict=True))
        return functools.reduce(functools.partial(ir.apply, COMBINED[kind]), terms)

    roots = [*forward.roots, *backward.roots]
    nodes = ir.transform([root.node for root in roots], rule, moved)
    if not fixed:
        return forward, backward, fixed
    known = {size: value for size, value in fixed.items() if not size.is_Integer}
    made = _at(known, [replace(root, node=node) for root, node in zip(roots, nodes, strict=True)], moved)
    return forward.of(made[: len(forward.roots)]), backward.of(made[len(forward.roots) :]), known


def _is_of_pairs(node: Node) -> bool:
    """Whether what is reduced is read from several tensors, none of which has all axes of the result."""
    varying = [each.axes for each in ir.loads(node.args) if not each.axes.isdisjoint(node.attrs[1])]
    together = frozenset().union(*varying)
    return bool(node.axes) and node.axes <= together and not any(node.axes <= own for own in varying)


def _at(fixed: Fixed, roots: Sequence[Root], moved: Moved) -> list[Root]:
    """Some results, with numbers in the place of sizes."""
    numbers = {size: sympy.Integer(value) for size, value in fixed.items()}
    axes: dict[Axis, Axis] = {}

    def number(expression: sympy.Expr) -> sympy.Expr:
        for axis in expression.atoms(Axis):
            axes.setdefault(axis, Axis(str(axis), axis.size.xreplace(numbers)))
        return expression.xreplace({**numbers, **axes})

    @functools.cache
    def buffer(own: ir.Buffer) -> ir.Buffer:
        return replace(own, shape=tuple(map(number, own.shape)), strides=tuple(map(number, own.strides)))

    def rule(node: Node) -> Node:
        match node.op:
            case "load":
                own, entries = node.attrs
                return ir.load_at(node, node.args, [number(entry) for entry in entries], buffer(own))
            case "index":
                return ir.index(number(node.attrs[0]))
            case "reduce" | "scan":
                return ir.along(node, map(number, node.attrs[1]), node.args[0])
        return node

    nodes = ir.transform([root.node for root in roots], rule, moved)
    return [
        Root(buffer(root.buffer), tuple(map(number, root.index)), node) for root, node in zip(roots, nodes, strict=True)
    ]


def coordinates_apart(root: Root) -> list[Root]:
    """A result with a few coordinates that is reduced from pairs, as one for each: what they share is then computed
    once.
    """
    few = [axis for axis in sorted(root.index_axes, key=str) if axis.size.is_Integer and 1 < axis.size <= MOST]
    below = _axes_below(root) if few else {}
    for axis in few:
        if not any(axis in node.axes and _is_of_pairs_around(node, axis, below) for node in below):
            continue
        found = []
        for place in map(sympy.Integer, range(axis.size)):
            try:
                node = substitute(root.node, {axis: place})
            except NotImplementedError:  # it is computed
                return [root]
            found.append(replace(root, index=tuple(entry.xreplace({axis: place}) for entry in root.index), node=node))
        return found
    return [root]


_Kinds = frozenset[frozenset[Axis]]


def _axes_below(root: Root) -> dict[Node, tuple[_Kinds, _Kinds]]:
    """What axes the values have from which each node of a result is computed; the same, of its loads alone."""
    found: dict[Node, tuple[_Kinds, _Kinds]] = {}
    for node in ir.topological([root.node]):
        values = [frozenset([arg.axes]) | found[arg][0] for arg in node.args]
        loads = [found[arg][1] | ({arg.axes} if arg.op == "load" else set()) for arg in node.args]
        found[node] = frozenset().union(*values), frozenset().union(*loads)
    return found


def _is_of_pairs_around(node: Node, axis: Axis, below: Mapping[Node, tuple[_Kinds, _Kinds]]) -> bool:
    """Whether a node reduces values per pair, which no tensor has, and which are the same all along an axis."""
    if node.op != "reduce":
        return False
    pair, (values, loads) = (node.axes | set(node.attrs[1])) - {axis}, below[node]
    return any(pair <= own and axis not in own for own in values) and not any(pair <= own for own in loads)
