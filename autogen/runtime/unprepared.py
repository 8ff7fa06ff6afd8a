"""A compiled loss for calls of sizes that may never come again: nothing is kept of them.

What holds for all sizes is there already: what is launched, and the code that launches it (`autogen.runtime.hostcode`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from autogen.availability import has_no_memory
from autogen.runtime import hostcode
from autogen.runtime.backwards import Sizes
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.prepared import Prepared


class Unprepared:
    """Both directions, for any sizes (compare `autogen.runtime.prepared.Prepared`, which takes calls without code).

    Args:
        loss: one that is nothing but launches (`CompiledLoss.is_closed`).
    """

    sizes: ClassVar[Sizes] = {}  # those that hold for all calls

    def __init__(self, loss: CompiledLoss) -> None:
        self._loss = loss
        self._count, self._outputs = len(loss.joint.inputs), len(loss.joint.outputs)

    def forward(self, tensors: Sequence[torch.Tensor], sizes: Sizes | None) -> list[Any]:
        """Launch forward for some sizes; returns the outputs, and what is kept for backward."""
        loss, sizes = self._loss, sizes or {}
        packing = loss.packing(sizes)
        made, parts = tuple(packing.made.values()), tuple(packing.parts.values())
        procedure = loss.forward_route(packing).procedure(made, parts, sizes, loss.device)
        returned = hostcode.run_once(procedure, tensors)
        return Prepared(loss, sizes).forward(tensors) if returned is None else returned

    def backward(
        self, saved: Sequence[torch.Tensor], upstream: Sequence[torch.Tensor | None], sizes: Sizes | None
    ) -> list[torch.Tensor | None] | None:
        """Launch backward; returns a gradient or None for every tensor. See `Prepared.backward`."""
        loss, sizes = self._loss, sizes or {}
        arrived = [k for k, gradient in enumerate(upstream) if gradient is not None]
        if has_no_memory(upstream):
            return None
        packing = loss.packing(sizes)
        if len(upstream) < self._outputs:
            upstream = [*upstream, *[None] * (self._outputs - len(upstream))]
        is_early = len(saved) > self._count + len(packing.kept)
        arriving = loss.backwards.arriving(upstream, sizes, is_early)
        if arriving is None:
            return None
        route = loss.backward_route(packing, arriving, arrived, is_apart=False)
        made = tuple(arriving.backward.results.geometry(arriving.sizes).values())
        procedure = route.procedure(made, tuple(packing.parts.values()), arriving.sizes, loss.device)
        returned = hostcode.run_once(procedure, (*saved, *arriving.tensors.values()))
        return Prepared(loss, sizes).backward(saved, upstream, None) if returned is None else returned
