"""The iteration space of a kernel: axes merged where strides allow, and offsets over those that are left.

Neighbouring axes become one if every tensor walks them in one stride: a contiguous (N, C, H, W) is then a single
line of elements, and (N, C, H*W) with classes in the middle is three axes, not four.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sympy

from autogen import ir
from autogen.ir import Axis
from autogen.ir.names import unique
from autogen.scheduling.launches.kernel import Kernel, Level


@dataclass(frozen=True)
class Group:
    """Axes that are walked as one; `axis` stands for the merged index, from 0 to the product of the sizes."""

    axis: Axis
    parts: tuple[Axis, ...]

    @property
    def size(self) -> sympy.Expr:
        """How many values the merged index takes."""
        return self.axis.size

    @property
    def tile(self) -> str:
        """What the extent of a tile along it is called, where it has a tile dimension of its own."""
        return f"{str(self.axis).upper()}_TILE"


class Space:
    """The merged rows and columns of a kernel, and the rows that a last block keeps.

    `columns_adjacent` says whether neighbouring columns, rather than neighbouring rows, are neighbours in memory. In a
    flat kernel all groups share one line of elements. In a kernel with columns the last group of rows is tiled
    over thread blocks and the others are counted by the program number.
    """

    def __init__(self, kernel: Kernel) -> None:
        accesses = [node.attrs for node in kernel.loads()]
        accesses += [(root.buffer, root.index) for root in kernel.stores]
        if kernel.last_block and not kernel.last_block.chunked:
            accesses += [(root.buffer, root.index) for root in kernel.last_block.partials]
        self._offsets = [buffer.offset(index) for buffer, index in accesses]
        alone = {axis for expression in _index_expressions(kernel) for axis in expression.free_symbols}
        along = [node for node in _nodes(kernel) if node.op in ir.ALONG_AXES] if kernel.one_block else []
        self._along = [set(node.attrs[1]) for node in along]
        is_chunked = kernel.last_block is not None and kernel.last_block.chunked
        row_name = "row" if kernel.columns or is_chunked else "element"
        self.rows = self._merge(kernel.rows, alone, row_name)
        self.kept = self._merge(kernel.kept, alone, "outer")
        self.columns = self._merge(kernel.columns, alone, "" if kernel.one_block else "col")
        self.columns_adjacent = self._columns_adjacent(kernel)

    def _merge(self, axes: Sequence[Axis], alone: set[sympy.Basic], name: str) -> tuple[Group, ...]:
        runs: list[list[Axis]] = []
        for axis in axes:
            if runs and self._walk_as_one(runs[-1][-1], axis) and axis not in alone and runs[-1][-1] not in alone:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        groups: list[Group] = []
        for position, run in enumerate(runs):
            if not name:
                label = re.sub(r"\W+", "_", "_".join(map(str, run)))
                sizes = {str(symbol) for axis in axes for symbol in axis.size.free_symbols}
                label = unique(f"{label}_index" if label in sizes else label, {str(group.axis) for group in groups})
            elif name in ("col", "outer"):
                label = name if len(runs) == 1 else f"{name}{position}"
            elif position == len(runs) - 1:
                label = name
            else:
                label = "batch" if len(runs) == 2 else f"batch{position}"
            size = sympy.Mul(*(axis.size for axis in run))
            groups.append(Group(Axis(label, size), tuple(run)))
        return tuple(groups)

    def _columns_adjacent(self, kernel: Kernel) -> bool:
        """Whether neighbouring columns, rather than neighbouring rows, are neighbours in memory."""
        if not self.rows or not self.columns:
            return bool(self.columns)
        accesses = [node.attrs for node in kernel.loads() if kernel.level(node) == Level.ELEMENT]
        accesses += [(root.buffer, root.index) for root in kernel.stores]
        steps = [_step(self.merged(buffer.offset(index)), self.columns[-1].axis) for buffer, index in accesses]
        return any(step == 1 for step in steps)

    def _walk_as_one(self, outer: Axis, inner: Axis) -> bool:
        bound = all((outer in axes) == (inner in axes) for axes in self._along)
        return bound and all(_mergeable(offset, outer, inner) for offset in self._offsets)

    def merged(self, expression: sympy.Expr) -> sympy.Expr:
        """An offset or index over the kernel's axes, as one over the merged axes."""
        for group in (*self.rows, *self.kept, *self.columns):
            if len(group.parts) == 1:
                expression = expression.xreplace({group.parts[0]: group.axis})
            else:
                step = _step(expression, group.parts[-1])
                rest = expression.subs({part: 0 for part in group.parts})
                expression = sympy.expand(rest + step * group.axis)
        return expression

    def flat(self, expression: sympy.Expr) -> sympy.Expr | None:
        """How an offset over the merged rows steps from one element of a flat kernel to the next (so that it is
        `step * element`), or None if it does not do so evenly.
        """
        groups = self.rows
        if not groups:
            return sympy.S.Zero if expression == 0 else None
        step = _step(expression, groups[-1].axis)
        if step is None:
            return None
        stride, total = step, sympy.S.Zero
        for group in reversed(groups):
            total = total + stride * group.axis
            stride = sympy.expand(stride * group.size)
        rest = sympy.expand(expression - total)
        return step if not rest.free_symbols & {group.axis for group in groups} and rest == 0 else None


def _nodes(kernel: Kernel) -> list[ir.Node]:
    return ir.topological(kernel.computed)


def _index_expressions(kernel: Kernel) -> Iterable[sympy.Expr]:
    return [node.attrs[0] for node in _nodes(kernel) if node.op == "index"]


def _step(expression: sympy.Expr, axis: Axis) -> sympy.Expr | None:
    """The coefficient of an axis in an expression that is linear in it, else None."""
    expression = sympy.expand(expression)
    step = expression.coeff(axis, 1)
    rest = expression - step * axis
    return step if axis not in step.free_symbols and axis not in sympy.expand(rest).free_symbols else None


def _mergeable(offset: sympy.Expr, outer: Axis, inner: Axis) -> bool:
    long, short = _step(offset, outer), _step(offset, inner)
    if long is None or short is None:
        return False
    return sympy.expand(long - short * inner.size) == 0
