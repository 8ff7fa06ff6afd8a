"""Prepare a handwritten loss for tensors of one geometry: what to allocate and what to launch.

It is planned on the meta device. Which of its tensors share memory then says what is given, and what is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from autogen import compat
from autogen.runtime import direct, scratch
from autogen.runtime.availability import has_no_memory
from autogen.runtime.directions import Direction
from autogen.runtime.handwritten import COUNTER, PARTIALS, BoundHandwritten, Launch, stand_in
from autogen.runtime.launch import Geometry
from autogen.runtime.prepared import MOST_LAYOUTS, label_of, make_room
from autogen.runtime.procedure import Launching, Procedure


class PreparedLaunch:
    """A launch of a planned loss (compare `autogen.runtime.launch.Launch`), called with its `tensors` in their order.

    Kernels have their pointers first, then partial results and a counter, if they have some, and then numbers.
    """

    def __init__(self, launch: Launch, device: torch.device) -> None:
        arguments = {name: launch.arguments[name] for name in launch.kernel.arg_names}
        self._partials: torch.Tensor | None = arguments[PARTIALS] if arguments.get(PARTIALS) is not None else None
        is_scratch = {PARTIALS, COUNTER} if self._partials is not None else set()
        names = list(arguments)
        given = [k for k, each in enumerate(arguments.values()) if _is_tensor(each)]
        end = names.index(PARTIALS) if is_scratch else given[-1] + 1
        self._names = names[:end]
        self.tensors: list[torch.Tensor | None] = [arguments[name] for name in self._names]
        rest = {name: arguments[name] for name in names[end:] if name not in is_scratch}
        assert not any(map(_is_tensor, rest.values()))
        assert all(each is None or _is_tensor(each) for each in self.tensors)
        self.grid = launch.grid
        self.compiled: dict[tuple[bool, ...], direct.Compiled] = {}
        self.offsets, self.room = scratch.lay_out([] if self._partials is None else [self._partials.nbytes])
        self._numbers = tuple(rest.values())
        self._launch = replace(launch, arguments=rest)  # which keeps none of the tensors
        self._device = device

    def numbers(self, sizes: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """What comes after the pointers."""
        return self._numbers

    def __call__(self, tensors: Sequence[torch.Tensor | None], sizes: Mapping[str, Any] | None = None) -> None:
        """Launch."""
        arguments: dict[str, Any] = dict(self._launch.arguments)
        for name, planned, tensor in zip(self._names, self.tensors, tensors, strict=True):
            arguments[name] = tensor if planned is None or tensor is None else tensor.view(planned.dtype)
        if self._partials is not None:
            arguments[PARTIALS] = torch.empty_like(self._partials, device=self._device)
            arguments[COUNTER] = scratch.ticket_counter(self._device)
        compiled = replace(self._launch, arguments=arguments)(self._device)
        if compiled is not None:
            self.compiled[tuple(direct.is_aligned(each) for each in tensors if each is not None)] = compiled


class UnpreparedHandwritten:
    """A `call` of a geometry that may never come again: planned each time it runs (compare `PreparedHandwritten`)."""

    early = 0

    def __init__(self, call: BoundHandwritten, sizes: Mapping[str, int], name: str) -> None:
        self.call, self.name = call, name
        self.sizes = dict(sizes)

    def forward(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Launch forward; returns the output, and what is kept for backward."""
        planned = self.call.loss.forward(self.call.arguments(tensors, self.sizes))
        with compat.profiled(label_of(self.name, "forward")):
            for launch in planned.launches:
                launch(planned.output.device)
        return [planned.output, *planned.saved]

    def backward(
        self, saved: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor], sizes: Mapping[str, Any] | None
    ) -> list[torch.Tensor | None] | None:
        """Launch backward; returns a gradient or None for every tensor, None for gradients without memory."""
        if has_no_memory(upstream):
            return None
        call, count = self.call, len(self.call.inputs)
        gradient = upstream[0].resolve_neg()  # kernels read memory as it is
        arguments = call.arguments(saved[:count], self.sizes)
        planned = call.loss.backward(arguments, saved[count:], gradient, call.wanted)
        with compat.profiled(label_of(self.name, "backward")):
            for launch in planned.launches:
                launch(gradient.device)
        return [planned.gradients.get(name) for name in call.inputs]


class PreparedHandwritten:
    """Both directions of a `call` (compare `autogen.runtime.prepared.Prepared`).

    It is prepared for tensors like some, found ones included, and for `sizes`, the numbers that are read; `name` is the
    loss's.
    """

    early = 0  # forward computes no gradient

    def __init__(
        self, call: BoundHandwritten, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int], name: str
    ) -> None:
        self.name = name
        self._inputs = [stand_in(each) for each in tensors]
        self._device = call.device(tensors)
        self._arguments = call.arguments(self._inputs, sizes)
        self.call = call
        self.sizes = dict(sizes)
        planned = call.loss.forward(self._arguments)
        self._saved = planned.saved
        own = {compat.storage_of(each) for each in self._saved if each.nbytes == each.untyped_storage().nbytes()}
        given = set(map(compat.storage_of, self._inputs))
        assert len(own - given) == len(self._saved), "memory of something else is saved"
        self.forward = self._direction(self._inputs, [planned.output, *self._saved], planned.launches, "forward")
        self._backwards: dict[tuple[int, ...], Direction] = {}
        self._latest: tuple[Callable[..., bool], Direction] | None = None

    def backward(
        self, saved: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor], sizes: Mapping[str, Any] | None
    ) -> list[torch.Tensor | None] | None:
        """Launch backward; returns a gradient or None for every tensor, None for gradients without memory."""
        latest = self._latest
        if latest is not None and latest[0](*upstream):
            return latest[1]((*saved, *upstream))
        if has_no_memory(upstream):
            return None
        (gradient,) = upstream = [each.resolve_neg() for each in upstream]  # kernels read memory as it is
        direction = self._backwards.get(gradient.stride())
        if direction is None:
            direction = self._plan_backward(stand_in(gradient))
            make_room(MOST_LAYOUTS, self._backwards)
            self._backwards[gradient.stride()] = direction
        self._latest = compat.tensor_guard(upstream), direction
        return direction((*saved, *upstream))

    def _plan_backward(self, upstream: torch.Tensor) -> Direction:
        """Backward for one layout of its upstream gradient."""
        planned = self.call.loss.backward(self._arguments, self._saved, upstream, self.call.wanted)
        wanted = [planned.gradients.get(name) for name in self.call.inputs]
        return self._direction([*self._inputs, *self._saved, upstream], wanted, planned.launches, "backward")

    def _direction(
        self,
        given: Sequence[torch.Tensor],
        wanted: Sequence[torch.Tensor | None],
        launches: Iterable[Launch],
        which: str,
    ) -> Direction:
        prepared = [PreparedLaunch(launch, self._device) for launch in launches]
        owners = {compat.storage_of(each): place for place, each in enumerate(given)}
        made: list[Geometry] = []
        for each in (*wanted, *(each for launch in prepared for each in launch.tensors)):
            if each is not None and compat.storage_of(each) not in owners:
                owners[compat.storage_of(each)] = len(owners)
                made.append(_geometry(each))
        parts: dict[tuple[int, int], Geometry] = {}

        def place(tensor: torch.Tensor | None) -> int | None:
            if tensor is None:
                return None
            owner, offset = owners[compat.storage_of(tensor)], int(tensor.storage_offset()) * tensor.itemsize
            if not offset:
                return owner
            parts.setdefault((owner, offset), (tuple(tensor.shape), tensor.stride(), tensor.dtype))
            return len(owners) + list(parts).index((owner, offset))

        steps = [Launching(launch, tuple(map(place, launch.tensors))) for launch in prepared]
        returned = tuple([None if each is None else owners[compat.storage_of(each)] for each in wanted])
        within = [(*part, geometry) for part, geometry in parts.items()]
        procedure = Procedure(self._device, len(given), (), made, within, steps, returned)
        return Direction(procedure, label_of(self.name, which))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _geometry(tensor: torch.Tensor) -> Geometry:
    """What to allocate for a tensor: itself, or bytes for all that share its memory."""
    size = tensor.untyped_storage().nbytes()
    if tensor.nbytes == size:
        return tuple(tensor.shape), tensor.stride(), tensor.dtype
    return (size,), (1,), torch.uint8
