"""The horizontal shell: independent parts in one launch, each a function, with a common last block."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from autogen.emission.source import Function, KernelSource
from autogen.emission.streaming import Streaming, call_of
from autogen.ir.names import unique
from autogen.ir.provenance import Provenance
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant, tile_of_part


class Horizontal(Streaming):
    """Prints a kernel of several parts, each of them printed by a shell of its own."""

    template = "horizontal.jinja"

    def __init__(
        self, kernel: Kernel, space: Space, variant: Variant, provenance: Provenance, shells: Sequence[Streaming]
    ) -> None:
        super().__init__(kernel, space, variant, provenance, {}, {})
        self.tiles = ()
        self.passes = {}  # those of the parts are theirs
        self._shells = shells
        self._counts: list[str] = []

    def summary(self) -> str:
        return f"{len(self._shells)} parts side by side, each with programs of its own."

    def mask_of(self, level: Level) -> str | None:
        return None

    def emit(self, *called: Function) -> KernelSource:
        functions: list[Function] = []
        for shell in self._shells:
            shell.become_part()
            shell.names.reserve(each.pointer.removesuffix("_ptr") for part in functions for each in part.partials)
            self._counts.append(shell.program_count())
            functions.append(shell.function())
        return super().emit(*functions, *called)

    def function(self, *called: Function) -> Function:
        self._functions = called
        return super().function()

    def fill(self) -> dict[str, Any]:
        parts: list[dict[str, str]] = []
        totals: list[dict[str, Any]] = []
        launched: list[str] = []  # how many programs each part has
        for number, function in enumerate(self._functions, 1):
            called = self._called(function, number)
            first = " - ".join(["program", *launched])
            launched.append(f"programs_{number}")
            part = {
                "programs": launched[-1],
                "count": _renamed(self._counts[number - 1], called),
                "condition": f"program < {' + '.join(launched)}",
                "call": call_of(function, {**called, "program": first, "programs": launched[-1]}),
            }
            parts.append(part)
        self.names.reserve([*launched, *self.tiles, *self.sizes.arguments])
        for shell, function, programs in zip(self._shells, self._functions, launched, strict=True):
            for node, partial in zip(shell.kernel.totals, function.partials, strict=True):
                totals.append(self.combined(node, self.style.name(node), partial.pointer, programs))
        return {"parts": parts, **self.last_block(totals, self.body())}

    def _called(self, function: Function, number: int) -> dict[str, str]:
        """What the sizes and tiles of a part are called here."""
        called = {}
        for name, size in function.sizes.items():
            is_known = self.sizes.arguments.get(name) == size
            called[name] = name if is_known else unique(name, self.sizes.arguments)
            self.sizes.arguments[called[name]] = size
            if name in function.doubles:
                self.sizes.doubles.add(called[name])
        for tile in function.tiles:
            called[tile] = tile_of_part(tile, number)
            self.tiles = (*self.tiles, called[tile])
        return called


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """A text whose identifiers are called otherwise."""
    return re.sub(r"\b[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)
