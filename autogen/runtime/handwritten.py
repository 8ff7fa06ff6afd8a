"""Handwritten kernels: losses that the generator should not own, run and described like generated ones.

A handwritten loss has the signature of a function of `torch.nn.functional`. It plans its launches, and does nothing
else: running them is for this module, and `explain` looks at the plan for tensors on the meta device. What its kernels
are not made for it refuses, and the call goes on to the generator or to torch.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from autogen.calls.binding import Binding
from autogen.calls.changes import State
from autogen.frozen import frozen
from autogen.runtime import direct, scratch
from autogen.runtime.launch import triton_around

# The parameters of a kernel that adds up over its programs: what each of them has, and how many have come.
PARTIALS, COUNTER = "partials_ptr", "counter_ptr"
_compiled: dict[Hashable, direct.Compiled] = {}


@frozen
class Launch:
    """One launch: a Triton kernel, its grid, and all its arguments by name, tile sizes included."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    num_warps: int = 4

    def __call__(self, device: torch.device) -> direct.Compiled | None:
        """Launch it: directly, if one like it has been launched before. Returns what does that, if there is a way."""
        streams = direct.streams_of(device.type)
        if streams is None:
            self._through_triton(device)
            return None
        if streams.current_device() != device.index:
            with torch.cuda.device(device):
                return self(device)
        arguments = [self.arguments[name] for name in self.kernel.arg_names]
        passed = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments]
        kinds = [
            (given.dtype, not value % direct.ALIGNMENT)
            if isinstance(given, torch.Tensor)
            else _kind_of(given, is_constant=name in self.constants)
            for name, given, value in zip(self.kernel.arg_names, arguments, passed, strict=True)
        ]
        key = (self.kernel.fn, self.num_warps, device.index, *kinds)
        compiled = _compiled.get(key)
        if compiled is None or direct.is_watched():
            compiled = direct.compiled_of(self._through_triton(device))
            if compiled is not None:
                _compiled[key] = compiled
            return compiled
        run, function, metadata = compiled
        grid = (*self.grid, 1, 1)[:3]
        try:
            run(*grid, streams.current_stream(device.index), function, metadata, None, None, None, *passed)
        except Exception:
            scratch.forget()
            raise
        return compiled

    def _through_triton(self, device: torch.device) -> Any:
        with triton_around(device, self.name):
            return self.kernel[self.grid](**self.arguments, num_warps=self.num_warps)

    @property
    def constants(self) -> frozenset[str]:
        """The parameters whose every value is another kernel."""
        return _constants_of(self.kernel.fn)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.fn.__name__

    @property
    def source(self) -> str:
        """The kernel's source, with the module around it, as a person wrote it."""
        return inspect.getsource(inspect.getmodule(self.kernel.fn) or self.kernel.fn)

    @property
    def bytes_moved(self) -> int:
        """Bytes of all tensors that it reads or writes, each once; of partial results, which it also reads, twice.

        What values say need not be read, such as what follows the targets of a row, counts as well.
        """
        given = {name: t for name, t in self.arguments.items() if isinstance(t, torch.Tensor) and name != COUNTER}
        once = {id(t): t for t in given.values()}
        again = [given[PARTIALS]] if PARTIALS in given else []
        return sum(map(bytes_in_memory, (*once.values(), *again)))


def _kind_of(value: Any, *, is_constant: bool) -> Any:
    """What Triton specialises on of an argument that is no tensor."""
    return direct.kind_of(value) if type(value) in (int, float) and not is_constant else value


@functools.cache
def _constants_of(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(name for name, kind in function.__annotations__.items() if "constexpr" in str(kind))


def bytes_in_memory(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, of an expanded one those that there are."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(n for n, step in steps if step != 0) * tensor.itemsize if tensor.numel() else 0


def stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same geometry on the meta device."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


@frozen
class Forward:
    """Forward, planned: `launches` fill `output` and the tensors `saved` for backward."""

    output: torch.Tensor
    saved: tuple[torch.Tensor, ...]
    launches: tuple[Launch, ...]


@frozen
class Backward:
    """Backward, planned: `launches` fill `gradients`, by the name of the tensor that each belongs to."""

    gradients: Mapping[str, torch.Tensor]
    launches: tuple[Launch, ...]


class Handwritten(ABC):
    """A loss with kernels of its own.

    `function` is torch's, as a static method. `arguments` are its arguments by name, with its defaults. `on_host` names
    those that may be on the host while the others are on a GPU.
    """

    function: Callable[..., torch.Tensor]
    on_host: frozenset[str] = frozenset()

    @abstractmethod
    def refuse(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """Why there is no kernel for a call, such as "targets of 3 dimensions"; None if there is one.

        `needs_gradient` names the tensors to be differentiated. A call that torch refuses, too, is refused here: torch
        then says what is wrong with it.
        """

    def is_short(self, arguments: Mapping[str, Any]) -> bool:
        """Whether geometry and what is no tensor decide about calls like this one, and planning only allocates.

        Then the plan is one for all of them (`autogen.runtime.handwritten_prepared`).
        """
        return False

    @abstractmethod
    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """Plan forward; allocates its results on the device of the arguments."""

    @abstractmethod
    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """Plan the gradients of the `wanted` tensors, given the gradient of the output."""


@frozen
class BoundHandwritten:
    """One call of a handwritten loss, as dispatch sees it (compare `autogen.runtime.compiled.CompiledLoss`)."""

    loss: Handwritten
    arguments: Mapping[str, Any]
    names: tuple[str, ...]
    wanted: tuple[str, ...]

    path = "handwritten"
    is_random = False
    state = State()  # nothing that outlives a call

    @property
    def reason(self) -> str:
        """Why the call takes this path."""
        return "the loss has a handwritten kernel"

    @property
    def is_short(self) -> bool:
        """Whether calls like this one need not be planned again."""
        return self.loss.is_short(self.arguments)

    @property
    def unconnected(self) -> tuple[bool, ...]:
        """Which inputs have no gradient, whether one is asked for or not."""
        return tuple(name not in self.wanted for name in self.names)

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs have a gradient."""
        return (True,)

    @property
    def graph(self) -> None:
        """No graph that could change."""

    @property
    def early(self) -> int:
        """How many gradients forward computes."""
        return 0

    def result(self, outputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> torch.Tensor:
        """The loss's return value around its output."""
        return outputs[0]

    def on(self, tensors: Sequence[torch.Tensor]) -> BoundHandwritten:
        """The call on other tensors."""
        given = dict(zip(self.names, tensors, strict=True))
        return replace(self, arguments={name: given.get(name, value) for name, value in self.arguments.items()})

    def like(self, tensors: Sequence[torch.Tensor], needs_gradient: Sequence[bool]) -> BoundHandwritten | None:
        """The call on tensors of another geometry, if there are kernels for them, and calls of that are alike."""
        wanted = tuple([name for name, needs in zip(self.names, needs_gradient, strict=True) if needs])
        arguments = self.on(tensors).arguments
        is_taken = self.loss.refuse(arguments, wanted) is None and self.loss.is_short(arguments)
        return replace(self, wanted=wanted) if is_taken else None

    def planned(self, tensors: Sequence[torch.Tensor]) -> tuple[Forward, Backward | None]:
        """Both directions for tensors like these, planned on the meta device, where nothing runs."""
        call = self.on(list(map(stand_in, tensors)))
        forward = self.loss.forward(call.arguments)
        if not self.wanted:
            return forward, None
        upstream = torch.empty_like(forward.output)
        return forward, self.loss.backward(call.arguments, forward.saved, upstream, self.wanted)

    def run_forward(
        self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Launch forward; returns the output and what is kept for backward."""
        planned = self.loss.forward(self.on(tensors).arguments)
        for launch in planned.launches:
            launch(planned.output.device)
        return [planned.output], list(planned.saved)

    def run_backward(
        self,
        tensors: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor],
        sizes: Mapping[str, int],
    ) -> list[torch.Tensor | None]:
        """Launch backward; returns a gradient or None for every tensor."""
        gradient = upstream[0].resolve_neg()  # kernels read memory as it is
        planned = self.loss.backward(self.on(tensors).arguments, saved, gradient, self.wanted)
        for launch in planned.launches:
            launch(gradient.device)
        return [planned.gradients.get(name) for name in self.names]


def bind_handwritten(
    loss: Handwritten, binding: Binding, module: torch.nn.Module | None, needs_gradient: Sequence[bool]
) -> BoundHandwritten | str:
    """A call of a handwritten loss, or why it has no kernel for it."""
    defaults = _defaults(loss.function)
    given = binding.arguments
    arguments = {
        name: given[name] if name in given else getattr(module, name, default) for name, default in defaults.items()
    }
    for name, default in defaults.items():
        is_required = default is inspect.Parameter.empty and name not in loss.on_host
        if is_required and not isinstance(arguments[name], torch.Tensor):
            return f"a {name} that is no tensor"
    wanted = tuple(name for name, needs in zip(binding.names, needs_gradient, strict=True) if needs)
    refusal = loss.refuse(arguments, wanted)
    return refusal or BoundHandwritten(loss, arguments, binding.names, wanted)


@functools.cache
def _defaults(function: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """The parameters of torch's function, each with its default or `Parameter.empty`; found once, as that is slow."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
