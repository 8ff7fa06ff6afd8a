"""Forward or backward of a compiled loss for all sizes: its tensors by number, and its steps."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from autogen.ir.torch_step import TorchStep
from autogen.runtime.launch import Geometry, Step
from autogen.runtime.packing import PACK
from autogen.runtime.procedure import Calling, Launching, Procedure


class Route:
    """The way from the tensors `given`, by name, and `constants` to those `wanted`; None for a name that is None.

    Args:
        given: what a call comes with.
        constants: what the loss has built from numbers.
        made: what is allocated.
        parts: what lies in the tensor `PACK`, which is given or made.
        steps: what is launched, and what torch runs.
        aliases: other names of what torch makes.
        wanted: what is returned.
    """

    def __init__(
        self,
        given: Sequence[str],
        constants: Mapping[str, torch.Tensor],
        made: Collection[str],
        parts: Collection[str],
        steps: Sequence[Step],
        aliases: Mapping[str, str],
        wanted: Sequence[str | None],
    ) -> None:
        by_torch = [name for step in steps if isinstance(step, TorchStep) for name in step.writes]
        places = {name: place for place, name in enumerate([*given, *constants, *made, *parts, *by_torch])}
        known_as = places | {name: places[own] for name, own in aliases.items() if own in places}
        self._given, self._steps, self._places = len(given), steps, places
        self._constants = tuple(constants.values())
        self._returned = tuple([None if name is None else known_as[name] for name in wanted])
        self._written: dict[Hashable, FunctionType] = {}

    def procedure(
        self,
        made: Sequence[Geometry],
        parts: Sequence[tuple[int, Geometry]],
        sizes: Mapping[str, Any],
        device: torch.device,
    ) -> Procedure:
        """What a call does for some sizes, given the geometry of what is `made`, and of the `parts`."""
        places = self._places
        steps: list[Launching | Calling] = []
        for step in self._steps:
            if isinstance(step, TorchStep):
                read = tuple([places[name] for name in step.reads])
                results = tuple([None if each is None else places[each.name] for each in step.results])
                steps.append(Calling(step, read, results, sizes, device))
            else:
                launch = step.prepare(sizes, device)
                steps.append(Launching(launch, tuple([places[name] for name in launch.names])))
        within = [(places[PACK], *part) for part in parts]
        return Procedure(device, self._given, self._constants, made, within, steps, self._returned, self._written)
