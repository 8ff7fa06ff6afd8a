"""The fast path: a call like an earlier one of a loss that reads nothing but its arguments goes straight to its launch.

Dynamo finds out what a loss reads, and guards all of it, which takes some 10 µs a call. A loss declared with
`reads="arguments"` reads its arguments, and the plain attributes, parameters and buffers of its module: these are
compared here, and torch's own guards compare the tensors and its settings.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from autogen import compat
from autogen.availability import is_differentiable
from autogen.dispatch import watch

if TYPE_CHECKING:
    from autogen.dispatch.site import Site
    from autogen.runtime.segments import KernelSegment

_PLAIN = frozenset({int, float, bool, str, type(None)})
_MOST_ENTRIES = 32  # kinds of calls that are known, before the oldest is forgotten


class Entry:
    """A kind of call: what it is recognised by, and its launches.

    Args:
        constants: the plain arguments and attributes.
        check: tells whether tensors have the geometry of this call's.
        order: which tensor of the call each tensor of the segment is.
        prepared: the launches.
        segment: what was captured, of kernels that were.
        numbers: the arguments of the segment that are numbers.
        is_differentiated: whether gradients are wanted.
    """

    __slots__ = (
        "apply",
        "check",
        "constants",
        "is_differentiated",
        "numbers",
        "order",
        "prepared",
        "segment",
        "state",
    )

    def __init__(
        self,
        constants: tuple[Any, ...],
        check: Callable[..., bool],
        order: tuple[int, ...],
        prepared: Any,
        segment: KernelSegment | None,
        numbers: tuple[Any, ...],
        is_differentiated: bool,
    ) -> None:
        from autogen.runtime.segments import apply

        self.apply, self.state = apply, compat.state_guard()
        self.constants, self.check, self.segment, self.prepared = constants, check, segment, prepared
        self.order = None if order == tuple(range(len(order))) else order
        self.numbers, self.is_differentiated = numbers, is_differentiated

    def run(self, tensors: Sequence[torch.Tensor], segment: Any = None) -> Any:
        """Launch for the tensors of a call like this one; `segment` is the call's, if none was captured."""
        if self.order is not None:
            tensors = [tensors[place] for place in self.order]
        if not self.is_differentiated:
            return self.prepared.forward(tensors, None)[0]
        return self.apply((self.prepared, None, self.segment or segment, self.numbers, []), *tensors)


class FastPath:
    """The kinds of calls of one loss that are known, latest first."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def find(
        self, module: torch.nn.Module | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Entry, Sequence[torch.Tensor]] | None:
        """The entry of a call, and its tensors, if one like it is known."""
        entries = self._entries
        if not entries:
            return None
        read = _read(module, args, kwargs)
        if read is None:
            return None
        constants, tensors = read
        for entry in entries:
            if entry.state() and _are_same(constants, entry.constants) and entry.check(*tensors):
                return entry, tensors
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
        run = runs[0] if len(runs) == 1 else None
        segment = None if run is None else run.captured.runner
        if run is None or segment is None or len(run.results) != 1 or result is not run.results[0]:
            return result
        prepared, numbers = segment.prepared_for(run.arguments)
        if prepared is not None:
            wanted = [run.arguments[place] for place in segment.segment.tensors]
            training = is_differentiable() and segment.training
            self.note((module, args, kwargs), wanted, prepared, training, segment, numbers)
        return result

    def note(
        self,
        call: tuple[torch.nn.Module | None, Sequence[Any], Mapping[str, Any]],
        wanted: Sequence[torch.Tensor],
        prepared: Any,
        is_differentiated: bool,
        segment: KernelSegment | None = None,
        numbers: tuple[Any, ...] = (),
    ) -> None:
        """Know calls like one that was run with launches for the `wanted` of its tensors; see `Entry`."""
        read = _read(*call)
        if read is None:
            return
        constants, tensors = read
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        are_plain = all(type(each) in _PLAIN or isinstance(each, type) for each in constants)
        if not are_plain or len(places) < len(tensors) or not all(id(each) in places for each in wanted):
            return
        order = tuple(places[id(each)] for each in wanted)
        entry = Entry(constants, compat.tensor_guard(tensors), order, prepared, segment, numbers, is_differentiated)
        self._entries = [entry, *self._entries[: _MOST_ENTRIES - 1]]


def _read(
    module: torch.nn.Module | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], list[torch.Tensor]] | None:
    """What a call is recognised by: its plain arguments and attributes, and its tensors; None if it has anything else.

    Attributes that are neither plain nor tensors are found when a call is noted.
    """
    tensors: list[torch.Tensor] = []
    constants: list[Any] = []
    for each in (*args, *kwargs, *kwargs.values()) if kwargs else args:
        if isinstance(each, torch.Tensor):
            tensors.append(each)
            constants.append(torch.Tensor)
        elif type(each) in _PLAIN:
            constants.append(each)
        else:
            return None
    if module is None:
        return tuple(constants), tensors
    own = module.__dict__
    if own["_modules"]:
        return None
    for held in (own["_parameters"], own["_buffers"]):
        for each in held.values():
            if each is None:
                constants.append(None)
            else:
                constants.append(torch.Tensor)
                tensors.append(each)
    count, take = _own_attributes(module.__class__, len(own)) or _note_attributes(module)
    try:
        return (*constants, count, module.__class__, *take(own)), tensors
    except KeyError:  # other attributes than those of the first module of its class, but as many
        return None


_attributes: dict[tuple[type, int], tuple[int, Callable[[dict[str, Any]], tuple[Any, ...]]]] = {}


def _own_attributes(kind: type, count: int) -> tuple[int, Callable[[dict[str, Any]], tuple[Any, ...]]] | None:
    """What reads the attributes of a class's modules that have as many."""
    return _attributes.get((kind, count))


def _note_attributes(module: torch.nn.Module) -> tuple[int, Callable[[dict[str, Any]], tuple[Any, ...]]]:
    own = module.__dict__
    names = [name for name, each in own.items() if name not in _OF_TORCH]
    found = len(own), (operator.itemgetter(*names) if len(names) > 1 else lambda own: tuple(map(own.get, names)))
    _attributes[module.__class__, len(own)] = found
    return found


_OF_TORCH = frozenset(vars(torch.nn.Module())) - {"training"}


def _are_same(constants: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether plain values are the same; 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if len(constants) != len(others):
        return False
    for one, other in zip(constants, others):  # noqa: B905  # of equal length
        if one is not other and (type(one) is not type(other) or repr(one) != repr(other)):
            return False
    return True
