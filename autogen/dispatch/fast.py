"""The fast path: calls like an earlier one skip Dynamo's guards, if the loss reads only its arguments.

Dynamo finds out what a loss reads, and guards all of it, which takes some 10 µs a call. A loss declared with
`reads="arguments"` reads its arguments, and the plain attributes, parameters and buffers of its module: these are
compared here, and torch's own guards compare the tensors and its settings.

It is learnt from a call that ran one segment and returned its one result, or handwritten kernels that read no values on
the host. Modules with submodules, and losses with a static graph, never take it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from autogen import compat
from autogen.dispatch import watch
from autogen.runtime.availability import PLAIN_TYPES, is_differentiable

if TYPE_CHECKING:
    from autogen.dispatch.site import Site
    from autogen.runtime.segments import KernelSegment

_PLAIN = frozenset(PLAIN_TYPES)
_MOST_ENTRIES = 32  # kinds of calls that are known, before the oldest is forgotten


@dataclass(frozen=True, slots=True)
class Entry:
    """A kind of call: what it is recognised by, and its launches.

    Args:
        constants: the plain arguments and attributes.
        state: tells whether torch's settings are those of this call.
        check: tells whether tensors have the geometry of this call's.
        order: which tensor of the call each tensor of the segment is; None if they are in order.
        prepared: the launches.
        segment: what was captured; None of handwritten kernels.
        segment_of: what stands for it in a call, of handwritten kernels.
        numbers: the arguments of the segment that are numbers.
        apply: runs the launches through autograd; None if no gradients are wanted.
    """

    constants: tuple[Any, ...]
    state: Callable[[], bool]
    check: Callable[..., bool]
    order: tuple[int, ...] | None
    prepared: Any
    segment: KernelSegment | None
    segment_of: Callable[..., Any] | None
    numbers: tuple[Any, ...]
    apply: Callable[..., Any] | None

    def run(self, tensors: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Launch for the tensors of a call like this one."""
        if self.order is not None:
            tensors = [tensors[place] for place in self.order]
        if self.apply is None:
            return self.prepared.forward(tensors, None)[0]
        segment = self.segment if self.segment_of is None else self.segment_of(args, kwargs)
        return self.apply((self.prepared, None, segment, self.numbers, []), *tensors)


class FastPath:
    """The kinds of calls of one loss that are known, latest first; of a method, calls begin with the module."""

    def __init__(self, is_method: bool) -> None:
        self._is_method = is_method
        self._entries: list[Entry] = []

    def find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Entry, Sequence[torch.Tensor]] | None:
        """The entry of a call, and its tensors, if one like it is known."""
        entries = self._entries
        if not entries:
            return None
        read = self._read(args, kwargs)
        if read is None:
            return None
        constants, tensors = read
        for entry in entries:
            if entry.state() and _are_same(constants, entry.constants) and entry.check(*tensors):
                return entry, tensors
        return None

    def learn(self, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a call by way of Dynamo, and note what it did if that was a single segment on all that it was given."""
        with watch.watching() as runs:
            result = site(*args, **kwargs)
        run = runs[0] if len(runs) == 1 else None
        segment = None if run is None else run.captured.runner
        if run is None or segment is None or len(run.results) != 1 or result is not run.results[0]:
            return result
        if not run.captured.is_plain:
            return result
        prepared, numbers = segment.prepared_for(run.arguments)
        if prepared is not None:
            wanted = [run.arguments[place] for place in segment.segment.tensors]
            apply = segment.apply if is_differentiable() and segment.training else None
            self.note(args, kwargs, wanted, prepared, apply, segment=segment, numbers=numbers)
        return result

    def note(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        wanted: Sequence[torch.Tensor],
        prepared: Any,
        apply: Callable[..., Any] | None,
        *,
        segment: KernelSegment | None = None,
        segment_of: Callable[..., Any] | None = None,
        numbers: tuple[Any, ...] = (),
    ) -> None:
        """Know calls like one that was run with launches for the `wanted` of its tensors; see `Entry`."""
        read = self._read(args, kwargs)
        if read is None:
            return
        constants, tensors = read
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        are_plain = all(type(each) in _PLAIN or isinstance(each, type) for each in constants)
        if not are_plain or len(places) < len(tensors) or not all(id(each) in places for each in wanted):
            return
        order = tuple(places[id(each)] for each in wanted)
        entry = Entry(
            constants,
            compat.state_guard(),
            compat.tensor_guard(tensors),
            None if order == tuple(range(len(order))) else order,
            prepared,
            segment,
            segment_of,
            numbers,
            apply,
        )
        self._entries = [entry, *self._entries[: _MOST_ENTRIES - 1]]

    def _read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], list[torch.Tensor]] | None:
        """What a call is recognised by: its plain arguments and attributes, and its tensors; None if it has others.

        Attributes that are neither plain nor tensors are found when a call is noted.
        """
        given = args[1:] if self._is_method else args
        tensors: list[torch.Tensor] = []
        constants: list[Any] = []
        for each in (*given, *kwargs, *kwargs.values()) if kwargs else given:
            if isinstance(each, torch.Tensor):
                tensors.append(each)
                constants.append(torch.Tensor)
            elif type(each) in _PLAIN:
                constants.append(each)
            else:
                return None
        if not self._is_method:
            return tuple(constants), tensors
        module = args[0]
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
        take = _takes.get((module.__class__, len(own))) or _note_attributes(module)
        try:
            return (*constants, module.__class__, *take(own)), tensors
        except KeyError:  # other attributes than those of the first module of its class, but as many
            return None


_takes: dict[tuple[type, int], Callable[[dict[str, Any]], tuple[Any, ...]]] = {}
"""What takes the attributes of a class's modules that have as many."""


def _note_attributes(module: torch.nn.Module) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    own = module.__dict__
    names = [name for name in own if name not in _OF_TORCH]
    take = operator.itemgetter(*names) if len(names) > 1 else lambda own: tuple([own[name] for name in names])
    _takes[module.__class__, len(own)] = take
    return take


_OF_TORCH = frozenset(vars(torch.nn.Module())) - {"training"} | {"forward"}  # which a decorated instance has


def _are_same(constants: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether plain values are the same; 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if len(constants) != len(others):
        return False
    for one, other in zip(constants, others):  # noqa: B905  # of equal length
        if one is not other and (type(one) is not type(other) or repr(one) != repr(other)):
            return False
    return True
