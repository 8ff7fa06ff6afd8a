"""Run forward or backward for tensors of one geometry, by host code once Triton has compiled the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autogen import compat
from autogen.runtime import direct
from autogen.runtime.hostcode import HostCode, host_code
from autogen.runtime.launch import empty
from autogen.runtime.packing import part
from autogen.runtime.procedure import Procedure, Seen

_MOST_WRITTEN = 4  # kinds of alignment that have code of their own; tensors of others are launched by Triton


class Direction:
    """The steps of forward or of backward.

    Args:
        procedure: what is allocated and launched.
        label: what profilers call it.
        strides: those among the sizes that no call knows: of the upstream gradients.
    """

    def __init__(self, procedure: Procedure, label: str, strides: Mapping[str, Any] | None = None) -> None:
        self._procedure, self._label = procedure, label
        self._written: dict[tuple[bool, ...], HostCode] = {}  # by which tensors are aligned
        self._codes: tuple[HostCode, ...] = ()  # all of it
        self._seen: dict[tuple[bool, ...], Seen] = {}  # the calls by Triton
        self._strides = strides

    def __call__(self, given: Sequence[torch.Tensor], sizes: Mapping[str, Any] | None = None) -> list[Any]:
        """Allocate, and go through the steps; `sizes` are given where floats among them differ from call to call."""
        with compat.profiled(self._label):
            return self._run(given, sizes)

    def _run(self, given: Sequence[torch.Tensor], sizes: Mapping[str, Any] | None) -> list[Any]:
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
        self, given: Sequence[torch.Tensor], sizes: Mapping[str, Any] | None, alignment: tuple[bool, ...]
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
