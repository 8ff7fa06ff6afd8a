"""Read and write rows that begin anywhere in memory 16 bytes at a time.

Rows of an odd number of columns begin at any element. A tile's lanes are then counted from the multiple of 16 bytes
that its row begins in, and each access is of a *group*, 16 bytes: what a row has some of is read, beyond its ends, too;
what it has all of is stored at once, and the elements at its ends by themselves. As rows follow each other in memory,
what is read beyond a row belongs to the next one; only the last tile of all is read to the element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from autogen import ir
from autogen.ir.sizes import next_power_of_2
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.tiling.space import Group, Space

ACCESS = 16  # bytes, the most that a thread reads or writes at once
OVERLAPPING = "overlapping"  # the mask of the groups that a row has some of, in templates and kernels
INSIDE = "inside"  # of those that it has all of
WITHIN = "row_mask[:, None]"  # of a tile that has no ends of rows
IN_GROUPS = (OVERLAPPING, INSIDE, WITHIN)
LEAST_GROUPS = 4  # in a row: of fewer, most would be its ends


@dataclass(frozen=True)
class Skew:
    """What tensors have in common whose rows begin anywhere.

    Attributes:
        start: the offset of a row's first column, over the merged axes.
        group: elements in 16 bytes, of the narrowest of the tensors.
        one_row: whether a tile may have one row only, as what is per column is added up, and columns are elsewhere in
            each row's lanes.
        reads_columns: whether something is read per column, for which a tile of more rows has an access per element.
    """

    start: sympy.Expr
    group: int
    one_row: bool
    reads_columns: bool

    def pays(self, columns: int, rows: int) -> bool:
        """Whether tiles of so many rows of so many columns may be read in groups, and are not in any case."""
        is_long = columns >= LEAST_GROUPS * self.group
        return columns % self.group != 0 and is_long and (rows == 1 or not self.one_row)

    def fits(self, columns: int) -> bool:
        """Whether a tile for so many columns has the lanes for them wherever their row begins."""
        return self.lanes(columns) <= next_power_of_2(columns)

    def lanes(self, columns: int) -> int:
        """The lanes that so many columns need, wherever their row begins."""
        return columns + self.group - 1


def skew_of(kernel: Kernel, space: Space) -> Skew | None:
    """What the rows of most bytes have in common; None if there are no such rows."""
    line = _line(space)
    if line is None or kernel.ends is not None:
        return None
    found: Counter[sympy.Expr] = Counter()
    narrowest: dict[sympy.Expr, int] = {}
    loads = [node for node in kernel.loads() if not node.args]
    for buffer, index in [*(node.attrs for node in loads), *((root.buffer, root.index) for root in kernel.stores)]:
        start = start_of_row(buffer.offset(index), space)
        if start is not None and _follow_each_other(start, *line):
            found[start] += buffer.dtype.itemsize
            narrowest[start] = min(narrowest.get(start, ACCESS), buffer.dtype.itemsize)
    if not found:
        return None
    start, _ = max(found.items(), key=lambda each: (each[1], str(each[0])))
    per_column = [node for node in ir.topological(kernel.computed) if kernel.level(node) == Level.COLUMN]
    reduced = [node.args[0] for node in ir.topological(kernel.computed) if node.op == "reduce"]
    one_row = any(node in reduced for node in per_column)
    reads_columns = any(node.op == "load" for node in per_column)
    return Skew(start, ACCESS // narrowest[start], one_row, reads_columns)


def start_of_row(offset: sympy.Expr, space: Space) -> sympy.Expr | None:
    """The offset of a row's first column, if rows are the kernel's and neighbouring columns are neighbours in memory;
    over merged axes.
    """
    line = _line(space)
    if line is None:
        return None
    column, groups = line
    start = sympy.expand(space.merged(offset) - column.axis)
    is_of_rows = {group.axis for group in groups} <= start.free_symbols
    return start if is_of_rows and column.axis not in start.free_symbols else None


def _line(space: Space) -> tuple[Group, tuple[Group, ...]] | None:
    """What is walked along memory in each row, and what says which row it is. In a kernel without columns, all that
    belongs to one result is its row.
    """
    if len(space.columns) == 1 and space.rows:
        return space.columns[0], (*space.rows, *space.kept)
    if not space.columns and len(space.rows) == 1 and space.kept:
        return space.rows[0], space.kept
    return None


def _follow_each_other(start: sympy.Expr, column: Group, groups: Iterable[Group]) -> bool:
    """Whether rows begin at different multiples of their length, so that what follows a row is another or nothing."""
    rest = start
    for group in groups:
        step = rest.coeff(group.axis, 1)
        times = sympy.S.One if step == column.size else sympy.cancel(step / column.size)
        if not (times.is_integer and times.is_positive):
            return False
        rest = sympy.expand(rest - step * group.axis)
    return bool(rest == 0)
