"""Partial results: what each of many programs stores for the last block, and how that combines them.

A loss that is one number is finished inside the launch. Each program stores its partial results, then adds 1 to a
counter, acquiring and releasing. The program that draws the last ticket knows that all others have stored: it reads
their partial results past its L1 cache (`.cg`), in a fixed order, so that two runs agree to the bit, combines them,
stores, and sets the counter back to 0. Counters are kept per device and stream; a CUDA graph that is captured has one
of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from autogen import ir
from autogen.emission.body import MAX_WIDTH, TRITON_DTYPES, Body
from autogen.emission.shell import Shell, identity
from autogen.emission.source import Function
from autogen.ir import Node
from autogen.ir.program import Root
from autogen.scheduling.launches.kernel import CHUNKS, PROGRAMS, Level


class Streaming(Shell):
    """What the shells of many programs share; `programs` is how many there are."""

    programs = "tl.num_programs(0)"

    def become_part(self) -> None:
        """Be a part of a kernel: told which program it is, and without a last block."""
        self.programs = "programs"
        self.told = ("program", "programs") if self.variant.skewed else ("program",)

    def program_count(self) -> str:
        """How many programs there are for the work, in terms of sizes and tiles."""
        raise NotImplementedError

    def total_parts(self, node: Node, body: Body) -> dict[str, Any]:
        """A reduction over all rows: this program's part of it, and how the last block combines the parts."""
        name = self.style.name(node)
        partial = self.names.new(f"{name}_partial")
        self.take(node, partial, body)
        pointer = f"{partial}_ptr"
        store = f"tl.store({pointer} + program, {partial})"
        return {**self.combined(node, name, pointer, self.programs), "store": store}

    def take(self, node: Node, partial: str, body: Body) -> None:
        """The statement that gives a part of a total its value."""
        body.lines.append(f"{partial} = {self.whole(node, body)}")

    def combined(self, node: Node, name: str, pointer: str, programs: str) -> dict[str, Any]:
        """How the last block combines what so many programs have stored of a total."""
        kind = node.attrs[0]
        start = identity(kind, node.dtype)
        part = f'tl.load({pointer} + partial, mask=arrived, other={start}, cache_modifier=".cg")'
        return {
            "name": name,
            "pointer": pointer,
            "programs": programs,
            "described": f"{str(node.dtype)[6:]} (programs,), one partial result each",
            "count": PROGRAMS,
            "store": "",
            "start": f"tl.full([PARTIALS], {start}, {TRITON_DTYPES[node.dtype]})",
            "combine": self.accumulate(kind, name, part),
            "finish": self.along(kind, name, 0),
            "torch_dtype": node.dtype,
            "node": node,
        }

    def totals(self, body: Body) -> list[dict[str, Any]]:
        """What this program has for the last block: a share of each total, or some of the totals."""
        last = self.kernel.last_block
        if last is None:
            return [self.total_parts(node, body) for node in self.kernel.totals]
        return [self.share(root, body) for root in last.partials]

    def share(self, root: Root, body: Body) -> dict[str, Any]:
        """What this program stores for the last block: its part of a total, or whole totals, one per row."""
        if not self.is_chunked:
            return self.shared(
                root.buffer, self.pointer(root.buffer, root.index, Level.ROW), body.state(root.node), "row_mask"
            )
        value = body.assign(root.node, self.whole(root.node, body), root.buffer.name)
        return self.shared(root.buffer, f"{root.buffer.name}_ptr + program", value)

    @property
    def is_chunked(self) -> bool:
        """Whether the last block combines what programs store of each total."""
        return self.kernel.last_block is not None and self.kernel.last_block.chunked

    def shared(self, buffer: ir.Buffer, pointer: str, value: str, mask: str | None = None) -> dict[str, Any]:
        """The context of what programs store for the last block."""
        lines = CHUNKS if self.is_chunked else 1
        return {
            "name": buffer.name,
            "pointer": f"{buffer.name}_ptr",
            "described": f"{buffer.describe()}, partial results",
            "count": buffer.numel() * lines,
            "store": f"tl.store({pointer}, {value}{f', mask={mask}' if mask else ''})",
            "torch_dtype": buffer.dtype,
        }

    def existing(self, total: Node, body: Body) -> str:
        """What a total reduces, with the reduction's identity where a tile reaches beyond it."""
        reduced = total.args[0]
        mask, start = self.mask_of(self.kernel.level(reduced)), identity(total.attrs[0], total.dtype)
        return f"tl.where({mask}, {body.term(reduced)}, {start})"

    def whole(self, total: Node, body: Body) -> str:
        """What a total reduces, reduced to one value within a tile."""
        of_elements = self.kernel.level(total.args[0]) == Level.ELEMENT
        return self.over_tile(total.attrs[0], self.existing(total, body), of_elements)

    def over_tile(self, kind: str, value: str, of_elements: bool) -> str:
        """A value per element, or per row, reduced to one within a tile."""
        inner = self.along(kind, value, 1) if of_elements and self.kernel.columns else value
        return self.along(kind, inner, 0)

    def last_block(self, totals: Sequence[dict[str, Any]], outer: Body) -> dict[str, Any]:
        """The context of `last_block.jinja`."""
        if self.last is not None:
            return {"totals": totals, "call": call_of(self.last)}
        finals = self.body(outer)
        for total in totals:
            finals.know(total["node"], total["name"])
        for root in self.kernel.finals:
            store = self.store_text(root, finals)
            finals.lines.append(f"tl.store({store['pointer']}, {store['value']})")
        return {"totals": totals, "call": "", "finals": "\n".join(finals.lines)}


def call_of(function: Function, called: Mapping[str, str] | None = None) -> str:
    """A call whose arguments are called like the parameters, or as given."""
    arguments = ", ".join((called or {}).get(each, each) for each in function.parameters)
    if len(arguments) > MAX_WIDTH:
        arguments = f"\n{textwrap.fill(arguments, MAX_WIDTH, initial_indent='    ', subsequent_indent='    ')}\n"
    return f"{function.name}({arguments})"
