"""A compiled loss for tensors of one geometry: what to allocate and what to launch, all worked out.

A call then does nothing but that. This is only for losses that are kernels alone, without steps of torch between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autogen import direct
from autogen.launch import Geometry, Launcher, Results

if TYPE_CHECKING:
    from autogen.compiled import CompiledLoss

Sizes = Mapping[str, Any]
Allocator = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def allocators(device: torch.device) -> tuple[Allocator, Allocator]:
    """How to make a tensor of given shape, strides and dtype: where the device is the current one, and anywhere.

    The first is what Inductor's code calls, and takes half as long. It is not public: without it, both are the second.
    """
    from torch._C._dynamo import guards

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return getattr(guards, f"_empty_strided_{device.type}", empty), empty


class Direction:
    """The launches of forward or of backward: from the tensors `given`, by name, and `constants` to those `wanted`."""

    def __init__(
        self,
        given: Sequence[str],
        constants: Mapping[str, torch.Tensor],
        results: Results,
        launchers: Sequence[Launcher],
        aliases: Mapping[str, str],
        wanted: Sequence[str],
        sizes: Sizes,
        device: torch.device,
    ) -> None:
        self._empty_here, self._empty = allocators(device)
        streams = direct.streams_of(device.type)
        self._index = device.index
        # Where that is not known, no device is the current one but the CPU, which has no index.
        self._current_device = streams.current_device if streams else lambda: None
        self._constants = tuple(constants.values())
        given = [*given, *constants]
        places = {name: place for place, name in enumerate(given)}
        self._allocations: list[Geometry] = []
        for name, geometry in results.geometry(sizes).items():
            places[name] = len(given) + len(self._allocations)
            self._allocations.append(geometry)
        prepared = [launcher.prepare(sizes, device) for launcher in launchers]
        self._launches = [(each, tuple(places[name] for name in each.names)) for each in prepared]
        places |= {name: places[own] for name, own in aliases.items() if own in places}
        self._wanted = tuple(places[name] for name in wanted)

    def __call__(self, given: Sequence[torch.Tensor], sizes: Sizes | None = None) -> list[torch.Tensor]:
        """Allocate the results and launch; `sizes` are given where floats among them differ from call to call."""
        tensors = [*given, *self._constants]
        empty = self._empty_here if self._current_device() == self._index else self._empty
        for shape, strides, dtype in self._allocations:
            tensors.append(empty(shape, strides, dtype))
        for launch, places in self._launches:
            launch([tensors[place] for place in places], sizes)
        return [tensors[place] for place in self._wanted]


class Prepared:
    """Both directions; backward once for every layout of upstream gradients that has come."""

    def __init__(self, loss: CompiledLoss, sizes: Sizes) -> None:
        self._loss = loss
        self.sizes = dict(sizes)
        self._inputs = [each.name for each in loss.trace.inputs]
        outputs = [each.name for each in loss.trace.outputs]
        self._saved = [each.name for each in loss.plan.saved]
        self._early = [root.buffer.name for root in loss.plan.early.gradients]
        # Called with the tensors of the loss; returns the outputs, and after them what is kept for backward.
        wanted = [*outputs, *self._saved, *self._early]
        self.forward = self._direction(self._inputs, loss.outputs, loss.forward, wanted, sizes)
        self._backwards: dict[tuple[Any, ...], Direction | None] = {}

    def _direction(
        self, given: Sequence[str], results: Results, steps: Sequence[Any], wanted: Sequence[str], sizes: Sizes
    ) -> Direction:
        loss = self._loss
        return Direction(given, loss.constants, results, steps, loss.plan.aliases, wanted, sizes, loss.device)

    def backward(
        self,
        tensors: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor],
        sizes: Sizes | None,
    ) -> list[torch.Tensor | None]:
        """Launch backward; returns a gradient or None for every tensor. See `CompiledLoss.run_backward`."""
        is_early = len(saved) > len(self._saved)
        layout = (is_early, *[gradient.stride() for gradient in upstream])
        direction = self._backwards.get(layout)
        if direction is None and layout not in self._backwards:
            direction = self._backwards[layout] = self._plan_backward(upstream, is_early)
        if direction is None or any([gradient.is_neg() for gradient in upstream]):
            return self._loss.run_backward(tensors, saved, upstream, dict(sizes or self.sizes))
        found = direction([*tensors, *saved, *upstream], sizes)
        gradients: list[torch.Tensor | None] = [None] * len(tensors)
        for position, gradient in zip(self._loss.plan.gradient_of, found, strict=True):
            gradients[position] = gradient
        return gradients

    def _plan_backward(self, upstream: Sequence[torch.Tensor], is_early: bool) -> Direction | None:
        """Backward for one layout; None where the upstream gradients have to be copied first."""
        arriving = self._loss.arriving(upstream, self.sizes, is_early)
        if arriving.is_copied:
            return None
        given = [*self._inputs, *self._saved, *(self._early if is_early else ())]
        given += [f"grad_{each.name}" for each in self._loss.trace.outputs]
        wanted = [root.buffer.name for root in self._loss.plan.gradients]
        backward = arriving.backward
        return self._direction(given, backward.results, backward.steps, wanted, arriving.sizes)
