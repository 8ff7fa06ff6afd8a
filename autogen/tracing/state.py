"""Finding what a loss changes that outlives its call, when its trace has been recorded.

An attribute that is assigned a tensor, or a structure of some, and a tensor that is written in place, become further
outputs of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from autogen.calls.changes import Assigned, Computed, Formatted, Input, Output, Returned, Said, State, Written
from autogen.calls.places import containers_in
from autogen.calls.spots import HIDDEN, MISSING
from autogen.calls.surroundings import Change
from autogen.errors import StateChangeError, UnsupportedOpError
from autogen.tracing.aten.aliases import is_where
from autogen.tracing.domain.guards import Guards
from autogen.tracing.python.said import Saying
from autogen.tracing.recording import Recording
from autogen.tracing.results import flattened, is_plain
from autogen.tracing.symbols import NUMBERS

_OF_NUMBERS = "Keep it in a tensor; a number may have kernels when it has changed twice, and is torch's before."


class _Refused(Exception):
    """A change that cannot be made again."""


class Collector:
    """Finds the state of one trace; `tensors` are the outputs that are made for it, by name.

    Args:
        recording: of what has run.
        fakes: the inputs.
        results: the outputs that the trace has in any case.
        returned: what the loss returns.
        is_once: whether the trace is for one call alone, so that numbers cannot have been others.
    """

    def __init__(
        self,
        recording: Recording,
        fakes: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        returned: Any,
        is_once: bool,
    ) -> None:
        self._is_once = is_once
        self._recording = recording
        self._fakes = list(fakes)
        self._outputs = list(results)
        self._results = len(results)
        self.tensors: dict[str, torch.Tensor] = {}
        self._state = State()
        self._returned = returned
        self._shared = list(map(id, containers_in(returned)))
        self._kept: set[int] = set()

    def collect(self, changes: Sequence[Change], heard: Sequence[Saying]) -> None:
        """Note what is to be done after the kernels.

        Raises:
            StateChangeError: some of the changes cannot be made again.
            UnsupportedOpError: what the loss has said cannot be said again.
        """
        refused, remedy = [], ""
        for change in changes:
            try:
                self._state.assigned.append(self._assigned(change))
            except _Refused:
                refused.append(change.difference.name)
                remedy = _OF_NUMBERS if type(change.difference.now) in (int, float) else remedy
        replaced = self._recording.replaced
        written = [*self._recording.written.values(), *(tensor for tensor, _ in replaced.values())]
        given = _memory_of([data for _, data in replaced.values()])
        if _memory_of(self._outputs) & (_memory_of(written) | given):
            refused.append("a tensor that it returns or assigns, too")
            remedy = "Return or assign a clone of what is written to."
        elif _memory_of(self._fakes) & given:
            refused.append("a tensor that is seen elsewhere, too")
        if refused:
            raise StateChangeError(", ".join(dict.fromkeys(refused)), remedy=remedy)
        for tensor in written:
            position = self._position(tensor)
            output, is_unseen = self._add("data", tensor), tensor._version == 0
            self._state.written.append(Written(position, output, id(tensor) in replaced, is_unseen))
        self._state.said = list(map(self._said, heard))
        self._state.outputs = len(self.tensors)

    def state(self, guards: Guards, numbers: Mapping[str, int]) -> State:
        """The state, with the names that the trace has for sizes. Of the `numbers` that the loss reads, outputs tell.

        Raises:
            StateChangeError: a number is assigned that none of these tells.
        """
        known = {str(symbol) for symbol in guards.symbols}.union(numbers)

        def named(leaf: Any) -> Any:
            if isinstance(leaf, Formatted):
                return leaf.each(named)
            if not isinstance(leaf, NUMBERS):
                return leaf
            expression = guards.expression(leaf)
            names = set(map(str, expression.free_symbols))
            if not names <= known:
                raise StateChangeError("a number")
            self._state.read |= {name: numbers[name] for name in names & numbers.keys()}
            return Computed(expression)

        state = self._state
        state.assigned = [replace(each, leaves=tuple(map(named, each.leaves))) for each in state.assigned]
        state.said = [replace(each, leaves=tuple(map(named, each.leaves))) for each in state.said]
        return state

    def _position(self, tensor: torch.Tensor) -> int:
        return next(k for k, fake in enumerate(self._fakes) if fake is tensor)

    def _add(self, name: str, tensor: torch.Tensor) -> int:
        self._outputs.append(tensor)
        self.tensors[f"new_{len(self.tensors)}_{name}"] = tensor
        return len(self._outputs) - 1

    def _assigned(self, change: Change) -> Assigned:
        now = change.difference.now
        if change.difference.key is MISSING:
            raise _Refused
        kept = containers_in(now)
        if not kept and not isinstance(now, tuple):
            return self._to(change, (self._value(change),))
        ids = list(map(id, kept))
        if kept and kept[0] is now and self._shared.count(id(now)) == 1:
            return self._to(change, (self._part(now),))
        is_seen_elsewhere = len(set(ids)) < len(ids) or not {*self._kept, *self._shared}.isdisjoint(ids)
        if is_seen_elsewhere or any(map(_has_more, kept)):
            raise _Refused
        self._kept.update(ids)
        leaves, structure = flattened(now)
        name = change.difference.name
        return self._to(change, tuple([self._leaf(name, leaf) for leaf in leaves]), structure)

    @staticmethod
    def _to(change: Change, leaves: tuple[Any, ...], structure: pytree.TreeSpec | None = None) -> Assigned:
        return Assigned(change.place, _fixed(change.difference.key), leaves, structure, change.is_given)

    def _said(self, saying: Saying) -> Said:
        tensors = [leaf for leaf in saying.leaves if isinstance(leaf, torch.Tensor)]
        if any(tensor.requires_grad for tensor in tensors):  # whose text tells of its graph
            raise UnsupportedOpError("what is printed or logged of a tensor with a graph", where=saying.where)
        if list(map(self._recording.node_of, tensors)) != saying.nodes:
            raise UnsupportedOpError(
                "what is printed or logged of a tensor that is written to later", where=saying.where
            )
        try:
            leaves = tuple([self._leaf("what it prints", leaf) for leaf in saying.leaves])
            return Said(saying.function, leaves, saying.structure)
        except _Refused:
            raise UnsupportedOpError("what is printed or logged here", where=saying.where) from None

    def _part(self, container: Any) -> Returned:
        """Where a list or a dictionary is in what the loss returns."""
        found, _ = pytree.tree_flatten_with_path(self._returned, is_leaf=lambda each: each is container)
        return Returned(next(path for path, each in found if each is container))

    def _value(self, change: Change) -> Any:
        before, now = change.difference.before, change.difference.now
        if isinstance(now, (torch.Tensor, *NUMBERS)) or before is HIDDEN:
            return self._leaf(change.difference.name, now)
        is_new = change.is_given and before is MISSING  # what no later call reads, unless it is given that
        if now is None or type(now) is bool or ((self._is_once or is_new) and type(now) in (int, float, str)):
            return now
        if type(now) is int and type(before) is not int and now in (0, 1):  # a size that is no symbol; no counter
            return now
        raise _Refused

    def _leaf(self, name: str, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if type(leaf) is not FakeTensor or isinstance(leaf, torch.nn.Parameter):
                raise _Refused
            return self._tensor(name, leaf)
        if isinstance(leaf, (Formatted, *NUMBERS)) or is_plain(leaf):
            return leaf
        raise _Refused

    def _tensor(self, name: str, tensor: torch.Tensor) -> Output | Input:
        """Where a tensor is to be found after the kernels."""
        for position, fake in enumerate(self._fakes):
            if fake is tensor:
                return Input(position)
        for position, output in enumerate(self._outputs):
            if output is tensor:
                return Output(position, inputs=inputs_of(tensor, self._fakes) if position >= self._results else ())
        memory = tensor.untyped_storage()._cdata
        if memory in self._recording.frozen:
            raise _Refused
        sharing = [each for each in (*self._fakes, *self._outputs) if each.untyped_storage()._cdata == memory]
        if sharing:
            if len(sharing) > 1 or not is_where(sharing[0], tensor) or tensor.requires_grad:
                raise _Refused
            found = self._tensor(name, sharing[0])
            return Input(found.position, True) if isinstance(found, Input) else Output(found.position, True)
        inputs = inputs_of(tensor, self._fakes)
        if (
            tensor.requires_grad != bool(inputs)
            or tensor.device != self._fakes[0].device
            or tensor.layout != torch.strided
        ):
            raise _Refused
        if tensor.is_neg() or tensor.is_conj():
            raise _Refused
        return Output(self._add(name, tensor), inputs=inputs)


def _has_more(container: Any) -> bool:
    """Whether a list or a dictionary has attributes, or keys that are sizes."""
    is_by_sizes = isinstance(container, dict) and not all(map(is_plain, map(_fixed, container)))
    return bool(getattr(container, "__dict__", None)) or is_by_sizes


def _fixed(key: Any) -> Any:
    """A key, with the sizes in it as they are in this call: they were fixed when it was looked for."""
    if type(key) is tuple:
        return tuple(map(_fixed, key))
    return int(key) if isinstance(key, torch.SymInt) else key


def inputs_of(tensor: torch.Tensor, fakes: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Which inputs, of which there are `fakes`, a tensor is connected with in autograd's graph."""
    if tensor.is_leaf:
        return tuple(k for k, fake in enumerate(fakes) if fake is tensor and fake.requires_grad)
    seen: set[Any] = set()
    found: set[int] = set()
    todo = [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.update(k for k, fake in enumerate(fakes) if fake is getattr(node, "variable", None))
        todo += [following for following, _ in node.next_functions]
    return tuple(sorted(found))


def _memory_of(tensors: Sequence[torch.Tensor]) -> set[Any]:
    return {each.untyped_storage()._cdata for each in tensors}
