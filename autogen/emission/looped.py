"""The looped row shell: rows that do not fit on chip, walked in steps of columns."""

from __future__ import annotations

from typing import Any

from autogen import ir
from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.online import Form, Pass, passes
from autogen.emission.rows import IS_EDGE, REACHES_END, Rows
from autogen.emission.shell import identity
from autogen.ir import Node
from autogen.kernel import Level


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
        leaders = {online.largest for online in each.online.values()}
        self._names: dict[Node, str] = {}  # accumulators
        self._combined_later: set[Node] = set()  # accumulators with one value per column
        self._seen: dict[Node, str] = {}  # by weight: the running sums that shifted sums need
        self._running: dict[Node, tuple[str, str]] = {}  # by maximum: the factor and the shift of this step
        for node in each.reductions:
            if node in leaders:
                followers = [online for online in each.online.values() if online.largest is node]
                self._run_maximum(node, any(o.form == Form.SHIFTED for o in followers), body, inside)
        for node in each.reductions:
            if node in each.online:
                self._accumulate_online(node, each, body, inside)
        for weight, name in self._seen.items():
            inside.lines.append(f"{name} += {self._chunk(weight, inside)}")
        for node in each.reductions:
            if node not in self._names:
                self._accumulate(node, body, inside)
        return inside

    def _chunk(self, value: Node, inside: Body) -> str:
        """The sum of a value over the columns of one step."""
        masked = self.masked(value, inside, identity("sum", value.dtype))
        return self.along_columns("sum", masked, self.kernel.level(value))

    def _shape(self, level: Level) -> str:
        columns = "[ROWS, COLS]" if self.skew else "[COLS]"
        return {Level.ELEMENT: "[ROWS, COLS]", Level.COLUMN: columns, Level.ROW: "[ROWS]"}.get(level, "[]")

    def _start(self, node: Node, body: Body, level: Level, start: str) -> str:
        """An accumulator for a reduction, with one value per place of a level."""
        name = self._names[node] = self.style.name(node)
        body.lines.append(f"{name} = tl.full({self._shape(level)}, {start}, {TRITON_DTYPES[node.dtype]})")
        return name

    def _per_row(self, node: Node) -> Level:
        """The level of a reduction's result."""
        return self.kernel.level_of_axes(node.axes)

    def _run_maximum(self, node: Node, has_shifted: bool, body: Body, inside: Body) -> None:
        """The running maximum of a row, and what it means for sums that follow it."""
        start = identity("max", node.dtype)
        level = self._per_row(node)
        name = self._start(node, body, level, start)
        shift, previous = self.names.new(f"{name}_shift"), self.names.new(f"previous_{name}")
        if has_shifted:
            body.lines.append(f"{shift} = tl.full({self._shape(level)}, 0.0, {TRITON_DTYPES[node.dtype]})")
        chunk = self.along_columns("max", self.masked(node.args[0], inside, start), self.kernel.level(node.args[0]))
        rescale = self.names.new("rescale")
        inside.lines += [
            f"{previous} = {name}",
            *([f"previous_{shift} = {shift}"] if has_shifted else []),
            f"{name} = {self.combine('max', name, chunk)}",
            "# Finite even before the first finite column, so that no inf - inf appears.",
            f'{shift} = tl.where({name} == float("-inf"), 0.0, {name})',
            f"{rescale} = {self.style.helper('exp')}({previous} - {shift})",
        ]
        self._running[node] = rescale, shift
        inside.know(node, shift)

    def _accumulate_online(self, node: Node, each: Pass, body: Body, inside: Body) -> None:
        online = each.online[node]
        name = self._start(node, body, self._per_row(node), "0.0")
        rescale, shift = self._running[online.largest]
        chunk = self._chunk(node.args[0], inside)
        if online.form == Form.SCALED:
            inside.lines.append(f"{name} = {name} * {rescale} + {chunk}")
        else:
            columns = "tl.maximum(first_lane - skew, 0)" if self.skew else "first_col"
            seen = columns if online.weight is None else self._weight_seen(online.weight, each, body)
            inside.lines.append(f"{name} += (previous_{shift} - {shift}) * {seen} + {chunk}")

    def _weight_seen(self, weight: Node, each: Pass, body: Body) -> str:
        """The sum of a weight over the columns before this step: often a reduction of the pass itself."""
        if weight not in self._seen:
            wanted = ir.reduce("sum", each.reductions[0].attrs[1], weight)
            self._seen[weight] = self._start(wanted, body, self._per_row(wanted), "0.0")
        return self._seen[weight]

    def _accumulate(self, node: Node, body: Body, inside: Body) -> None:
        """A reduction kept per column of the step, and combined after the loop."""
        kind = node.attrs[0]
        start = identity(kind, node.dtype)
        name = self._start(node, body, self.kernel.level(node.args[0]), start)
        self._combined_later.add(node)
        masked = self.masked(node.args[0], inside, start)
        inside.lines.append(self.accumulate(kind, name, masked))

    def _close(self, each: Pass, body: Body) -> None:
        """After a loop: its reductions have their value."""
        for node in each.reductions:
            name = self._names[node]
            if node in self._combined_later:
                combined = self.along_columns(node.attrs[0], name, self.kernel.level(node.args[0]))
                body.lines.append(f"{name} = {combined}")
            body.know(node, name)
