"""A compiled loss for tensors of one geometry: what to allocate and what to launch, all worked out.

A call then does nothing but that, and what torch runs between the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autogen import compat
from autogen.availability import has_no_memory
from autogen.runtime import direct
from autogen.runtime.backwards import Arriving, Sizes
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.hostcode import HostCode, host_code
from autogen.runtime.launch import Geometry, empty
from autogen.runtime.packing import part
from autogen.runtime.procedure import Procedure, Seen
from autogen.runtime.route import Route

MOST_LAYOUTS = 64
"""Of upstream gradients for which backward is prepared, before the oldest is forgotten."""

_FIRST = (0,)  # the outputs of most losses
_MOST_WRITTEN = 4  # kinds of alignment that have code of their own; tensors of others are launched by Triton


class Direction:
    """The steps of forward or of backward.

    Args:
        procedure: what is allocated and launched.
        label: what profilers call it.
        strides: those among the sizes that no call knows: of the upstream gradients.
    """

    def __init__(self, procedure: Procedure, label: str, strides: Sizes | None = None) -> None:
        self._procedure, self._label = procedure, label
        self._written: dict[tuple[bool, ...], HostCode] = {}  # by which tensors are aligned
        self._codes: tuple[HostCode, ...] = ()  # all of it
        self._seen: dict[tuple[bool, ...], Seen] = {}  # the calls by Triton
        self._strides = strides

    def __call__(self, given: Sequence[torch.Tensor], sizes: Sizes | None = None) -> list[Any]:
        """Allocate, and go through the steps; `sizes` are given where floats among them differ from call to call."""
        with compat.profiled(self._label):
            return self._run(given, sizes)

    def _run(self, given: Sequence[torch.Tensor], sizes: Sizes | None) -> list[Any]:
        if sizes is not None and self._strides:
            sizes = {**sizes, **self._strides}
        for code in self._codes:
            returned = code(given, sizes)
            if returned is not None:
                return returned
        device = self._procedure.device
        if device.type == "cuda" and torch.cuda.current_device() != device.index:
            with torch.cuda.device(device):
                return self._run(given, sizes)
        alignment = tuple(map(direct.is_aligned, (*given, *self._procedure.constants)))
        new = self._write(alignment, varies=sizes is not None)
        returned = None if new is None else new(given, sizes)
        return self._through_triton(given, sizes, alignment) if returned is None else returned

    def _write(self, alignment: tuple[bool, ...], *, varies: bool) -> HostCode | None:
        """Code for calls whose kernels Triton has launched, and whose steps torch has run before."""
        seen = self._seen.get(alignment) if self._procedure.called else []
        if seen is None or alignment in self._written or len(self._written) >= _MOST_WRITTEN:
            return None
        written = host_code(self._procedure, alignment, seen, varies=varies)
        if written is not None:
            self._written[alignment] = written
            self._codes = tuple(self._written.values())  # a new one: other threads go through it
        return written

    def _through_triton(
        self, given: Sequence[torch.Tensor], sizes: Sizes | None, alignment: tuple[bool, ...]
    ) -> list[Any]:
        procedure = self._procedure
        present = [*given, *procedure.constants]
        tensors: list[Any] = present + [empty(each, procedure.device) for each in procedure.allocations]
        tensors += [part(tensors[owner], offset, geometry) for owner, offset, geometry in procedure.parts]
        tensors += [None] * procedure.made
        for step in procedure.steps:
            step.run(tensors, sizes)
        self._seen[alignment] = [(each.stride(), direct.is_aligned(each)) for each in tensors[procedure.first_made :]]
        return [None if place is None else tensors[place] for place in procedure.wanted]


class Prepared:
    """Both directions; backward once for every layout of upstream gradients, and every set of them, that has come.

    `forward` is called with the tensors of the loss; it returns the outputs, and after them what is kept for backward,
    in one tensor unless `is_apart`.
    """

    def __init__(self, loss: CompiledLoss, sizes: Sizes, *, is_apart: bool = False) -> None:
        self._loss = loss
        self.sizes = dict(sizes)
        self._is_apart = is_apart
        self._packing = packing = loss.packing(self.sizes, is_apart=is_apart)
        route = loss.forward_route(packing, is_apart=is_apart)
        forward = self._direction(route, packing.made, self.sizes, "forward")
        self.forward: Callable[..., list[Any]] = forward
        self._backwards: dict[tuple[Any, ...], Direction] = {}
        self._latest: tuple[Callable[..., bool], int, tuple[int, ...], Direction] | None = None

    def _direction(self, route: Route, made: Mapping[str, Geometry], sizes: Sizes, which: str) -> Direction:
        label = label_of(self._loss.plan.provenance.loss, which)
        parts = tuple(self._packing.parts.values())
        procedure = route.procedure(tuple(made.values()), parts, sizes, self._loss.device)
        if len(sizes) == len(self.sizes):
            return Direction(procedure, label)
        return Direction(procedure, label, {name: stride for name, stride in sizes.items() if name not in self.sizes})

    def backward(
        self, saved: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor | None], sizes: Sizes | None
    ) -> list[torch.Tensor | None] | None:
        """Launch backward; returns a gradient or None for every tensor, or None if torch's formula has to give them.

        Saved are the tensors of the loss, and after them what forward has kept; its `early` gradients may be missing,
        for a second run. Outputs without an upstream gradient, and those beyond, contribute nothing; at least one has
        one.
        """
        arrived: tuple[int, ...] = _FIRST
        present: Sequence[Any] = upstream
        if len(upstream) > 1:
            arrived = tuple([k for k, gradient in enumerate(upstream) if gradient is not None])
            present = [upstream[k] for k in arrived]
        if self._latest is not None:
            same, count, places, direction = self._latest
            if len(saved) == count and arrived == places and same(*present):
                return direction((*saved, *present), sizes)
        if has_no_memory(present):  # never like those of a call before
            return None
        joint = self._loss.joint
        is_early = len(saved) > len(joint.inputs) + len(self._packing.kept)
        upstream = [*upstream, *[None] * (len(joint.outputs) - len(upstream))]
        arriving = self._loss.backwards.arriving(upstream, sizes or self.sizes, is_early)
        return None if arriving is None else self._backward_of(saved, arriving, arrived, sizes)

    def _backward_of(
        self, saved: Sequence[torch.Tensor], arriving: Arriving, arrived: tuple[int, ...], sizes: Sizes | None
    ) -> list[torch.Tensor | None]:
        """The same for upstream gradients in another layout than that of the latest."""
        present = list(arriving.tensors.values())
        layout = (arriving.kind, *[gradient.stride() for gradient in present])
        direction = self._backwards.get(layout)
        if direction is None:
            make_room(MOST_LAYOUTS, self._backwards)
            direction = self._backwards[layout] = self._plan_backward(arriving)
        else:  # many layouts come once
            self._latest = compat.tensor_guard(present), len(saved), arrived, direction
        return direction((*saved, *present), sizes)

    def _plan_backward(self, arriving: Arriving) -> Direction:
        """Backward for one layout."""
        made = arriving.backward.results.geometry(arriving.sizes)
        route = self._loss.backward_route(self._packing, arriving, is_apart=self._is_apart)
        return self._direction(route, made, arriving.sizes, "backward")


def label_of(loss: str, direction: str) -> str:
    """What profilers call forward or backward of a loss."""
    return f"autogen::{loss}.{direction}"


def make_room(most: int, table: dict[Any, Any]) -> None:
    """Drop the oldest of a table's entries if there are too many."""
    if len(table) >= most:
        for oldest in list(table)[: max(most // 8, 1)]:
            table.pop(oldest, None)
