"""Finding what a loss changes that outlives its call, when its trace has been recorded.

An attribute that is assigned a tensor, and a tensor that is written in place, become further outputs of the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from autogen.calls.changes import Assigned, Computed, Input, Output, State, Written
from autogen.calls.places import MISSING
from autogen.calls.surroundings import Change
from autogen.errors import StateChangeError
from autogen.tracing.aliases import is_where
from autogen.tracing.guards import Guards
from autogen.tracing.recording import Recording
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
        is_once: whether the trace is for one call alone, so that numbers cannot have been others.
    """

    def __init__(
        self, recording: Recording, fakes: Sequence[torch.Tensor], results: Sequence[torch.Tensor], is_once: bool
    ) -> None:
        self._is_once = is_once
        self._recording = recording
        self._fakes = list(fakes)
        self._outputs = list(results)
        self._results = len(results)
        self.tensors: dict[str, torch.Tensor] = {}
        self._state = State()

    def collect(self, changes: Sequence[Change]) -> None:
        """Note what is to be done after the kernels.

        Raises:
            StateChangeError: some of the changes cannot be made again.
        """
        refused, remedy = [], ""
        for change in changes:
            try:
                self._state.assigned.append(Assigned(change.place, _fixed(change.difference.key), self._value(change)))
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
        self._state.outputs = len(self.tensors)

    def state(self, guards: Guards, numbers: Mapping[str, int]) -> State:
        """The state, with the names that the trace has for sizes. Of the `numbers` that the loss reads, outputs tell.

        Raises:
            StateChangeError: a number is assigned that none of these tells.
        """
        known = {str(symbol) for symbol in guards.symbols}.union(numbers)
        for k, each in enumerate(self._state.assigned):
            if isinstance(each.value, NUMBERS):
                expression = guards.expression(each.value)
                names = set(map(str, expression.free_symbols))
                if not names <= known:
                    raise StateChangeError("a number")
                self._state.read |= {name: numbers[name] for name in names & numbers.keys()}
                self._state.assigned[k] = replace(each, value=Computed(expression))
        return self._state

    def _position(self, tensor: torch.Tensor) -> int:
        return next(k for k, fake in enumerate(self._fakes) if fake is tensor)

    def _add(self, name: str, tensor: torch.Tensor) -> int:
        self._outputs.append(tensor)
        self.tensors[f"new_{len(self.tensors)}_{name}"] = tensor
        return len(self._outputs) - 1

    def _value(self, change: Change) -> Output | Input | torch.SymInt | torch.SymFloat | float | str | None:
        key, before, now = change.difference.key, change.difference.before, change.difference.now
        if key is MISSING:
            raise _Refused
        if isinstance(now, NUMBERS):
            return now
        if now is None or type(now) is bool or (self._is_once and type(now) in (int, float, str)):
            return now
        if (
            type(now) is int and type(before) is not int and now in (0, 1)
        ):  # a size that is no symbol; no counter, no clock
            return now
        if type(now) is not FakeTensor or isinstance(now, torch.nn.Parameter):
            raise _Refused
        return self._tensor(change.difference.name, now)

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
