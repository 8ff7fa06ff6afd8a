"""What a loss returns: tensors and what else there is, in a structure that is built anew in each call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Container, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.calls.changes import Computed, Input, Output
from autogen.errors import ResultError, ValueBranchError
from autogen.tracing.domain.guards import Guards

# What one trace may give to all calls, as nobody can change it.
_PLAIN = frozenset(
    {
        *(NoneType, bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    }
)


class _Opened:
    """A dataclass's instance, as a container of its fields, or a shape, which pytree would make a tuple."""

    def __init__(self, made: type, values: Iterable[Any], names: Iterable[str] = ()) -> None:
        self.made, self.names, self.values = made, tuple(names), list(values)


def _closed(values: Iterable[Any], context: tuple[type, tuple[str, ...]]) -> Any:
    """What was opened, around other values; no `__init__` runs, as the values are those that it left."""
    made, names = context
    if made is torch.Size:
        return torch.Size(values)
    instance: Any = object.__new__(made)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance


pytree.register_pytree_node(
    _Opened,
    lambda each: (each.values, (each.made, each.names)),
    _closed,
    serialized_type_name="autogen.tracing.results._Opened",
)


def flattened(returned: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of what a loss has returned, and the structure that is built around those of each call."""
    return pytree.tree_flatten(_opened(returned))


def _opened(returned: Any) -> Any:
    return pytree.tree_map(_open, returned, is_leaf=lambda each: type(each) is torch.Size)


def _open(leaf: Any) -> Any:
    """A shape, or a dataclass's instance that has no more than its fields, as a container; else the leaf."""
    made = type(leaf)
    if made is torch.Size:
        return _Opened(made, leaf)
    if not dataclasses.is_dataclass(leaf) or made.__bases__ != (object,) or not hasattr(leaf, "__dict__"):
        return leaf
    if not leaf.__dict__.keys() <= {field.name for field in dataclasses.fields(leaf)}:
        return leaf
    return _Opened(made, map(_opened, leaf.__dict__.values()), leaf.__dict__)


def made_and_given(
    leaves: Iterable[Any], tensors: Sequence[torch.Tensor], but_for: Container[int] = ()
) -> tuple[list[torch.Tensor], dict[int, Input | Output]]:
    """The tensors among the leaves of a result that the loss has made, each once; and by id, where all are found again.

    Those of the `tensors` that it was given it returns as they are, but for some ids, and if there are any others.
    """
    returned = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    positions = {id(tensor): position for position, tensor in enumerate(tensors)}
    given = returned.keys() & {key for key in positions if key not in but_for}
    if len(given) == len(returned):
        given = set()
    made = [key for key in returned if key not in given]
    places: dict[int, Input | Output] = {key: Output(position) for position, key in enumerate(made)}
    return [returned[key] for key in made], places | {key: Input(positions[key]) for key in given}


def leaf_of(leaf: Any, places: Mapping[int, Input | Output], guards: Guards) -> Any:
    """What stands for a leaf of a result, the `places` of whose tensors are known by id; symbols are to be read once
    the loss has run.

    Raises:
        ResultError: an object that every call would share.
        ValueBranchError: a condition on values.
    """
    if isinstance(leaf, torch.Tensor):
        return places[id(leaf)]
    if isinstance(leaf, torch.SymBool):
        raise ValueBranchError("a number in its result")
    if isinstance(leaf, (torch.SymInt, torch.SymFloat)):
        return Computed(guards.expression(leaf))
    if not is_plain(leaf):
        raise ResultError(type(leaf).__name__)
    return leaf


def is_plain(leaf: Any) -> bool:
    """Whether nobody can change a leaf, so that every call may share it."""
    if isinstance(leaf, slice):
        return all(map(is_plain, (leaf.start, leaf.stop, leaf.step)))
    if type(leaf) is frozenset:
        return all(map(is_plain, leaf))
    return type(leaf) in _PLAIN or isinstance(leaf, (enum.Enum, type))
