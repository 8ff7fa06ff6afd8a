"""The steps of a prepared call on one device: tensors by number, allocations, launches, and calls of torch.

`autogen.runtime.prepared` goes through it; `autogen.runtime.hostcode` writes it out as a function.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from autogen.ir.torch_step import TorchStep
from autogen.runtime import direct

if TYPE_CHECKING:
    from autogen.runtime.launch import Geometry


Seen = Sequence[tuple[tuple[int, ...], bool]]
"""What torch has made in one call, each tensor: its strides, and whether it is aligned."""


class Launchable(Protocol):
    """A prepared launch: `autogen.runtime.launch.Launch`, or one of a handwritten kernel.

    A call goes through Triton. What Triton has `compiled`, by which of the tensors are aligned, is there to be launched
    directly: with pointers to the tensors and to the partial results, which are at `offsets` in `room` bytes, and with
    `numbers`.
    """

    grid: tuple[int, ...]
    compiled: dict[tuple[bool, ...], direct.Compiled]
    offsets: tuple[int, ...]
    room: int

    def numbers(self, sizes: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """What comes after the pointers. `sizes` are None if they are those of the preparation."""

    def __call__(self, tensors: Sequence[Any], sizes: Mapping[str, Any] | None) -> None:
        """Launch by Triton."""


@dataclass(frozen=True)
class Launching:
    """A launch, and the tensors that it takes, None for None."""

    launch: Launchable
    places: tuple[int | None, ...]

    @property
    def partials(self) -> int:
        """How many kinds of partial results it has."""
        return len(self.launch.offsets)

    def run(self, tensors: list[Any], sizes: Mapping[str, Any] | None) -> None:
        """Launch by Triton."""
        self.launch([None if place is None else tensors[place] for place in self.places], sizes)


@dataclass(frozen=True)
class Calling:
    """A step of torch: the tensors that it reads, in the order of its `reads`, and makes; the sizes of the
    preparation.
    """

    step: TorchStep
    read: tuple[int, ...]
    made: tuple[int | None, ...]
    sizes: Mapping[str, Any]
    device: torch.device

    def numbers(self, sizes: Mapping[str, Any] | None) -> tuple[Any, ...]:
        """The sizes among its arguments. `sizes` are None if they are those of the preparation."""
        return self.step.numbers(self.sizes if sizes is None else sizes)

    def run(self, tensors: list[Any], sizes: Mapping[str, Any] | None) -> None:
        """Have torch run it."""
        named = {name: tensors[place] for name, place in zip(self.step.reads, self.read, strict=True)}
        self.step(named, self.sizes if sizes is None else sizes, self.device)
        for place, buffer in zip(self.made, self.step.results, strict=True):
            if place is not None and buffer is not None:
                tensors[place] = named[buffer.name]


@dataclass(frozen=True)
class Procedure:
    """What a call does for some sizes.

    Its tensors are numbered: those `given`, `constants`, what is allocated, parts of others, and what torch makes.
    `parts` are the number of the owner, the byte of it at which each begins, and its geometry. Returned are those
    `wanted`. `written` is what `autogen.runtime.hostcode` has made of procedures that differ only by sizes.
    """

    device: torch.device
    given: int
    constants: Sequence[torch.Tensor]
    allocations: Sequence[Geometry]
    parts: Sequence[tuple[int, int, Geometry]]
    steps: Sequence[Launching | Calling]
    wanted: tuple[int | None, ...]
    written: dict[Hashable, FunctionType] = field(default_factory=dict, repr=False)

    @property
    def present(self) -> int:
        """How many tensors are there before anything is allocated."""
        return self.given + len(self.constants)

    @property
    def first_part(self) -> int:
        """The number of the first part."""
        return self.present + len(self.allocations)

    @property
    def first_made(self) -> int:
        """The number of the first tensor that torch makes."""
        return self.first_part + len(self.parts)

    @property
    def made(self) -> int:
        """How many tensors torch makes."""
        return sum(place is not None for step in self.called for place in step.made)

    @property
    def called(self) -> list[Calling]:
        """What torch runs among the steps."""
        return [step for step in self.steps if isinstance(step, Calling)]

    @property
    def launched(self) -> list[Launching]:
        """The launches among the steps."""
        return [step for step in self.steps if isinstance(step, Launching)]
