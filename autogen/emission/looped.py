"""The looped row shell: rows that do not fit on chip, walked in steps of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from autogen import ir
from autogen.emission.body import TRITON_DTYPES, Body, Names
from autogen.emission.rows import IS_EDGE, REACHES_END, Rows
from autogen.emission.shell import identity
from autogen.ir import Node
from autogen.scheduling.launches.kernel import Level
from autogen.scheduling.launches.online import Form, Online, Pass, passes
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
        reductions = self.kernel.row_reductions()
        self.passes = dict.fromkeys(self.kernel.loads(), 0)
        self._running: dict[Node, _Running] = {}  # the maxima of the walk that is being printed
        body = self.scalars()
        self.preload(body, Level.ROW)
        walks = []
        for each in passes(reductions):
            inside = self._walk(each, body)
            walks.append(self._cut(body, inside))
            self._close(each, body)
        element_roots = [r for r in self.kernel.stores if self.store_level(r) in (Level.ELEMENT, Level.COLUMN)]
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
            "passes": walks,
            "body": "\n".join(body.lines),
            **self.last_block(totals, body),
        }

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

    def _walk(self, each: Pass, body: Body) -> Body:
        """Print a pass: start values into `body`, the loop's statements into the returned body."""
        targets = [node.args[0] for node in each.reductions]
        self._prepare(targets, body, frozenset(each.reductions))
        inside = self.body(body)
        self._read(targets, inside)
        self._names: dict[Node, str] = {}  # accumulators
        self._seen: dict[tuple[Node | None, int], str] = {}  # by weight: the running sums that shifted sums need
        leaders = dict.fromkeys(online.largest for online in each.online.values())
        if leaders:
            body.lines += [
                "# A thread adds up what it meets of a row by itself, and threads are combined in the end, so that",
                "# none waits for another on the way.",
            ]
        for node in leaders:
            followers = [online for online in each.online.values() if online.largest is node]
            self._run_maximum(node, any(o.form == Form.SHIFTED for o in followers), body, inside)
        updates = [self._accumulate_online(node, online, body, inside) for node, online in each.online.items()]
        inside.lines += dict.fromkeys(filter(None, updates))
        for node in each.reductions:
            if node not in self._names:
                self._accumulate(node, body, inside)
        return inside

    def _group(self, largest: Node) -> int:
        """How many neighbouring columns a thread reads at once, which share a running maximum."""
        read = [n.attrs[0].dtype.itemsize for n in ir.topological(largest.args) if n.op == "load"]
        return ACCESS // max(read, default=ACCESS) if self.space.columns_adjacent else 1

    def _of_groups(self, kind: str, value: str, level: Level, group: int) -> str:
        """Values of a level, reduced over the columns of each group."""
        if group == 1:
            return value
        has_rows = level == Level.ELEMENT or self.skew is not None
        return self.along(kind, f"{self.style.helper('in_groups')}({value}, {group})", 1 + has_rows)

    def _start(self, node: Node, body: Body, level: Level, start: str, group: int = 1) -> str:
        """An accumulator for a reduction of values of a level, one for each group of columns."""
        name = self._names[node] = self.style.name(node)
        body.lines.append(f"{name} = {self._full(level, start, node.dtype, group)}")
        return name

    def _full(self, level: Level, start: str, dtype: torch.dtype, group: int) -> str:
        """A tile of values of a level, one for each group of columns."""
        shape = {Level.ROW: "ROWS", Level.SCALAR: ""}.get(level, f"COLS // {group}" if group > 1 else "COLS")
        if level == Level.ELEMENT or (level == Level.COLUMN and self.skew):
            shape = f"ROWS, {shape}"
        return f"tl.full([{shape}], {start}, {TRITON_DTYPES[dtype]})"

    def _run_maximum(self, node: Node, has_shifted: bool, body: Body, inside: Body) -> None:
        """The running maximum of a row, and what it means for sums that follow it."""
        start, group, (reduced,) = identity("max", node.dtype), self._group(node), node.args
        level = self.kernel.level(reduced)
        name = self._start(node, body, level, start, group)
        run = self._running[node] = _Running.of(name, group, self.names)
        if has_shifted:
            body.lines.append(f"{run.shift} = tl.zeros_like({name})")
        chunk = self._of_groups("max", self.masked(reduced, inside, start), level, group)
        inside.lines += [
            f"{run.previous} = {name}",
            *([f"{run.previous_shift} = {run.shift}"] if has_shifted else []),
            f"{name} = {self.combine('max', name, chunk)}",
            "# Finite even before the first finite column, so that no inf - inf appears.",
            f'{run.shift} = tl.where({name} == float("-inf"), 0.0, {name})',
            f"{run.rescale} = {self._exponential(node)}({run.previous} - {run.shift})",
        ]
        per_column = run.shift if group == 1 else f"{self.style.helper('per_column')}({run.shift}, {group})"
        inside.assign(node, per_column, f"{name}_here")

    def _exponential(self, largest: Node) -> str:
        """The function by which sums follow a maximum: as exact as the exponentials that they add up."""
        followed = {node.op for node in ir.topological(self.kernel.row_reductions()) if largest in _shifted_by(node)}
        is_one = len(followed) == 1 and "exp" not in followed
        return self.style.helper(followed.pop() if is_one else "exp_nonpositive")

    def expansion(self, node: Node, into: Node) -> str:
        # A running maximum is one for each column.
        if node in self._running:
            return self.broadcast_to(self.kernel.level(node.args[0]), self.kernel.level(into))
        return super().expansion(node, into)

    def _accumulate_online(self, node: Node, online: Online, body: Body, inside: Body) -> str | None:
        """A sum that follows a running maximum; returns what is left to do at the end of a step."""
        run, (reduced,), level = self._running[online.largest], node.args, self.kernel.level(node.args[0])
        name = self._start(node, body, level, "0.0", run.group)
        chunk = self._of_groups("sum", self.masked(reduced, inside, "0.0"), level, run.group)
        subscript = self.expansion(online.largest, reduced)
        if online.form == Form.SCALED:
            inside.lines.append(f"{name} = {name} * {run.rescale}{subscript} + {chunk}")
            return None
        seen, update = self._weight_seen(online.weight, node, run.group, body, inside)
        inside.lines.append(f"{name} += ({run.previous_shift} - {run.shift}){subscript} * {seen} + {chunk}")
        return update

    def _is_arithmetic(self, weight: Node | None) -> bool:
        """Whether the sum of a weight follows from the sizes: it counts columns, of steps full but for the last."""
        return weight is None and not self.skew

    def _weight_seen(
        self, weight: Node | None, node: Node, group: int, body: Body, inside: Body
    ) -> tuple[str, str | None]:
        """The sum of a weight (None is 1) over the columns before this step, and how it takes those of this step."""
        (reduced,), level = node.args, self.kernel.level(node.args[0])
        if self._is_arithmetic(weight):
            if (None, group) not in self._seen:
                name = self._seen[None, group] = self.names.new("columns")
                inside.lines.append(f"{name} = {self.first} // COLS" + (f" * {group}" if group > 1 else ""))
            return self._seen[None, group], None
        value = "1.0" if weight is None else inside.broadcast(weight, reduced)[0]
        if (weight, group) not in self._seen:
            name = self._seen[weight, group] = self.names.new("columns" if weight is None else "weights")
            body.lines.append(f"{name} = {self._full(level, '0.0', node.dtype, group)}")
            if weight is not None and self.kernel.level(weight) == level:  # a reduction of the pass itself, often
                self._names[ir.reduce("sum", node.attrs[1], weight)] = name
        masked = f"tl.where(col_mask{self.broadcast_to(Level.COLUMN, level)}, {value}, 0.0)"
        seen = self._seen[weight, group]
        return seen, f"{seen} += {self._of_groups('sum', masked, level, group)}"

    def _accumulate(self, node: Node, body: Body, inside: Body) -> None:
        """A reduction kept per column of the step, and combined after the loop."""
        kind = node.attrs[0]
        start = identity(kind, node.dtype)
        name = self._start(node, body, self.kernel.level(node.args[0]), start)
        masked = self.masked(node.args[0], inside, start)
        inside.lines.append(self.accumulate(kind, name, masked))

    def _close(self, each: Pass, body: Body) -> None:
        """After a loop: its reductions have their value; what follows a maximum of -inf is nan, as in torch."""
        for node, run in self._running.items():
            name, level = self._names[node], self.kernel.level(node.args[0])
            per_row = self.broadcast_to(self.kernel.level(node), level)
            body.lines += [
                f"{run.previous} = {name}",
                f"{name} = {self.along_columns('max', name, level)}",
                f"{run.rescale} = {self._exponential(node)}({run.previous} - {name}{per_row})",
            ]
        for (weight, group), name in self._seen.items():
            if self._is_arithmetic(weight):
                body.lines.append(f"{name} = {self.style.helper('columns_per_group')}(n_cols, COLS, {group})")
        for node in each.reductions:
            name, level, value = self._names[node], self.kernel.level(node.args[0]), self._names[node]
            if node in each.online:
                value = self._rescaled(node, each.online[node])
            if node not in self._running:
                body.lines.append(f"{name} = {self.along_columns(node.attrs[0], value, level)}")
            body.know(node, name)
        self._running = {}

    def _rescaled(self, node: Node, online: Online) -> str:
        """What groups of columns have of a sum, for the maximum of the whole row."""
        name, run, largest = self._names[node], self._running[online.largest], online.largest
        subscript = self.expansion(largest, node.args[0])
        if online.form == Form.SCALED:
            return f"{name} * {run.rescale}{subscript}"
        per_row = self.broadcast_to(self.kernel.level(largest), self.kernel.level(largest.args[0]))
        moved = f"({run.shift} - {self._names[largest]}{per_row}){subscript}"
        seen = self._seen[online.weight, run.group]
        if self._is_arithmetic(online.weight):
            seen += self.broadcast_to(Level.COLUMN, self.kernel.level(node.args[0]))
        return f"{name} + {moved} * {seen}"


@dataclass(frozen=True)
class _Running:
    """The names of what a running maximum has in the loop, for each group of so many columns."""

    group: int
    previous: str
    shift: str
    previous_shift: str
    rescale: str

    @classmethod
    def of(cls, name: str, group: int, names: Names) -> _Running:
        shift = f"{name}_shift"
        wanted = (f"previous_{name}", shift, f"previous_{shift}", "rescale")
        return cls(group, *map(names.new, wanted))


def _shifted_by(node: Node) -> tuple[Node, ...]:
    """What is subtracted in an exponential."""
    return node.args[0].args[1:] if node.op in ir.EXPONENTIALS and node.args[0].op == "sub" else ()
