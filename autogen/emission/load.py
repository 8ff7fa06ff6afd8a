"""Print a `tl.load`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Load:
    """A `tl.load`.

    Attributes:
        pointer: where from.
        mask: where at all; None for everywhere.
        other: the value where it is not; None where that does not matter.
        cast: what is written after it.
        eviction: what caches are told about it, in Triton's words.
    """

    pointer: str
    mask: str | None
    other: str | None
    cast: str
    eviction: str = ""

    def __str__(self) -> str:
        mask = f", mask={self.mask}" if self.mask else ""
        other = f", other={self.other}" if self.other else ""
        eviction = f', eviction_policy="{self.eviction}"' if self.eviction else ""
        return f"tl.load({self.pointer}{mask}{other}{eviction}){self.cast}"


def asked(load: Load, condition: str) -> Load:
    """A load of what a condition asks for; what else it gives does not matter."""
    if not condition:
        return load
    mask = f"{load.mask} & {condition}" if load.mask else condition
    return replace(load, mask=mask, other=load.other or "0")
