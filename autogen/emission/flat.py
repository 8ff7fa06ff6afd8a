"""The flat shell: a block of consecutive elements per program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sympy

from autogen import compat
from autogen.emission.body import Body
from autogen.emission.records import records_of, stored_records
from autogen.emission.streaming import Streaming
from autogen.ir import Axis
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant

OFFSETS = "offsets"


class Flat(Streaming):
    """Prints a kernel without columns."""

    template = "flat.jinja"
    tiles = ("BLOCK",)

    def __init__(self, kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> None:
        self.total = sympy.Mul(*(group.size for group in space.rows))
        self.line = Axis(OFFSETS, self.total)
        variables = {self.line: OFFSETS}
        super().__init__(kernel, space, variant, provenance, variables, {self.total: "n_elements"})
        self.sizes.arguments["n_elements"] = self.total

    def summary(self) -> str:
        return "a block of elements per program."

    def program_count(self) -> str:
        return "tl.cdiv(n_elements, BLOCK)"

    def offset(self, offset: sympy.Expr) -> sympy.Expr:
        sizes = compat.size_functions()
        step = self.space.flat(offset)
        if step is not None:
            return step * self.line
        inside: sympy.Expr = sympy.S.One
        values = {}
        for position, group in enumerate(reversed(self.space.rows)):
            index = self.line if inside == 1 else sizes.FloorDiv(self.line, inside)
            outermost = position == len(self.space.rows) - 1
            values[group.axis] = index if outermost else sizes.Mod(index, group.size)
            inside = inside * group.size
        return offset.xreplace(values)

    def mask_of(self, level: Level) -> str | None:
        return "mask" if level in (Level.ROW, Level.ELEMENT) else None

    def fill(self) -> dict[str, Any]:
        scalars = self.scalars()
        body = self.body(scalars)
        loads = []
        direct = self.direct_loads(Level.ROW)
        for record in records_of(direct, self.space):
            conditions = {self.condition_of(part) for part in record.parts}
            guard = body.guard(record.parts[0]) if len(conditions) == 1 else ""
            name = self.names.new(record.buffer.name)
            if guard:
                load = self.record_load(record, self.line, OFFSETS, f"(mask & {guard})")
                body.lines.append(f"{name} = {load}")
            else:
                loads.append((name, self.record_load(record, self.line, OFFSETS, "mask")))
            self.take_apart(record, name, body)
        for node in direct:
            if node in body.known or self.condition_of(node) is not None:
                continue
            name = self.style.name(node)
            loads.append((name, self.load(node)))
            body.know(node, name)
        totals = self.totals(body)
        stores = self._stores(body)
        scalar_stores = [self.store_text(root, scalars) for root in self.kernel.stores if not root.index_axes]
        return {
            "before": "\n".join(scalars.lines),
            "tiles": "",
            "loads": [
                {"name": name, "masked": load, "unmasked": replace(load, mask=None, other=None)} for name, load in loads
            ],
            "body": "\n".join(body.lines),
            "stores": stores,
            "scalar_stores": scalar_stores,
            **self.last_block(totals, scalars),
        }

    def _stores(self, body: Body) -> list[dict[str, str]]:
        """The stores of results per element, of neighbours at once."""
        roots = [root for root in self.kernel.stores if root.index_axes]
        varying = [root for root in roots if self.kernel.level(root.node) == Level.ROW]
        records = stored_records(varying, self.space)
        together = {root for record in records for root in record.parts}
        stores = [self.record_store(record, body, self.line, OFFSETS, "mask") for record in records]
        alone = (self.store_text(root, body) for root in roots if root not in together)
        return [*stores, *({**parts, "mask": "mask"} for parts in alone)]
