"""Results of a few values side by side, each with its own formula, such as the gradient of a box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from autogen import ir
from autogen.ir import Axis
from autogen.ir.program import Root
from autogen.ir.substitution import substitute
from autogen.scheduling.rewrites.simplify import simplify

SIZES = (4, 2)  # of what is read and written at once


def taken_apart(roots: Sequence[Root]) -> list[Root] | None:
    """Roots without the one axis along which all of them are records, if their values depend on the place along it."""
    axes = {_record_axis(root) for root in roots}
    axis = next(iter(axes))
    nodes = [root.node for root in roots]
    order = ir.topological(nodes)
    asks = any(node.op == "index" and axis in node.axes for node in order)
    if len(axes) != 1 or axis is None or not asks or any(node.op in ir.ALONG_AXES for node in order):
        return None
    found = []
    for place in range(int(axis.size)):
        values = simplify([substitute(node, {axis: sympy.Integer(place)}) for node in nodes])
        index = [tuple(entry.subs(axis, place) for entry in root.index) for root in roots]
        found += [replace(root, index=at, node=node) for root, at, node in zip(roots, index, values, strict=True)]
    return found


def _record_axis(root: Root) -> Axis | None:
    """The axis along which the values of a record lie, if memory holds these at multiples of their number."""
    *outer, last = root.index or (None,)
    *strides, step = root.buffer.strides or (0,)
    if not isinstance(last, Axis) or last.size not in SIZES or step != 1 or not outer:
        return None
    is_aligned = all((stride / last.size).is_integer for stride in strides)
    return last if is_aligned and not any(last in entry.free_symbols for entry in outer) else None
