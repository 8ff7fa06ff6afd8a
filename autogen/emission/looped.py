"""The looped row shell: rows that do not fit on chip, walked in steps of columns."""

from __future__ import annotations

from typing import Any

from autogen import ir
from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.online import Form, Pass, passes
from autogen.emission.rows import Rows
from autogen.emission.shell import identity
from autogen.ir import Node
from autogen.schedule import Level


class Looped(Rows):
    """Prints a row kernel as a few loops over the columns."""

    template = "rows_looped.jinja"
    tiles = ("ROWS", "COLS")

    def summary(self) -> str:
        return "long rows in steps of COLS columns, ROWS of them per program."

    def fill(self) -> dict[str, Any]:
        roots = [*self.kernel.totals, *(root.node for root in self.kernel.stores)]
        reductions = [node for node in ir.topological(roots) if node.op == "reduce" and node not in self.kernel.totals]
        self.passes = dict.fromkeys(self.kernel.loads(), 0)
        body = self.scalars()
        self.preload(body)
        walks = []
        for each in passes(reductions):
            inside = self._walk(each, body)
            walks.append(self._cut(body, inside))
            self._close(each, body)
        element_roots = [r for r in self.kernel.stores if self._store_level(r) in (Level.ELEMENT, Level.COLUMN)]
        if element_roots:
            targets = [root.node for root in element_roots]
            self._prepare(targets, body)
            inside = self.body(body)
            self._count_loads(targets)
            stores = self.store_elements(inside)
            inside.lines += stores
            walks.append(self._cut(body, inside))
        for load in self.kernel.loads():
            if self.kernel.level(load) in (Level.SCALAR, Level.ROW):
                self.passes[load] = 1
        totals = [self.total_parts(node, body) for node in self.kernel.totals]
        body.lines += self.store_rows(body)
        return {
            "row_program": self.row_program,
            "outer": self.outer_lines(),
            "inner": self.inner_lines(),
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

    def _count_loads(self, targets: list[Node]) -> None:
        for node in ir.topological(targets):
            if node.op == "load" and self.kernel.level(node) in (Level.ELEMENT, Level.COLUMN):
                self.passes[node] += 1

    def _walk(self, each: Pass, body: Body) -> Body:
        """Print a pass: start values into `body`, the loop's statements into the returned body."""
        targets = [node.args[0] for node in each.reductions]
        self._prepare(targets, body, frozenset(each.reductions))
        self._count_loads(targets)
        inside = self.body(body)
        leaders = {online.largest for online in each.online.values()}
        self._names: dict[Node, str] = {}  # accumulators
        self._seen: dict[Node, str] = {}  # by weight: the running sums that shifted sums need
        self._running: dict[Node, tuple[str, str]] = {}  # by maximum: the factor and the shift of this step
        for node in each.reductions:
            if node in leaders:
                self._run_maximum(node, body, inside)
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
        return self.along("sum", self.masked(value, inside, identity("sum", value.dtype)), 1, keep=True)

    def _start(self, node: Node, body: Body, shape: str, start: str) -> str:
        name = self._names[node] = self.style.name(node)
        body.lines.append(f"{name} = tl.full({shape}, {start}, {TRITON_DTYPES[node.dtype]})")
        return name

    def _run_maximum(self, node: Node, body: Body, inside: Body) -> None:
        """The running maximum of a row, and what it means for sums that follow it."""
        start = identity("max", node.dtype)
        name = self._start(node, body, "[ROWS, 1]", start)
        shift, previous = self.names.new(f"{name}_shift"), self.names.new(f"previous_{name}")
        body.lines.append(f"{shift} = tl.full([ROWS, 1], 0.0, {TRITON_DTYPES[node.dtype]})")
        chunk = self.along("max", self.masked(node.args[0], inside, start), 1, keep=True)
        rescale = self.names.new("rescale")
        inside.lines += [
            f"{previous} = {name}",
            f"previous_{shift} = {shift}",
            f"{name} = {self.combine('max', name, chunk)}",
            "# Finite even before the first finite column, so that no inf - inf appears.",
            f'{shift} = tl.where({name} == float("-inf"), 0.0, {name})',
            f"{rescale} = {self.style.helper('exp')}({previous} - {shift})",
        ]
        self._running[node] = rescale, shift
        inside.know(node, shift)

    def _accumulate_online(self, node: Node, each: Pass, body: Body, inside: Body) -> None:
        online = each.online[node]
        name = self._start(node, body, "[ROWS, 1]", "0.0")
        rescale, shift = self._running[online.largest]
        chunk = self._chunk(node.args[0], inside)
        if online.form == Form.SCALED:
            inside.lines.append(f"{name} = {name} * {rescale} + {chunk}")
        else:
            seen = "first_col" if online.weight is None else self._weight_seen(online.weight, each, body)
            inside.lines.append(f"{name} += (previous_{shift} - {shift}) * {seen} + {chunk}")

    def _weight_seen(self, weight: Node, each: Pass, body: Body) -> str:
        """The sum of a weight over the columns before this step: often a reduction of the pass itself."""
        if weight not in self._seen:
            wanted = ir.reduce("sum", each.reductions[0].attrs[1], weight)
            shape = "[ROWS, 1]" if self.kernel.level(weight) == Level.ELEMENT else "[1, 1]"
            self._seen[weight] = self._start(wanted, body, shape, "0.0")
        return self._seen[weight]

    def _accumulate(self, node: Node, body: Body, inside: Body) -> None:
        """A reduction kept per column of the step, and combined after the loop."""
        kind = node.attrs[0]
        start = identity(kind, node.dtype)
        per_row = self.kernel.level(node.args[0]) == Level.ELEMENT
        name = self._start(node, body, "[ROWS, COLS]" if per_row else "[1, COLS]", start)
        masked = self.masked(node.args[0], inside, start)
        inside.lines.append(f"{name} += {masked}" if kind == "sum" else f"{name} = {self.combine(kind, name, masked)}")

    def _close(self, each: Pass, body: Body) -> None:
        """After a loop: its reductions have their value."""
        leaders = {online.largest for online in each.online.values()}
        for node in each.reductions:
            name = self._names[node]
            if node not in leaders and node not in each.online and node.args[0] not in self._seen:
                body.lines.append(f"{name} = {self.along(node.attrs[0], name, 1, keep=True)}")
            body.know(node, name)
