"""The fast path: a call like an earlier one of a loss that reads nothing but its arguments goes straight to its launch.

Dynamo finds out what a loss reads, and guards all of it, which takes some 10 µs a call. A loss declared with
`reads="arguments"` reads its arguments, and the plain attributes and buffers of its module: these are compared here,
and torch's own guards compare the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autogen import compat
from autogen.availability import is_differentiable
from autogen.dispatch import watch
from autogen.runtime.geometry import Alike, alike

if TYPE_CHECKING:
    from autogen.dispatch.site import Site
    from autogen.runtime.segments import KernelSegment

_PLAIN = frozenset({int, float, bool, str, type(None)})
_MOST_ENTRIES = 32  # kinds of calls that are known, before the oldest is forgotten
_IGNORED = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook"})


class Entry:
    """A kind of call: what it is recognised by, and its launches.

    Args:
        constants: the plain arguments and attributes.
        check: tells whether tensors have the geometry of this call's.
        order: which tensor of the call each tensor of the segment is.
        segment: what was captured.
        prepared: its launches.
        plain: the arguments of the segment that are no tensors, each at its place.
        is_differentiated: whether gradients were wanted.
    """

    __slots__ = ("apply", "arguments", "check", "constants", "is_differentiated", "order", "prepared", "segment")

    def __init__(
        self,
        constants: tuple[Any, ...],
        check: Alike,
        order: tuple[int, ...],
        segment: KernelSegment,
        prepared: Any,
        plain: list[Any],
        is_differentiated: bool,
    ) -> None:
        from autogen.runtime.segments import apply

        self.apply = apply
        self.constants, self.check, self.segment, self.prepared = constants, check, segment, prepared
        self.order = None if order == tuple(range(len(order))) else order
        self.arguments, self.is_differentiated = plain, is_differentiated

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Launch for the tensors of a call like this one."""
        if self.order is not None:
            tensors = [tensors[place] for place in self.order]
        if not self.is_differentiated:
            return self.prepared.forward(tensors, None)[0]
        return self.apply((self.prepared, None, self.segment, self.arguments, []), *tensors)


class FastPath:
    """The kinds of calls of one loss that are known, latest first."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def find(
        self, module: torch.nn.Module | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[], Any] | None:
        """What runs a call, if one like it is known."""
        entries = self._entries
        if not entries:
            return None
        read = _read(module, args, kwargs)
        if read is None:
            return None
        constants, tensors = read
        differentiated = is_differentiable()
        for entry in entries:
            if (
                entry.is_differentiated is differentiated
                and _are_same(constants, entry.constants)
                and entry.check(*tensors)
            ):
                return lambda: entry.run(tensors)
        return None

    def learn(
        self,
        site: Site,
        module: torch.nn.Module | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: Sequence[Any],
    ) -> Any:
        """Run a call by way of Dynamo, and note what it did if that was a single segment on all that it was given."""
        with watch.watching() as runs:
            result = site(*given, **kwargs)
        read = _read(module, args, kwargs)
        if len(runs) == 1 and read is not None:
            entry = _entry_of(runs[0], result, *read)
            if entry is not None:
                self._entries = [entry, *self._entries[: _MOST_ENTRIES - 1]]
        return result


def _entry_of(run: watch.Run, result: Any, constants: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> Entry | None:
    segment = run.captured.runner
    if segment is None or len(run.results) != 1 or result is not run.results[0]:
        return None
    prepared = segment.prepared_for(run.arguments)
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    wanted = [id(run.arguments[place]) for place in segment.segment.tensors]
    if prepared is None or not all(each in places for each in wanted) or len(places) < len(tensors):
        return None
    check = alike(tensors)
    if check is None:
        return None
    plain = [None if isinstance(each, torch.Tensor) else each for each in run.arguments]
    order = tuple(places[each] for each in wanted)
    return Entry(constants, check, order, segment, prepared, plain, is_differentiable() and segment.training)


def _read(
    module: torch.nn.Module | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], list[torch.Tensor]] | None:
    """What a call is recognised by: plain arguments and attributes, and tensors; None if it has anything else."""
    constants: list[Any] = []
    tensors: list[torch.Tensor] = []
    for each in args:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
            constants.append(torch.Tensor)
        elif type(each) in _PLAIN:
            constants.append(each)
        else:
            return None
    for name, each in kwargs.items():
        constants.append(name)
        if isinstance(each, torch.Tensor):
            tensors.append(each)
            constants.append(torch.Tensor)
        elif type(each) in _PLAIN:
            constants.append(each)
        else:
            return None
    if module is None:
        return tuple(constants), tensors
    for name, each in module.__dict__.items():
        kind = type(each)
        if kind in _PLAIN:
            constants.append(each)
        elif name == "_buffers":
            for buffer in each.values():
                if buffer is None:
                    constants.append(None)
                else:
                    constants.append(torch.Tensor)
                    tensors.append(buffer)
        elif each and name not in _IGNORED:  # an attribute of another kind, or hooks
            return None
    constants.append(module.__class__)
    return (tuple(constants), tensors) if compat.is_leaf_module(module) else None


def _are_same(constants: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether plain values are the same; 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if len(constants) != len(others):
        return False
    for one, other in zip(constants, others):  # noqa: B905  # of equal length
        if one is not other and (type(one) is not type(other) or repr(one) != repr(other)):
            return False
    return True
