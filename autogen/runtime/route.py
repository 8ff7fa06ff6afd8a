"""Routes: forward or backward of a compiled loss, for all sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from autogen.runtime.backwards import Step
from autogen.runtime.launch import Geometry
from autogen.runtime.packing import PACK
from autogen.runtime.procedure import Called, Calling, Launchable, Launched, Launching, Outline, Procedure
from autogen.torch_step import TorchStep


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
        owners = (places[PACK],) * len(parts) if parts else ()
        known_as = places | {name: places[own] for name, own in aliases.items() if own in places}
        returned = tuple([None if name is None else known_as[name] for name in wanted])

        def calling(step: TorchStep) -> Calling:
            made = tuple([None if each is None else places[each.name] for each in step.results])
            return Calling(step, tuple([places[name] for name in step.reads]), made)

        self._places = places
        self._constants = tuple(constants.values())
        self._steps = [calling(step) if isinstance(step, TorchStep) else step for step in steps]
        self._launchings: dict[tuple[Any, ...], Launching] = {}
        self._outlines: dict[tuple[int, ...], Outline] = {}  # by the identity of their steps, which are kept
        self._around = len(given), len(constants), len(made), owners, returned

    def procedure(
        self,
        made: Sequence[Geometry],
        parts: Sequence[tuple[int, Geometry]],
        sizes: Mapping[str, Any],
        device: torch.device,
    ) -> Procedure:
        """What a call does for some sizes, given the geometry of what is `made`, and of the `parts`."""
        steps: list[Launched | Called] = []
        for step in self._steps:
            if isinstance(step, Calling):
                steps.append(Called(step, sizes, device))
            else:
                launch = step.prepare(sizes, device)
                steps.append(Launched(launch, self._launching(launch, launch.names)))
        return Procedure(device, self._outline([step.outline for step in steps]), self._constants, made, parts, steps)

    def _launching(self, launch: Launchable, names: tuple[str, ...]) -> Launching:
        key = names, len(launch.offsets)
        found = self._launchings.get(key)
        if found is None:
            places = tuple([self._places[name] for name in names])
            found = self._launchings[key] = Launching(places, len(launch.offsets))
        return found

    def _outline(self, steps: Sequence[Launching | Calling]) -> Outline:
        """The outline, which may depend on how kernels are written for the sizes."""
        key = tuple(map(id, steps))
        found = self._outlines.get(key)
        if found is None:
            given, constants, made, owners, returned = self._around
            found = self._outlines[key] = Outline(given, constants, made, owners, tuple(steps), returned)
        return found
