"""What a loss changes that outlives its call, as its trace says and dispatch does it.

An attribute that is assigned a tensor, or a dictionary of some, and a tensor that is written in place, are further
outputs of the kernels. When these have run, what was assigned is assigned, what was added to a list is added, and what
was written is copied to where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

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
class Returned:
    """A part of what the loss returns: a list or a dictionary, by the keys that lead to it."""

    path: tuple[Any, ...]


@frozen
class Computed:
    """A number that a loss returns or keeps, of sizes, of numbers that a call comes with, and those that it reads."""

    expression: sympy.Expr

    def value(self, known: Mapping[str, Any]) -> Any:
        """The number, given those of a call by name; of symbols of torch's, a symbol."""
        from autogen.sizes import evaluator_of

        (number,) = evaluator_of(self.expression)(known)
        return number


class Formatted:
    """A text: parts of it, and numbers with how they are formatted. No dataclass, which would be a structure."""

    def __init__(self, parts: tuple[str | tuple[Any, str], ...]) -> None:
        self.parts = parts

    def each(self, function: Callable[[Any], Any]) -> Formatted:
        """The same of what a function makes of the numbers."""
        return Formatted(
            tuple([part if isinstance(part, str) else (function(part[0]), part[1]) for part in self.parts])
        )

    def text(self) -> str:
        """The text, where the numbers are those of a call."""
        return "".join([part if isinstance(part, str) else format(*part) for part in self.parts])


@frozen
class Assigned:
    """What is assigned to the `key` of a place of the binding: the one leaf, or a new `structure` around some.

    If it `is_given`, the place is a dictionary among the arguments.
    """

    place: int
    key: Any
    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec | None = None
    is_given: bool = False

    def value(self, leaves: Sequence[Any]) -> Any:
        """What is assigned in a call, given what its leaves are there."""
        return leaves[0] if self.structure is None else pytree.tree_unflatten(leaves, self.structure)


@frozen
class Said:
    """What is printed or logged: a function, and the leaves and the structure of all its arguments."""

    function: Callable[..., None]
    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec

    def is_wanted(self) -> bool:
        """Whether anybody would hear of it in this call."""
        is_wanted = getattr(self.function, "is_wanted", None)
        return is_wanted is None or bool(is_wanted())

    def say(self, leaves: Sequence[Any]) -> None:
        """Say it, given what the leaves are in a call."""
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        self.function(*args, **kwargs)


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
    """All that a loss changes, and what it has `said`; `outputs` is how many are made for it, and `read` are those by
    name whose numbers decide what is assigned.
    """

    assigned: list[Assigned] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    outputs: int = 0
    read: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.assigned or self.written or self.said)

    @property
    def given(self) -> set[int]:
        """Which dictionaries among the arguments are changed."""
        return {each.place for each in self.assigned if each.is_given}

    @property
    def is_connected(self) -> bool:
        """Whether a tensor is assigned that has a graph of its own."""
        leaves = (leaf for each in self.assigned for leaf in each.leaves)
        return any(isinstance(leaf, Output) and leaf.inputs for leaf in leaves)
