"""List the configurations of a kernel that are worth timing: the default and its neighbours.

A candidate is the default, or the default that rows would have if they were (not) walked in steps, some steps away.

To add a knob: a field of `Config`, its effect in `Tiler.cut`, what is legal in `Tiler.admits`, and steps here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from autogen.tiling.tiler import Config, Tiler

Capability = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """How a candidate differs: doublings of its elements and of its warps, and the least capability to try it on."""

    elements: int
    warps: int
    capability: Capability = (0, 0)


# A multiprocessor has room for 1024 threads on Turing and for 1536 or 2048 since: four times the elements under as many
# warps would leave one program alone on a Turing, with nobody to compute while it waits for memory.
_SINCE_AMPERE = (8, 0)

STEPS = (
    Step(0, 0),
    Step(0, 1),
    Step(0, -1),
    Step(1, 0),
    Step(1, 1),
    Step(-1, 0),
    Step(-1, -1),
    Step(2, 1, _SINCE_AMPERE),
    Step(2, 2, _SINCE_AMPERE),
)


def candidates(tiler: Tiler, sizes: Mapping[str, int], capability: Capability) -> tuple[Config, ...]:
    """The configurations to try for the given sizes on a device of some capability; the default first."""
    default = tiler.default(sizes)
    found = {default: None}
    for base in (default, tiler.other(sizes)):
        for step in STEPS:
            if base is not None and capability >= step.capability:
                made = (each for each in _stepped(base, step, tiler) if tiler.admits(each, sizes))
                found |= dict.fromkeys([next(made, default)])
    return tuple(found)


def _stepped(base: Config, step: Step, tiler: Tiler) -> Iterator[Config]:
    """A configuration, a step on: with each of its tiles in the place of all, the one to be preferred first."""
    warps = _doubled(base.num_warps, step.warps)
    if step.elements == 0:
        yield replace(base, num_warps=warps)
        return
    # What is adjacent in memory stays as wide as it is, if it can.
    preferred = base.tiles if tiler.columns_adjacent and not base.looped else base.tiles[::-1]
    for chosen, _ in preferred:
        tiles = tuple((name, _doubled(size, step.elements * (name == chosen))) for name, size in base.tiles)
        yield replace(base, tiles=tiles, num_warps=warps)


def _doubled(n: int, times: int) -> int:
    """A number doubled so often, or halved; 0 where it cannot be."""
    return n << times if times >= 0 else n >> -times
