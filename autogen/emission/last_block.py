"""The last block's function: one program computes what is left from the partial results of all.

It first combines what all programs have stored, a tile of chunks at a time and in a fixed order, and then goes on as
the block shell does.
"""

from __future__ import annotations

import sympy

from autogen import ir
from autogen.emission.block import Block
from autogen.emission.body import TRITON_DTYPES, Body
from autogen.emission.shell import identity
from autogen.ir import Node
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import CHUNKS, Kernel, Level
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant


class Finish(Block):
    """Prints what the last block of `kernel` calls."""

    def __init__(self, kernel: Kernel, variant: Variant, provenance: Provenance) -> None:
        assert kernel.last_block is not None
        last = kernel.last_block
        super().__init__(last.kernel, Space(last.kernel), variant, provenance)
        self._columns = frozenset(kernel.columns)
        self._kinds = {root.buffer: root.node.attrs[0] for root in last.partials} if last.chunked else {}
        self.tiles = (*self.tiles, "CHUNKS") if last.chunked else self.tiles

    def summary(self) -> str:
        return "the last block's work."

    def direct_loads(self, *levels: Level) -> list[Node]:
        return [node for node in super().direct_loads(*levels) if node.attrs[0] not in self._kinds]

    def print_load(self, node: Node, computed: list[str], condition: str) -> str:
        text = super().print_load(node, computed, condition)
        if node.attrs[0].role != "partial":
            return text
        return text.removesuffix(")") + ', cache_modifier=".cg")'  # other blocks wrote it: not from this one's L1

    def start(self, body: Body) -> None:
        loads = [node for node in self.kernel.loads() if node.attrs[0] in self._kinds]
        if not loads:
            return
        inside = [
            "chunk = first + tl.arange(0, CHUNKS)",
            "arrived = chunk < chunks",
        ]
        for node in loads:
            buffer, index = node.attrs
            kind = self._kinds[buffer]
            start = identity(kind, buffer.dtype)
            name = self.style.name(node, buffer.name.removesuffix("_partial"))
            shape = [group.tile if node.axes & set(group.parts) else "1" for group in self.groups] if node.axes else []
            body.lines.append(f"{name} = tl.full([{', '.join(shape)}], {start}, {TRITON_DTYPES[node.dtype]})")
            places = f"[{', '.join([':', *['None'] * len(shape)])}]" if shape else ""
            width = self.sizes.factor(self._width(buffer, index))
            step = f"chunk{places}" if width == "1" else f"chunk{places} * {width}"
            mask = " & ".join([f"arrived{places}", *([self.mask(node.axes)] if node.axes else [])])
            pointer = self.pointer(buffer, index, Level.COLUMN)
            part = f'tl.load({pointer} + {step}, mask={mask}, other={start}, cache_modifier=".cg")'
            inside += [f"share = {part}", self.accumulate(kind, name, self.along(kind, "share", 0))]
            body.know(node, name)
        self.sizes.arguments[str(CHUNKS)] = CHUNKS
        body.lines.append("for first in range(0, chunks, CHUNKS):")
        body.lines += [f"    {line}" for line in inside]

    def _width(self, buffer: ir.Buffer, index: tuple[sympy.Expr, ...]) -> sympy.Expr:
        """How many values a chunk has."""
        return sympy.Mul(*(size for size, axis in zip(buffer.shape, index, strict=True) if axis in self._columns))
