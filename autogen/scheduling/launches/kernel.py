"""One launch: its results, the axes that each program walks, and when each value is known.

A kernel has two groups of axes. *Columns* are the axes that some result reduces while it keeps others (classes), or,
where nothing is reduced so, the axes along which some tensor is broadcast; *rows* are all the rest. Without columns
the kernel is *flat*: one line of elements. A value's level follows from the axes it mentions, and a reduction over
everything (the loss itself) is finished inside the launch by the last block to arrive.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Buffer, Node
from autogen.ir.program import Root
from autogen.ir.sizes import Evaluator, evaluator_of, hint, next_power_of_2
from autogen.scheduling.launches.moments import apart
from autogen.scheduling.launches.running import Walk, walks_of
from autogen.scheduling.launches.windows import Window, window_of

MAX_IN_ONE_PROGRAM = 16384  # elements
MAX_RANK = 6
ROWS_ADJACENT = 128  # rows in a tile, where neighbouring rows are neighbours in memory
PAIRED = 32  # rows, and columns, in a tile of pairs: a warp has whole rows of it, of which each thread has several
MANY_PROGRAMS = 128  # there should be, where each of them would have to walk a
LONG_WALK = 32768  # elements
MAX_WALKED_AGAIN = 2**22  # pairs of a row and a column that have no element in common: another launch costs less

# Sizes that the launch decides: how many programs there are, and how many of them share the rows of one result.
PROGRAMS = sympy.Symbol("programs", integer=True, positive=True)
CHUNKS = sympy.Symbol("chunks", integer=True, positive=True)


class Level(Enum):
    """How many values a node has in one kernel, and when they are known."""

    SCALAR = "one for the launch"
    ROW = "one per row"
    COLUMN = "one per column"
    ELEMENT = "one per row and column"
    FINAL = "one, known to the last block only"


@dataclass(frozen=True)
class Granted:
    """A number in memory, and the value that it has been taken to have."""

    buffer: Buffer
    value: sympy.Expr


@dataclass(frozen=True)
class Kernel:
    """One launch.

    `rows` and `columns` are axes, outermost in memory first; `whole_rows` says whether a program needs all columns of
    its rows. `stores` are results per element or row, `finals` the scalars that the last block stores from `totals`,
    the reductions over everything. `cut` says why the kernel before it could not do its work as well. `one_block` means
    that a single program computes everything, with a tile dimension per axis: all axes are columns, all roots stores.

    Where the last block has more to do (`last_block`), it computes `finals` of any shape, and `totals` may be one per
    column and per `kept` row; these rows are counted by the program number and are not among `rows`.

    Where there are `parts`, each program does the work of one of them; the kernel has all that they store and total,
    and no axes of its own.

    Where all that was `granted` to an earlier kernel is so, that one has stored the same already.

    What is read per element need not be read but where its one of the `conditions` per row holds.

    Where programs have so many rows `together` that few long ones would leave a device idle, the kernel is not made for
    these, as there is another that splits them; 0 where there is none.

    Of columns that are a part of a row, `ends` are the place in the row, and what it has to be below.
    """

    name: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    whole_rows: bool
    stores: tuple[Root, ...]
    finals: tuple[Root, ...]
    totals: tuple[Node, ...]
    cut: str = ""
    one_block: bool = False
    kept: tuple[Axis, ...] = ()
    last_block: LastBlock | None = None
    granted: tuple[Granted, ...] = ()
    parts: tuple[Kernel, ...] = ()
    conditions: tuple[tuple[Node, Node], ...] = ()
    together: int = 0
    ends: tuple[sympy.Expr, sympy.Expr] | None = None

    @property
    def computed(self) -> tuple[Node, ...]:
        """What all programs compute."""
        return (*self.totals, *(root.node for root in (self.stores if self.last_block else self.roots)))

    @property
    def roots(self) -> tuple[Root, ...]:
        """Everything the kernel stores."""
        return self.stores + self.finals

    def level(self, node: Node) -> Level:
        """The level of a node, by the axes it mentions; what is computed from whole rows is per row at least."""
        if node.axes:
            return self.level_of_axes(node.axes)
        if self.is_final(node):
            return Level.FINAL
        return Level.ROW if node.reduces else Level.SCALAR

    def level_of_axes(self, axes: Iterable[Axis]) -> Level:
        """The level of a value that mentions the given axes."""
        axes = set(axes) - set(self.kept)
        in_columns, in_rows = bool(axes & set(self.columns)), bool(axes & set(self.rows))
        if in_columns:
            return Level.ELEMENT if in_rows else Level.COLUMN
        return Level.ROW if in_rows else Level.SCALAR

    @functools.cached_property
    def in_one_program(self) -> tuple[Evaluator, ...]:
        """The sizes of what one program holds on chip because nothing else can be done."""
        if self.one_block:
            # What threads exchange to run along a tile is as large as it: 32 KiB, which every device has.
            scanned = [node.dtype.itemsize // 2 for node in ir.topological(self.computed) if node.op == "scan"]
            share = sympy.Integer(max(scanned, default=1))
            return tuple(
                evaluator_of(*(axis.size for axis in sorted(axes, key=str)), share) for axes in spaces(self.roots)
            )
        of = [*self.parts, *([self.last_block.kernel] if self.last_block else [])]
        within = tuple(sizes for kernel in of for sizes in kernel.in_one_program)
        if self.last_block and self.last_block.chunked:  # which adds up all chunks of each result before it goes on
            shares = Counter(root.node.axes for root in self.last_block.partials)
            within += tuple(
                evaluator_of(*(axis.size for axis in sorted(axes, key=str)), sympy.Integer(-(-count // 2)))
                for axes, count in shares.items()
            )
        if self.whole_rows and (not self.rows or self.holds_rows):
            return (*within, evaluator_of(*(axis.size for axis in self.columns)))
        return within

    @functools.cached_property
    def walks_again(self) -> bool:
        """Whether every program walks all columns, though no value is one per row and column: rows and columns are of
        tensors, or of parts of one, that have no elements in common.
        """
        everything = {*self.rows, *self.columns}
        walked = any(everything <= node.axes for node in ir.topological(self.computed))
        return self.whole_rows and bool(self.rows) and not walked

    @functools.cached_property
    def is_of_pairs(self) -> bool:
        """Whether there are values per row and column, though no tensor has an element for each: columns are read again
        for every few rows.
        """
        everything = {*self.rows, *self.columns}
        in_memory = [*(load.axes for load in self.loads()), *(root.index_axes for root in self.stores)]
        is_apart = not any(everything <= axes for axes in in_memory)
        is_of_both = is_apart and bool(self.rows and self.columns)
        return is_of_both and not (self.walks_again or self.one_block or self.is_of_sequences)

    @functools.cached_property
    def window(self) -> Window | None:
        """The columns that a row asks for, if these are a part of them and the row needs no others."""
        if not self.whole_rows or self.one_block or self.holds_rows or self.ends:
            return None
        if self.last_block and self.last_block.chunked:
            return None
        if any(self.level_of_axes(root.index_axes) in (Level.ELEMENT, Level.COLUMN) for root in self.stores):
            return None
        return window_of(self.row_reductions(), self.rows, self.columns)

    @property
    def is_of_sequences(self) -> bool:
        """Whether columns are items of sequences, one of which each row is."""
        return self.window is not None and self.window.start is not None

    @functools.cached_property
    def walked_again(self) -> tuple[tuple[Evaluator, Evaluator], ...]:
        """The sizes of columns that every program reads again, if it does so once for all its rows, and the sizes of
        these and the rows.
        """
        of = [*self.parts, *([self.last_block.kernel] if self.last_block else [])]
        within = tuple(sizes for kernel in of for sizes in kernel.walked_again)
        if not self.walks_again:
            return within
        rows, columns = ([axis.size for axis in axes] for axes in (self.rows, self.columns))
        per_row = any(node.args[0].axes & {*self.rows} for node in self.row_reductions())
        both = evaluator_of(*rows, *columns)
        return (*within, (both if per_row else evaluator_of(*columns), both))

    @property
    def keeps_columns(self) -> bool:
        """Whether some total has one value per column."""
        return any(node.axes & set(self.columns) for node in self.totals)

    @functools.cached_property
    def holds_rows(self) -> bool:
        """Whether a program has all columns of a row at once: some total has one value per column, or a sum runs along
        them.
        """
        return self.keeps_columns or any(node.op == "scan" for node in ir.topological(self.computed))

    @property
    def is_limited(self) -> bool:
        """Whether there are sizes that the kernel is not made for."""
        return bool(self.together or self.in_one_program or self.walked_again)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the kernel is made for the given sizes: what one program has to hold must not be much, nor what each
        of them has to walk again.
        """
        if self.together and self.leaves_a_device_idle(sizes, self.together):
            return False
        return all(_fits(sizes_of(sizes), MAX_IN_ONE_PROGRAM) for sizes_of in self.in_one_program) and all(
            _fits(columns_of(sizes), ROWS_ADJACENT) or _fits(both_of(sizes), MAX_WALKED_AGAIN)
            for columns_of, both_of in self.walked_again
        )

    def leaves_a_device_idle(self, sizes: Mapping[str, int], together: int) -> bool:
        """Whether there are so few rows, `together` in a program, and these so long, that it takes a long time to walk
        them.
        """
        if not self.whole_rows or not self.rows or self.is_of_sequences:
            return False
        rows, columns = (math.prod(sizes_of(sizes)) for sizes_of in self._rows_and_columns)
        # In this order, a graph whose rows are short has no guard on how many there are.
        return columns * min(rows, together) > LONG_WALK and rows < together * MANY_PROGRAMS

    @functools.cached_property
    def _rows_and_columns(self) -> tuple[Evaluator, Evaluator]:
        """The sizes of the rows, and of the columns."""
        rows, columns = (evaluator_of(*(axis.size for axis in axes)) for axes in (self.rows, self.columns))
        return rows, columns

    def largest_tile(self, sizes: Mapping[str, int]) -> int:
        """How many elements the largest tile has of what one program holds, with what threads exchange in scans."""
        tiles = (map(next_power_of_2, sizes_of(sizes)) for sizes_of in self.in_one_program)
        return max(map(math.prod, tiles), default=1)

    def in_one_block(self, sizes: Mapping[str, int]) -> int:
        """How many elements one program computes by itself, while the others have nothing to do."""
        if self.last_block:
            return self.last_block.kernel.in_one_block(sizes)
        return self.one_block * sum(math.prod(map(hint, sizes_of(sizes))) for sizes_of in self.in_one_program)

    def is_final(self, node: Node) -> bool:
        """Whether a node needs a reduction over all rows."""
        totals = set(self.totals)
        return bool(totals) and any(below in totals for below in ir.topological([node]))

    def on(self, change: Callable[[list[Node]], Sequence[Node]]) -> Kernel:
        """The same kernel of other expressions: `change` is given all that it computes."""
        nodes = list(dict.fromkeys([*self.totals, *(root.node for root in self.roots)]))
        return self._of(dict(zip(nodes, change(nodes), strict=True)))

    def _of(self, new: Mapping[Node, Node]) -> Kernel:
        def of(roots: Sequence[Root]) -> tuple[Root, ...]:
            return tuple(replace(root, node=new[root.node]) for root in roots)

        last = self.last_block and replace(self.last_block, partials=of(self.last_block.partials))
        return replace(
            self,
            totals=tuple(dict.fromkeys(new[node] for node in self.totals)),
            stores=of(self.stores),
            finals=of(self.finals),
            last_block=last,
            parts=tuple(part._of(new) for part in self.parts),
        )

    @functools.cached_property
    def passes(self) -> tuple[Walk, ...]:
        """How often a program walks rows that it cannot have at once, to reduce them, and what waits for what."""
        return tuple(walks_of(self.in_steps().row_reductions()))

    def in_steps(self, moved: Callable[[Node, Node], None] = lambda old, new: None) -> Kernel:
        """The kernel for rows that are walked in steps: with sums that do not wait for other reductions of the row."""
        done = apart(self.row_reductions(), moved)
        return self.on(lambda nodes: ir.replace(nodes, done, moved)) if done else self

    def loads(self) -> list[Node]:
        """The distinct loads, in the order of their first use."""
        return ir.loads(self.computed)

    def along_rows(self) -> list[Node]:
        """The reductions over columns, and the sums that run along them, innermost first."""
        rows = {*self.rows, *self.kept}
        order = ir.topological([*self.totals, *(root.node for root in self.stores)])
        return [node for node in order if node.op in ir.ALONG_AXES and rows.isdisjoint(node.attrs[1])]

    def row_reductions(self) -> list[Node]:
        """The reductions over columns, innermost first."""
        return [node for node in self.along_rows() if node.op == "reduce"]


@dataclass(frozen=True)
class LastBlock:
    """What the last block computes from the `partials` that all programs have stored, one for each of their totals.

    They have a line for each chunk of a result's rows if they are `chunked`, and else are whole.
    """

    kernel: Kernel
    partials: tuple[Root, ...]
    chunked: bool


def is_small(axes: Iterable[Axis], hints: Mapping[str, int]) -> bool:
    """Whether one program may hold a value per place of some axes."""
    return _fits(evaluator_of(*(axis.size for axis in axes))(hints), MAX_IN_ONE_PROGRAM)


def _fits(sizes: Sequence[int], limit: int) -> bool:
    """Whether the sizes, rounded up to powers of two, have a product within the limit."""
    powers = [next_power_of_2(hint(size)) for size in sizes]
    room = limit // math.prod(powers)
    for size, power in zip(sizes, powers, strict=True):
        # As a guard of a graph, one comparison that holds for as many other sizes as possible.
        if isinstance(size, torch.SymInt) and room:
            if not size <= power * room:
                return False
            room = 1
    return room > 0


def spaces(roots: Sequence[Root]) -> set[frozenset[Axis]]:
    """The axes of every value that is computed, also inside reductions, or stored; the largest sets only."""
    order = ir.topological(root.node for root in roots)
    reduced = [node.args[0].axes | set(node.attrs[1]) for node in order if node.op == "reduce"]
    found = {*reduced, *(node.axes for node in order), *(root.index_axes for root in roots)}
    return {axes for axes in found if not any(axes < other for other in found)}
