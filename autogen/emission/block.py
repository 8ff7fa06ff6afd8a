"""The block shell: one program computes everything, in tiles with a dimension for every axis.

A value that does not depend on an axis has size 1 there, so that all values broadcast as they are; one without axes is
a scalar.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from autogen import ir
from autogen.emission.body import Body
from autogen.emission.shell import Shell, identity
from autogen.ir import Axis, Node
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant


class Block(Shell):
    """All of a small loss in one program."""

    template = "block.jinja"

    def __init__(self, kernel: Kernel, space: Space, variant: Variant, provenance: Provenance) -> None:
        self.groups = space.columns
        variables = {group.axis: str(group.axis) for group in self.groups}
        super().__init__(kernel, space, variant, provenance, variables, {})
        self.tiles = tuple(group.tile for group in self.groups)
        self.names.reserve([*self.tiles, *(f"{group.axis}_mask" for group in self.groups)])

    def shape_of(self, node: Node) -> Level:
        # What is reduced over all axes is one number.
        return self.kernel.level_of_axes(node.axes)

    def summary(self) -> str:
        return "everything in one program."

    def _subscript(self, position: int) -> str:
        """The subscript by which a vector becomes a dimension of the tiles."""
        places = [":" if k == position else "None" for k in range(len(self.groups))]
        return f"[{', '.join(places)}]" if len(places) > 1 else ""

    def fill(self) -> dict[str, Any]:
        body = self.scalars()
        self.start(body)
        for node in self.direct_loads(Level.COLUMN):
            body.state(node)
        for node in ir.topological(root.node for root in self.kernel.roots):
            if node.op == "scan":
                body.assign(node, self._running(node, body))
            elif node.op == "reduce":
                body.assign(node, self._reduced(node, body))
        stores = []
        for root in self.kernel.stores:
            parts = self.store_text(root, body)
            mask = self.mask(root.index_axes)
            stores.append(f"tl.store({parts['pointer']}, {parts['value']}{f', mask={mask}' if mask else ''})")
        axes = []
        wide = ".to(tl.int64)" if self.variant.wide else ""
        for position, group in enumerate(self.groups):
            axes.append(f"{group.axis} = tl.arange(0, {group.tile}){self._subscript(position)}{wide}")
            axes.append(f"{group.axis}_mask = {group.axis} < {self.sizes.text(group.size)}")
        return {"axes": axes, "body": "\n".join([*body.lines, *stores]), "totals": []}

    def start(self, body: Body) -> None:
        """What comes before all else."""

    def mask(self, axes: Iterable[Axis]) -> str:
        """Where values that depend on some axes exist."""
        wanted = set(axes)
        return " & ".join(f"{group.axis}_mask" for group in self.groups if wanted & set(group.parts))

    def load_mask(self, node: Node) -> str | None:
        return self.mask(node.axes) or None

    def _running(self, node: Node, body: Body) -> str:
        _, (axis,), _ = node.attrs
        (position,) = (position for position, group in enumerate(self.groups) if axis in group.parts)
        return self.running(node, self._masked(node, body), position)

    def _masked(self, node: Node, body: Body) -> str:
        """What goes into a reduction or running sum, with its identity where nothing is."""
        kind, axes = node.attrs[:2]
        (value,) = node.args
        return f"tl.where({self.mask(value.axes | set(axes))}, {body.term(value)}, {identity(kind, node.dtype)})"

    def _reduced(self, node: Node, body: Body) -> str:
        kind, axes = node.attrs
        text = self._masked(node, body)
        for position, group in reversed(list(enumerate(self.groups))):
            if not node.axes:  # down to a scalar
                text = self.along(kind, text, position)
            elif set(group.parts) & set(axes):
                kept = ", ".join("None" if k == position else ":" for k in range(len(self.groups)))
                text = f"{self.along(kind, text, position)}[{kept}]"
        return text
