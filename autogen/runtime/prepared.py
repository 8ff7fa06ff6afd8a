"""Prepare a compiled loss for tensors of one geometry: what to allocate and what to launch.

A call then does nothing but that, and what torch runs between the launches.

A `Route` is one direction for all sizes. For those of a call it becomes a `Procedure`, whose first launches go through
Triton's `kernel[grid]`, which compiles; after that, host code calls Triton's launcher with addresses (`hostcode`,
`direct`). Launches go through Triton as well where a profiler has hooks, while a CUDA graph is captured (if they store
partial results), on AMD, and with a launcher of Triton's that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autogen import compat
from autogen.runtime.availability import has_no_memory
from autogen.runtime.backwards import Arriving, Sizes
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.directions import Direction
from autogen.runtime.launch import Geometry
from autogen.runtime.route import Route

MOST_LAYOUTS = 64
"""Of upstream gradients for which backward is prepared, before the oldest is forgotten."""

_FIRST = (0,)  # the outputs of most losses


class Prepared:
    """Both directions; backward once for every layout of upstream gradients, and every set of them, that has come.

    `forward` is called with the tensors of the loss; it returns the outputs, and after them what is kept for backward,
    in one tensor unless `is_apart`; the last `early` of it are for gradients that forward has computed.
    """

    def __init__(self, loss: CompiledLoss, sizes: Sizes, *, is_apart: bool = False) -> None:
        self._loss = loss
        self.sizes, self.early = dict(sizes), loss.early
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
