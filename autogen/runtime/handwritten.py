"""The interface of handwritten kernels, and how they are run and described like generated ones.

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
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from autogen import compat
from autogen.runtime import build, direct, scratch
from autogen.runtime.launch import triton_around

# The parameters of a kernel that adds up over its programs: what each of them has, and how many have come.
PARTIALS, COUNTER = "partials_ptr", "counter_ptr"
REQUIRED: Any = inspect.Parameter.empty  # in the place of a default
IS_AUTOCAST, WANTED, CAPABILITY = "is_autocast", "wanted", "capability"
_compiled: dict[Hashable, direct.Compiled] = {}


@dataclass(frozen=True)
class Found:
    """What is read of a call on the host: integers by name, and tensors that are made of it on the device."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    tensors: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True)
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
            return self.kernel[self.grid](**self.arguments, num_warps=self.num_warps, **build.OPTIONS)

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


@dataclass(frozen=True)
class Forward:
    """Forward, planned: `launches` fill `output` and the tensors `saved` for backward.

    These have memory of their own, each all of it, so that every way to run the plan saves the same tensors. One of
    several parts is of bytes.
    """

    output: torch.Tensor
    saved: tuple[torch.Tensor, ...]
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Backward:
    """Backward, planned: `launches` fill `gradients`, by the name of the tensor that each belongs to."""

    gradients: Mapping[str, torch.Tensor]
    launches: tuple[Launch, ...]


class Handwritten(ABC):
    """A loss with kernels of its own.

    `defaults` are those of its arguments, by name; `REQUIRED` ones have none. A module's attributes of these names are
    arguments, too. `on_host` names those that may be on the host while the others are on a GPU: as tensors, or as lists
    of numbers, which may be others in each call. `constant` names tensors that have no gradient, even if one is asked
    for; `gradient_format` says how the others' lie in memory. `backends` are Triton's names of those that the kernels
    are made for. Among the arguments is also `IS_AUTOCAST`: whether autocast is on where forward runs.
    """

    defaults: ClassVar[Mapping[str, Any]]
    on_host: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    gradient_format: torch.memory_format = torch.preserve_format
    backends: frozenset[str] = frozenset({"cuda", "hip"})

    @abstractmethod
    def refuse(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """Why there is no kernel for a call, such as "targets of 3 dimensions"; None if there is one.

        `needs_gradient` names the tensors to be differentiated. A call that torch refuses, too, is refused here: torch
        then says what is wrong with it.
        """

    def reads(self, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
        """Which tensors are `read` in a call that is not refused; None if values on the host have no say in it.

        Geometry, options and which arguments are no tensors decide that. All else that is planned of a call, too: the
        plan is one for all that are alike in this, and in the numbers that are read.
        """
        return None

    def read(self, arguments: Mapping[str, Any]) -> Found | str:
        """What forward and backward are given as well, or in the place of arguments: integers by name, and new tensors
        on the device, those that `reads` names. Or why there is no kernel for the call.
        """
        return Found()

    @abstractmethod
    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """Plan forward; allocates its results on the device of the arguments."""

    def gradients(self, arguments: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, torch.Tensor]:
        """Allocate the gradients of the `wanted` tensors that have one."""
        named = [name for name in wanted if name not in self.constant]
        return {name: torch.empty_like(arguments[name], memory_format=self.gradient_format) for name in named}

    @abstractmethod
    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """Plan the gradients of the `wanted` tensors, given the gradient of the output."""


@dataclass(frozen=True)
class BoundHandwritten:
    """Calls of a handwritten loss, as dispatch sees them (compare `autogen.runtime.compiled.CompiledLoss`).

    `options` are the arguments that are the same in all of them; `names` those of the tensors, and `found` the tensors
    that are read on the host, if calls are read. Gradients are `wanted` of some tensors.
    """

    loss: Handwritten
    options: Mapping[str, Any]
    names: tuple[str, ...]
    found: tuple[str, ...] | None
    wanted: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why the call takes this path."""
        return "the loss has a handwritten kernel"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that the kernels are given, found ones included."""
        return (*self.names, *(self.found or ()))

    @functools.cached_property
    def key(self) -> tuple[Any, ...]:
        """What tells kinds of calls apart, beside tensors."""
        return (
            tuple((name, type(each), each) for name, each in self.options.items()),
            self.names,
            self.found,
            self.wanted,
        )

    @property
    def unconnected(self) -> tuple[bool, ...]:
        """Which inputs have no gradient, whether one is asked for or not."""
        return tuple(name not in self.wanted for name in self.inputs)

    def device(self, tensors: Sequence[torch.Tensor]) -> torch.device:
        """Where the kernels run on some tensors."""
        return next(t.device for name, t in zip(self.names, tensors, strict=False) if name not in self.loss.on_host)

    def arguments(self, tensors: Sequence[torch.Tensor], numbers: Mapping[str, int]) -> dict[str, Any]:
        """What forward and backward are given for a call's tensors, found ones included, and the numbers read."""
        return {**self.options, **dict(zip(self.inputs, tensors, strict=True)), **numbers}

    def planned(self, tensors: Sequence[torch.Tensor], numbers: Mapping[str, int]) -> tuple[Forward, Backward | None]:
        """Both directions for tensors like these, planned on the meta device, where nothing runs."""
        arguments = self.arguments(list(map(stand_in, tensors)), numbers)
        forward = self.loss.forward(arguments)
        if not self.wanted:
            return forward, None
        upstream = torch.empty_like(forward.output)
        return forward, self.loss.backward(arguments, forward.saved, upstream, self.wanted)


def bind_handwritten(
    loss: Handwritten,
    arguments: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    module: torch.nn.Module | None,
    needs_gradient: Sequence[bool],
) -> tuple[BoundHandwritten, Found] | str:
    """A call of a handwritten loss, and what is read for it; or why it has no kernel for it."""
    for name, default in loss.defaults.items():
        is_required = default is REQUIRED and name not in loss.on_host
        if is_required and not isinstance(arguments[name], torch.Tensor):
            return f"a {name} that is no tensor"
    arguments = dict(arguments)
    on_device = [each for name, each in tensors.items() if name not in loss.on_host]
    arguments[IS_AUTOCAST] = _is_autocast(on_device[0].device)
    if ("hip" if torch.version.hip else "cuda") not in loss.backends:
        return "the GPUs that torch is built for"
    names = tuple(tensors)
    differentiated = zip(names, needs_gradient, strict=True)
    wanted = tuple([name for name, needs in differentiated if needs and name in loss.defaults])
    arguments |= {WANTED: wanted, CAPABILITY: _capability(on_device[0].device)}
    refusal = _overridden(module) or loss.refuse(arguments, wanted)
    if refusal is not None:
        return refusal
    found = loss.reads(arguments)
    read = Found() if found is None else loss.read(arguments)
    if isinstance(read, str):
        return read
    flags = arguments.get("size_average"), arguments.get("reduce")
    if flags != (None, None):
        compat.reduction_by_flags(*flags)  # which warns of them
    varying = {*tensors, *(name for name in loss.on_host if isinstance(arguments[name], (list, tuple)))}
    options = {name: each for name, each in arguments.items() if name not in varying}
    return BoundHandwritten(loss, options, names, found, wanted), read


@functools.cache
def _capability(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of one of NVIDIA's GPUs; None for any other device."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" and torch.version.hip is None else None


def _is_autocast(device: torch.device) -> bool:
    """Whether autocast is on for a device; for the meta device, which stands for any, whether it is on for one."""
    if device.type == "meta":
        return compat.is_autocast()
    return torch.is_autocast_enabled(device.type)


def _overridden(module: torch.nn.Module | None) -> str | None:
    """That a module computes something else than the loss whose `forward` it has, if a method of that is another."""
    if module is None or ("forward" in vars(type(module)) and not any(map(callable, vars(module).values()))):
        return None
    methods, changed = methods_of(type(module))
    changed = changed or tuple(name for name in methods if name in vars(module))
    return f"a {changed[0]} of the module's own" if changed else None


def methods_of(kind: type[torch.nn.Module]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods that come with the `forward` of a class of modules, and those that are others in the class itself."""
    kinds = kind.__mro__
    owner = next(k for k, each in enumerate(kinds) if "forward" in vars(each))
    methods = {name for each in kinds[owner:] for name, found in vars(each).items() if inspect.isfunction(found)}
    methods -= vars(torch.nn.Module).keys()
    own = {name for each in kinds[:owner] for name in vars(each)}
    return tuple(sorted(methods)), tuple(sorted(methods & own))


def defaults_of(function: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """The parameters of torch's function, each with its default or `REQUIRED`."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
