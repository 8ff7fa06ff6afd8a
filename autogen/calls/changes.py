"""What a loss changes that outlives its call, as its trace says and dispatch does it.

An attribute that is assigned a tensor, and a tensor that is written in place, are further outputs of the kernels. When
these have run, what was assigned is assigned, and what was written is copied to where it belongs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from autogen.frozen import frozen

if TYPE_CHECKING:
    import sympy


@frozen
class Output:
    """An output of the trace; without its graph if it `is_detached`. One that backward's kernels have no gradient for
    has a graph of its own if it depends on `inputs` that have one.
    """

    position: int
    is_detached: bool = False
    inputs: tuple[int, ...] = ()


@frozen
class Input:
    """An input of the trace itself, or without its graph."""

    position: int
    is_detached: bool = False


@frozen
class Computed:
    """A number that a loss returns or keeps, of sizes, of numbers that a call comes with, and those that it reads."""

    expression: sympy.Expr

    def value(self, known: Mapping[str, Any]) -> Any:
        """The number, given those of a call by name; of symbols of torch's, a symbol."""
        from autogen.sizes import evaluator_of

        (number,) = evaluator_of(self.expression)(known)
        return number


@frozen
class Assigned:
    """`value` is assigned to the `key` of a place of the binding."""

    place: int
    key: Any
    value: Output | Input | Computed | torch.SymInt | torch.SymFloat | float | str | None


@frozen
class Written:
    """An input whose memory gets the value of an output; if it `is_replaced`, it gets the output's memory.

    If it `is_unseen`, all was written by way of `.data`, which autograd does not count as a change.
    """

    position: int
    output: int
    is_replaced: bool
    is_unseen: bool


@dataclass
class State:
    """All that a loss changes; `outputs` is how many are made for it, and `read` are those by name whose numbers decide
    what is assigned.
    """

    assigned: list[Assigned] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    outputs: int = 0
    read: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.assigned or self.written)

    @property
    def is_connected(self) -> bool:
        """Whether a tensor is assigned that has a graph of its own."""
        return any(isinstance(each.value, Output) and each.value.inputs for each in self.assigned)
