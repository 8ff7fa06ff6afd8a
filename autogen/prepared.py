"""A compiled loss for tensors of one geometry: what to allocate and what to launch, all worked out.

A call then does nothing but that. This is only for losses that are kernels alone, without steps of torch between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autogen import direct
from autogen.geometry import Alike, alike
from autogen.hostcode import HostCode, Part, Procedure, host_code
from autogen.launch import Geometry, Launcher
from autogen.scratch import lay_out

if TYPE_CHECKING:
    from autogen.compiled import CompiledLoss

Sizes = Mapping[str, Any]

_MOST_WRITTEN = 4  # kinds of alignment that have code of their own; tensors of others are launched by Triton


class Direction:
    """The launches of forward or of backward: from the tensors `given`, by name, and `constants` to those `wanted`.

    `made` are allocated, `packed` are part of others: of which, from which byte on, and their geometry. For a name
    wanted that is None, None is returned.
    """

    def __init__(
        self,
        given: Sequence[str],
        constants: Mapping[str, torch.Tensor],
        made: Mapping[str, Geometry],
        packed: Mapping[str, tuple[str, int, Geometry]],
        launchers: Sequence[Launcher],
        aliases: Mapping[str, str],
        wanted: Sequence[str | None],
        sizes: Sizes,
        device: torch.device,
    ) -> None:
        places = {name: place for place, name in enumerate([*given, *constants, *made, *packed])}
        prepared = [launcher.prepare(sizes, device) for launcher in launchers]
        launches = [(each, tuple(places[name] for name in each.names)) for each in prepared]
        parts = [Part(places[owner], offset, geometry) for owner, offset, geometry in packed.values()]
        places |= {name: places[own] for name, own in aliases.items() if own in places}
        returned = [None if name is None else places[name] for name in wanted]
        self._procedure = Procedure(
            device, len(given), tuple(constants.values()), tuple(made.values()), parts, launches, returned
        )
        self._written: dict[tuple[bool, ...], HostCode] = {}  # by which tensors are aligned

    def __call__(self, given: Sequence[torch.Tensor], sizes: Sizes | None = None) -> list[Any]:
        """Allocate the results and launch; `sizes` are given where floats among them differ from call to call."""
        for written in self._written.values():
            returned = written(given, sizes)
            if returned is not None:
                return returned
        device = self._procedure.device
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                return self(given, sizes)
        return self._through_triton(given, sizes)

    def _through_triton(self, given: Sequence[torch.Tensor], sizes: Sizes | None) -> list[Any]:
        procedure = self._procedure
        present = [*given, *procedure.constants]
        tensors = list(present)
        for shape, strides, dtype in procedure.allocations:
            tensors.append(torch.empty_strided(shape, strides, dtype=dtype, device=procedure.device))
        tensors += [part.of(tensors[part.owner]) for part in procedure.parts]
        for launch, places in procedure.launches:
            launch([tensors[place] for place in places], sizes)
        alignment = tuple(map(direct.is_aligned, present))
        if alignment not in self._written and len(self._written) < _MOST_WRITTEN:
            written = host_code(procedure, alignment, varies=sizes is not None)
            if written is not None:
                self._written = {**self._written, alignment: written}  # a new one: other threads go through it
        return [None if place is None else tensors[place] for place in procedure.wanted]


class Prepared:
    """Both directions; backward once for every layout of upstream gradients that has come.

    `forward` is called with the tensors of the loss; it returns the outputs, and after them what is kept for backward:
    as one tensor of bytes if it `packs`, which takes less time to allocate and to save.
    """

    def __init__(self, loss: CompiledLoss, sizes: Sizes, *, packs: bool = False) -> None:
        self._loss = loss
        self.sizes = dict(sizes)
        self._inputs = [each.name for each in loss.trace.inputs]
        outputs = [each.name for each in loss.trace.outputs]
        made = loss.outputs.geometry(sizes)
        self._saved = [each.name for each in loss.plan.saved]
        own = [name for name in self._saved if name in made and name not in outputs]
        packed = {name: made.pop(name) for name in own} if packs and len(own) > 1 else {}
        offsets, room = lay_out(map(_bytes, packed.values()))
        self._packed = {
            name: (_PACK, offset, each) for (name, each), offset in zip(packed.items(), offsets, strict=True)
        }
        self._kept = [name for name in self._saved if name not in packed]
        if packed:
            self._kept.append(_PACK)
            made[_PACK] = (room,), (1,), torch.uint8
        self._early = [root.buffer.name for root in loss.plan.early.gradients]
        wanted = [*outputs, *self._kept, *self._early]
        self.forward = self._direction(self._inputs, made, loss.forward, wanted, sizes)
        self._backwards: dict[tuple[Any, ...], Direction | None] = {}
        self._latest: tuple[Alike, bool, Direction] | None = None

    def _direction(
        self,
        given: Sequence[str],
        made: Mapping[str, Geometry],
        steps: Sequence[Any],
        wanted: Sequence[str | None],
        sizes: Sizes,
    ) -> Direction:
        loss = self._loss
        return Direction(
            given, loss.constants, made, self._packed, steps, loss.plan.aliases, wanted, sizes, loss.device
        )

    def backward(
        self,
        tensors: Sequence[torch.Tensor],
        kept: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor],
        sizes: Sizes | None,
    ) -> list[torch.Tensor | None]:
        """Launch backward, given what forward has kept; returns a gradient or None for every tensor.

        The gradients that forward has computed may be left out, for a second run.
        """
        is_early = len(kept) > len(self._kept)
        latest = self._latest
        if latest is not None and is_early is latest[1] and latest[0](*upstream):
            return latest[2]((*tensors, *kept, *upstream), sizes)
        layout = (is_early, *[gradient.stride() for gradient in upstream])
        direction = self._backwards.get(layout)
        if direction is None and layout not in self._backwards:
            direction = self._backwards[layout] = self._plan_backward(upstream, is_early)
        if direction is None or any(gradient.is_neg() for gradient in upstream):
            return self._loss.run_backward(tensors, self._unpacked(kept), upstream, dict(sizes or self.sizes))
        same = alike(upstream)
        self._latest = None if same is None else (same, is_early, direction)
        return direction((*tensors, *kept, *upstream), sizes)

    def _unpacked(self, kept: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What forward has kept, as `CompiledLoss.run_forward` returns it."""
        named = dict(zip(self._kept, kept, strict=False))
        for name, (owner, offset, geometry) in self._packed.items():
            named[name] = Part(0, offset, geometry).of(named[owner])
        return [*(named[name] for name in self._saved), *kept[len(self._kept) :]]

    def _plan_backward(self, upstream: Sequence[torch.Tensor], is_early: bool) -> Direction | None:
        """Backward for one layout; None where the upstream gradients have to be copied first."""
        plan = self._loss.plan
        arriving = self._loss.arriving(upstream, self.sizes, is_early)
        if arriving.is_copied:
            return None
        given = [*self._inputs, *self._kept, *(self._early if is_early else ())]
        given += [f"grad_{each.name}" for each in self._loss.trace.outputs]
        wanted: list[str | None] = [None] * len(self._inputs)
        for position, root in zip(plan.gradient_of, plan.gradients, strict=True):
            wanted[position] = root.buffer.name
        backward = arriving.backward
        made = backward.results.geometry(arriving.sizes)
        return self._direction(given, made, backward.steps, wanted, arriving.sizes)


_PACK = "kept for backward"


def _bytes(geometry: Geometry) -> int:
    """From the first byte of a tensor to its last."""
    shape, strides, dtype = geometry
    if 0 in shape:
        return 0
    return (1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))) * dtype.itemsize
