"""The looped row shell: rows that do not fit on chip are walked in steps of columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from autogen import ir
from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.load import Load
from autogen.emission.rows import IS_EDGE, REACHES_END, Rows
from autogen.emission.shell import identity
from autogen.ir import Node
from autogen.scheduling.launches.kernel import Level
from autogen.scheduling.launches.running import Running, Walk, is_finite_form, largest_of, walks_of
from autogen.scheduling.launches.windows import Window
from autogen.tiling.skew import ACCESS


class Looped(Rows):
    """Prints a row kernel as a few loops over the columns."""

    template = "rows_looped.jinja"
    is_edge = IS_EDGE

    @property
    def is_last(self) -> str:
        return f"({super().is_last}) & ({REACHES_END})"

    def summary(self) -> str:
        rows = "long rows" if self.space.rows else "one long row"
        return f"{rows}, in steps of COLS columns."

    def fill(self) -> dict[str, Any]:
        found = walks_of(self.kernel.row_reductions())
        element_roots = [r for r in self.kernel.stores if self.store_level(r) in (Level.ELEMENT, Level.COLUMN)]
        self._find_evictions(found, [root.node for root in element_roots])
        self.passes = dict.fromkeys(self.kernel.loads(), 0)
        self._extremes: dict[Node, _Extreme] = {}  # those of the walk that is being printed, which others follow
        self._shifts: dict[Node, _Shift] = {}
        body = self.scalars()
        self.preload(body, Level.ROW)
        start, end = self._window(body)
        walks = []
        for each in found:
            inside = self._walk(each, body)
            walks.append(self._cut(body, inside))
            self._close(each, body)
            self._evictions.pop(0)
        if element_roots:
            targets = [root.node for root in element_roots]
            self._prepare(targets, body)
            inside = self.body(body)
            self._read(targets, inside)
            stores = self.store_elements(inside)
            inside.lines += stores
            walks.append(self._cut(body, inside))
        for load in self.kernel.loads():
            if self.kernel.level(load) in (Level.SCALAR, Level.ROW):
                self.passes[load] = 1
        totals = self.totals(body)
        body.lines += self.store_rows(body)
        return {
            **self.head(),
            "start": start,
            "end_of_walk": end,
            "passes": walks,
            "body": "\n".join(body.lines),
            **self.last_block(totals, body),
        }

    @property
    def _asked_for(self) -> Window | None:
        """The columns that rows ask for; where a tile's rows begin anywhere, its lanes are no columns to end at."""
        return None if self.skew else self.kernel.window

    def head(self) -> dict[str, Any]:
        window = self._asked_for
        if window is None:
            return super().head()
        inside = [*(["(col >= window_start)"] if window.start else []), *(["(col < window_end)"] if window.end else [])]
        return {**super().head(), "in_window": " & ".join(inside)}

    def _window(self, body: Body) -> tuple[str, str]:
        """Where walks start and end: at the columns that some row asks for."""
        window = self._asked_for
        if window is None:
            return "0", f"n_cols + {self.skew.group - 1}" if self.skew else "n_cols"
        dtype = "tl.int64" if self.is_wide else "tl.int32"
        start = end = None
        if window.start is not None:
            first = f"tl.min(tl.where(row_mask, {body.state(window.start)}, n_cols), 0)"
            body.lines.append(f"window_start = tl.maximum({first}, 0).to({dtype})")
            start = "window_start"
        if window.end is not None:
            last = f"tl.max(tl.where(row_mask, {body.state(window.end)}, 0), 0)"
            body.lines.append(f"window_end = tl.minimum({last}, n_cols).to({dtype})")
            end = "window_end"
        return f"{start} // COLS * COLS" if start else "0", end or "n_cols"

    def _find_evictions(self, walks: Sequence[Walk], stored: Sequence[Node]) -> None:
        """What caches are told of elements that several walks read: to keep them, until the last."""
        done: set[Node] = set()
        read = []
        for targets in (*([node.args[0] for node in each.reductions] for each in walks), stored):
            found = ir.topological(targets, done)
            read.append([n for n in found if n.op == "load" and not n.args and self.kernel.level(n) == Level.ELEMENT])
            done |= {node for each in walks[: len(read)] for node in each.reductions}
        times, seen = Counter(load for each in read for load in each), Counter[Node]()
        self._evictions: list[dict[Node, str]] = []
        for each in read:
            seen.update(each)
            self._evictions.append(
                {load: "evict_last" if seen[load] < times[load] else "evict_first" for load in each if times[load] > 1}
            )

    def load(self, node: Node, computed: Sequence[str] = ()) -> Load:
        return replace(super().load(node, computed), eviction=self._evictions[0].get(node, ""))

    def _cut(self, body: Body, inside: Body) -> dict[str, str]:
        """A walk for the template: the statements since the last one, then those of the loop."""
        before, body.lines = body.lines, []
        return {"before": "\n".join(before), "body": "\n".join(inside.lines)}

    def _prepare(self, targets: list[Node], body: Body, running: frozenset[Node] = frozenset()) -> None:
        """Compute before a loop what its elements need per row, except what depends on `running` reductions."""
        depends: dict[Node, bool] = {}
        for node in ir.topological(targets):
            depends[node] = node in running or any(depends[arg] for arg in node.args)
            per_element = self.kernel.level(node) in (Level.ELEMENT, Level.COLUMN)
            for arg in node.args if per_element else ():
                plain = arg.op in ("const", "index") or (arg.op == "cast" and arg.args[0].op in ("const", "index"))
                if self.kernel.level(arg) in (Level.SCALAR, Level.ROW) and not plain and not depends[arg]:
                    body.state(arg)
        for target in targets:
            plain = target.op in ("const", "index")
            if self.kernel.level(target) in (Level.SCALAR, Level.ROW) and not plain and not depends[target]:
                body.state(target)

    def _read(self, targets: list[Node], inside: Body) -> None:
        """Count what a walk reads, and read what is read in groups."""
        levels = (Level.ELEMENT, Level.COLUMN)
        loads = [n for n in ir.topological(targets) if n.op == "load" and self.kernel.level(n) in levels]
        for node in loads:
            self.passes[node] += 1
        self.read_groups(loads, inside)

    def _walk(self, each: Walk, body: Body) -> Body:
        """Print a walk: start values into `body`, the loop's statements into the returned body."""
        targets = [node.args[0] for node in each.reductions]
        self._prepare(targets, body, frozenset(each.reductions))
        inside = self.body(body)
        self._read(targets, inside)
        self._columns = ""  # the number of columns that a group had before this step
        self._counts: list[str] = []
        leaders = dict.fromkeys(map(largest_of, each.shifts))
        leaders |= dict.fromkeys(form.restarts for form in each.running.values() if form.restarts)
        in_groups = [*leaders, *each.running, *filter(_is_moment, each.reductions)]
        self._group = min(map(self._adjacent, [*leaders, *filter(_is_moment, each.reductions)]), default=1)
        if leaders:
            body.lines += [
                "# A thread adds up what it meets of a row by itself, and threads are combined in the end, so that",
                "# none waits for another on the way.",
            ]
        self._names = {
            node: self._start(node, body, self._group if node in in_groups else 1) for node in each.reductions
        }
        for node in leaders:
            self._run_extreme(node, inside)
        for node, form in each.running.items():
            if form.restarts is not None:
                self._restart(node, form.restarts, inside)
        moved = {shift for form in each.running.values() for shift, _ in form.moves}
        for shift in each.shifts:
            self._run_shift(shift, shift in moved, body, inside)
        following = [node for node, form in each.running.items() if form.shifts]
        # Those of the highest powers first, as they take what the others have been.
        for node in sorted(following, key=lambda node: -len(each.running[node].lower)):
            chunk = self._chunk(node, inside, self._group)
            before = self._followed(node, each.running[node], body, inside)
            inside.lines.append(f"{self._names[node]} = {before} + {chunk}")
        for node in each.reductions:
            if node not in leaders and node not in following and each.running.get(node, Running()).restarts is None:
                chunk = self._chunk(node, inside, self._group if node in in_groups else 1)
                inside.lines.append(self.accumulate(node.attrs[0], self._names[node], chunk))
        inside.lines += self._counts
        return inside

    def _adjacent(self, node: Node) -> int:
        """How many neighbouring columns a thread reads at once, which share what is reduced on the way."""
        read = [n.attrs[0].dtype.itemsize for n in ir.topological(node.args) if n.op == "load"]
        return ACCESS // max(read, default=ACCESS) if self.space.columns_adjacent else 1

    def _start(self, node: Node, body: Body, group: int) -> str:
        """An accumulator for a reduction, one for each group of columns."""
        name = self.style.name(node)
        start = identity(node.attrs[0], node.dtype)
        body.lines.append(f"{name} = {self._full(self.kernel.level(node.args[0]), start, node.dtype, group)}")
        return name

    def _full(self, level: Level, start: str, dtype: torch.dtype, group: int) -> str:
        """A tile of values of a level, one for each group of columns."""
        shape = {Level.ROW: "ROWS", Level.SCALAR: ""}.get(level, f"COLS // {group}" if group > 1 else "COLS")
        if level == Level.ELEMENT or (level == Level.COLUMN and self.skew):
            shape = f"ROWS, {shape}"
        return f"tl.full([{shape}], {start}, {TRITON_DTYPES[dtype]})"

    def _chunk(self, node: Node, inside: Body, group: int) -> str:
        """What a step adds to a reduction, for each group of columns."""
        kind, (reduced,) = node.attrs[0], node.args
        value = self.masked(reduced, inside, identity(kind, node.dtype))
        return self._of_groups(kind, value, self.kernel.level(reduced), group)

    def _of_groups(self, kind: str, value: str, level: Level, group: int) -> str:
        """Values of a level, reduced over the columns of each group."""
        if group == 1:
            return value
        has_rows = level == Level.ELEMENT or self.skew is not None
        return self.along(kind, f"{self.style.helper('in_groups')}({value}, {group})", 1 + has_rows)

    def _per_column(self, name: str) -> str:
        """A value per group of columns, for each of these."""
        return name if self._group == 1 else f"{self.style.helper('per_column')}({name}, {self._group})"

    def _run_extreme(self, node: Node, inside: Body) -> None:
        """The running maximum, or minimum, of a row."""
        name = self._names[node]
        run = self._extremes[node] = _Extreme(name, self.names.new(f"previous_{name}"))
        chunk = self._chunk(node, inside, self._group)
        inside.lines += [f"{run.previous} = {name}", f"{name} = {self.combine(node.attrs[0], name, chunk)}"]

    def _restart(self, node: Node, extreme: Node, inside: Body) -> None:
        """What is reduced where elements equal a running extreme: from anew, as soon as there is another."""
        run, name = self._extremes[extreme], self._names[node]
        inside.assign(extreme, self._per_column(run.name), f"{run.name}_here")
        chunk = self._chunk(node, inside, self._group)
        inside.lines += [
            f"{name} = {self._unless_restarted(node, run.previous, run.name)}",
            self.accumulate(node.attrs[0], name, chunk),
        ]

    def _unless_restarted(self, node: Node, previous: str, extreme: str) -> str:
        """What was reduced for an extreme, unless another has taken its place, which of nan none does."""
        start = identity(node.attrs[0], node.dtype)
        return f"tl.where(({previous} == {extreme}) | ({previous} != {previous}), {self._names[node]}, {start})"

    def _run_shift(self, shift: Node, is_moved: bool, body: Body, inside: Body) -> None:
        """What is subtracted in a step, and what that means for sums that follow it."""
        run = self._extremes[largest_of(shift)]
        name = self.names.new(f"{run.name}_shift")
        made = _Shift(name, self.names.new(f"previous_{name}"), self.names.new("rescale"), self._exponential(shift))
        self._shifts[shift] = made
        if is_moved:
            body.lines.append(f"{name} = tl.zeros_like({run.name})")
            inside.lines.append(f"{made.previous} = {name}")
        if is_finite_form(shift):
            inside.lines.append(f"{name} = {_finite(run.name)}")
        else:
            inside.lines += [
                "# Finite even before the first finite column, so that no inf - inf appears.",
                f'{name} = tl.where({run.name} == float("-inf"), 0.0, {run.name})',
            ]
        if made.exponential:
            inside.lines.append(f"{made.rescale} = {made.exponential}({_before(shift, run.previous)} - {name})")
        inside.assign(shift, self._per_column(name), f"{name}_here" if is_finite_form(shift) else f"{run.name}_here")

    def _exponential(self, shift: Node) -> str:
        """The function by which sums follow a shift: as exact as the exponentials that they add up, if they do."""
        exponentials = [n for n in ir.topological(self.kernel.row_reductions()) if n.op in ir.EXPONENTIALS]
        followed = {n.op for n in exponentials if n.args[0].op == "sub" and n.args[0].args[1] is shift}
        if not followed:
            return ""
        exact = "exp" if is_finite_form(shift) else "exp_nonpositive"
        return self.style.helper(followed.pop() if len(followed) == 1 and "exp" not in followed else exact)

    def expansion(self, node: Node, into: Node) -> str:
        # What runs along a row is one for each column.
        if node in self._shifts or node in self._extremes:
            return self._beside(node, self.kernel.level(into))
        return super().expansion(node, into)

    def _beside(self, shift: Node, level: Level) -> str:
        """The subscript of a value per group, or column, of what a maximum is of, beside values of a level."""
        return self.broadcast_to(self.kernel.level(largest_of(shift).args[0]), level)

    def _followed(self, node: Node, form: Running, body: Body, inside: Body) -> str:
        """What a sum is, once its shifts have moved to those of this step."""
        level = self.kernel.level(node.args[0])
        moves = [
            (f"({self._shifts[shift].previous} - {self._shifts[shift].name}){self._beside(shift, level)}", by)
            for shift, by in form.moves
        ]
        lower = [
            self._columns_before(level, body, inside) if each is None else self._names[each] for each in form.lower
        ]
        scales = [self._shifts[shift].rescale + self._beside(shift, level) for shift in form.scales]
        return self._moved(self._names[node], moves, lower, scales, inside)

    def _moved(
        self, name: str, moves: Sequence[tuple[str, float]], lower: Sequence[str], scales: Sequence[str], body: Body
    ) -> str:
        """A sum whose L has moved, and whose exponentials have other factors: `lower` are those with lower powers."""
        terms = [move if by == 1 else f"{by!r} * {move}" for move, by in moves]
        move = " + ".join(terms)
        if len(terms) > 1 or len(lower) > 1:
            whole, move = move, self.names.new("moved")
            body.lines.append(f"{move} = {whole}")
        correction = ""
        for k, each in enumerate(lower):  # the binomial theorem, by Horner's rule
            times = math.comb(len(lower), k)
            own = each if times == 1 else f"{float(times)} * {each}"
            correction = f"{move} * ({correction} + {own})" if correction else f"{move} * {own}"
        if not scales:
            return f"{name} + {correction}"
        return " * ".join([f"({name} + {correction})" if correction else name, *scales])

    @property
    def _counts_columns(self) -> bool:
        """Whether the number of columns does not follow from their size."""
        return self.skew is not None or self.kernel.ends is not None or self._asked_for is not None

    def _columns_before(self, level: Level, body: Body, inside: Body) -> str:
        """The number of columns that a group had before this step: all steps are full but for the last."""
        if not self._columns:
            self._columns = self.names.new("columns")
            if self._counts_columns:
                mask = f"tl.where(col_mask{self.broadcast_to(Level.COLUMN, level)}, 1.0, 0.0)"
                body.lines.append(f"{self._columns} = {self._full(level, '0.0', torch.float32, self._group)}")
                self._counts.append(f"{self._columns} += {self._of_groups('sum', mask, level, self._group)}")
            else:
                group = f" * {self._group}" if self._group > 1 else ""
                inside.lines.append(f"{self._columns} = {self.first} // COLS{group}")
        return self._columns

    def _close(self, each: Walk, body: Body) -> None:
        """After a loop: its reductions have their value; what follows a maximum of -inf is nan, as in torch."""
        level_of = self.kernel.level
        for node, run in self._extremes.items():
            level = level_of(node.args[0])
            body.lines += [
                f"{run.previous} = {run.name}",
                f"{run.name} = {self.along_columns(node.attrs[0], run.name, level)}",
            ]
            body.know(node, run.name)
        moved: dict[Node, str] = {}
        for shift, made in self._shifts.items():
            largest = largest_of(shift)
            per_row = self.broadcast_to(level_of(largest), level_of(largest.args[0]))
            last, previous = body.state(shift), self._extremes[largest].previous
            moved[shift] = f"({made.name} - {last}{per_row})"
            if made.exponential:
                body.lines.append(f"{made.rescale} = {made.exponential}({_before(shift, previous)} - {last}{per_row})")
        if self._columns and not self._counts_columns:
            body.lines.append(
                f"{self._columns} = {self.style.helper('columns_per_group')}(n_cols, COLS, {self._group})"
            )
        # Those of the highest powers first, as they take what the others are before.
        for node in sorted(each.reductions, key=lambda node: -len(each.running.get(node, Running()).lower)):
            name, level, form = self._names[node], level_of(node.args[0]), each.running.get(node, Running())
            value = name
            if form.restarts is not None:
                run = self._extremes[form.restarts]
                row = run.name + self.broadcast_to(level_of(form.restarts), level_of(form.restarts.args[0]))
                value = self._unless_restarted(node, run.previous, row)
            elif form.shifts:
                columns = self._columns + ("" if self._counts_columns else self.broadcast_to(Level.COLUMN, level))
                moves = [(moved[shift] + self._beside(shift, level), by) for shift, by in form.moves]
                lower = [columns if own is None else self._names[own] for own in form.lower]
                scales = [self._shifts[shift].rescale + self._beside(shift, level) for shift in form.scales]
                value = self._moved(name, moves, lower, scales, body)
            if node not in self._extremes:
                body.lines.append(f"{name} = {self.along_columns(node.attrs[0], value, level)}")
            body.know(node, name)
        self._extremes, self._shifts = {}, {}


@dataclass(frozen=True)
class _Extreme:
    """The names of a running extreme, for each group of columns: now, and before this step."""

    name: str
    previous: str


@dataclass(frozen=True)
class _Shift:
    """The names of what is subtracted of a group of columns, now and before this step, and of the factor by which sums
    of its exponentials follow it, computed by the function `exponential`; none if there are none.
    """

    name: str
    previous: str
    rescale: str
    exponential: str


def _finite(name: str) -> str:
    return f'tl.where(tl.abs({name}) == float("inf"), 0.0, {name})'


def _before(shift: Node, previous: str) -> str:
    """What was subtracted before: of nothing yet, where the maximum was -inf, which then counts for nothing."""
    return f'tl.where({previous} == float("inf"), 0.0, {previous})' if is_finite_form(shift) else previous


def _is_moment(node: Node) -> bool:
    """Whether a sum of less than double precision is in it, as it may nearly cancel others."""
    loads = ir.loads(node.args)
    return node.dtype == torch.float64 and all(load.dtype != torch.float64 for load in loads)
