"""Walk only the columns that a row needs: the items of its sequence, or those that are no padding.

Where all that a kernel reduces along its columns is `where(start <= column < end, ..., identity)`, a program walks from
the least start of its rows to the greatest end. What is outside counts for nothing, and is not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Node, apply


@dataclass(frozen=True)
class Window:
    """The first column that a row asks for, and the one behind the last; None for the first and last of all."""

    start: Node | None
    end: Node | None


def window_of(reductions: Sequence[Node], rows: Sequence[Axis], columns: Sequence[Axis]) -> Window | None:
    """The columns beyond which no reduction along them has anything; None if that may be all."""
    if len(columns) != 1 or not rows or not reductions:
        return None
    starts, ends = (frozenset.intersection(*each) for each in zip(*_bounds(reductions, columns[0]), strict=True))
    # The same in every process, whatever the order of a set.
    first, last = (min(each, key=lambda node: ir.format_nodes([node]), default=None) for each in (starts, ends))
    return Window(first, last) if first or last else None


def _bounds(reductions: Sequence[Node], column: Axis) -> Iterator[tuple[frozenset[Node], frozenset[Node]]]:
    """Of each reduction the bounds of what it has along a column."""
    for node in reductions:
        found: dict[bool, set[Node]] = {False: set(), True: set()}
        for condition in _asked(node.args[0], ir.identity(node.attrs[0], node.dtype)):
            for is_end, bound in _bound(condition, column):
                found[is_end].add(bound)
        yield frozenset(found[False]), frozenset(found[True])


def _asked(body: Node, nothing: float | int) -> frozenset[Node]:
    """The conditions without each of which a value is what counts for nothing."""
    match body.op:
        case "cast" if body.args[0].dtype == torch.bool:
            return frozenset(_parts(body.args[0])) if nothing == 0 else frozenset()
        case "cast" | "neg" if nothing == 0 or body.op == "cast":
            return _asked(body.args[0], nothing)
        case "where" if body.args[2].op == "const" and body.args[2].attrs[0] == nothing:
            return frozenset(_parts(body.args[0])) | _asked(body.args[1], nothing)
        case "mul" | "add" | "sub" if nothing == 0:  # of nothing and nothing
            return _asked(body.args[0], nothing) & _asked(body.args[1], nothing)
    return frozenset()


def _parts(condition: Node) -> Iterator[Node]:
    if condition.op == "logical_and":
        for part in condition.args:
            yield from _parts(part)
    else:
        yield condition


_TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _bound(condition: Node, column: Axis) -> Iterator[tuple[bool, Node]]:
    """What a condition says of a column: whether that is where it ends, and the first one of the row, or behind it."""
    if condition.op not in _TURNED:
        return
    for op, (place, bound) in ((condition.op, condition.args), (_TURNED[condition.op], condition.args[::-1])):
        if place.op != "index" or column in bound.axes or any(n.op in ir.ALONG_AXES for n in ir.topological([bound])):
            continue
        before = sympy.expand(place.attrs[0] - column)
        if bound.axes and not before.has(column) and not before.atoms(Axis):
            further = before - (op in ("gt", "le"))
            yield op in ("lt", "le"), bound if further == 0 else apply("sub", bound, ir.index(further))
