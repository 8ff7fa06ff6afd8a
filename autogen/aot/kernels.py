"""Collect the kernels of a call as plain data: source, and parameters as Triton would specialise them.

Nothing here imports torch until a loss is traced, so that a process that only compiles starts quickly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

    from autogen.runtime.handwritten import Launch
    from autogen.runtime.launch import Geometry, Launcher

Direction = Literal["forward", "backward"]

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_ALIGNMENT = 16
_TYPES = {
    "bool": "u1",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
}


_BACKENDS = frozenset({"cuda", "hip"})


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter as Triton specialises it.

    Attributes:
        type: "*fp32" and its like for pointers, "i32" or "i64" for integers, "fp32" or "fp64" for floats, "constexpr".
        value: the value of a constexpr.
        divisible: whether an integer, or the address in a pointer, is known to be a multiple of 16.
        short: whether a pointer's whole tensor lies within 2^31 bytes, which AMD's buffer instructions need.
    """

    type: str
    value: Any = None
    divisible: bool = False
    short: bool = False


@dataclass(frozen=True)
class SpecializedKernel:
    """A kernel as one call would have Triton compile it; plain data that can be sent to another process.

    Attributes:
        loss: the name of the loss that it belongs to.
        direction: "forward" or "backward".
        name: the kernel's function.
        text: the generated module.
        parameters: in the order of the function's.
        num_warps: warps per program.
        programs: programs of the launch.
        backends: those of Triton's that the kernel is made for.
    """

    loss: str
    direction: Direction
    name: str
    text: str
    parameters: tuple[Parameter, ...]
    num_warps: int
    programs: int
    backends: frozenset[str] = _BACKENDS


def kernels_of(loss: Any, *args: Any, **kwargs: Any) -> tuple[SpecializedKernel, ...]:
    """The kernels that `loss(*args, **kwargs)` would launch, forward then backward, as Triton would specialise them.

    The loss is captured, not run, and need not be decorated; of a loss around a fused call (`autogen.dispatch.parts`),
    torch's part is run. The tensors give dtypes, sizes and strides, may be on the CPU, and are taken to start at
    multiples of 16 bytes, each with memory of its own; `requires_grad` decides which gradients backward computes.
    Upstream gradients are taken to be laid out like the results.

    Raises:
        AutogenError: some part of the loss has no kernel.
        TypeError: the arguments do not fit the loss's signature, or `loss` is a class: pass an instance.
        ValueError: torch computes the whole of this call.
    """
    from autogen.decorator import call_of
    from autogen.dispatch.parts import PARTS
    from autogen.runtime.chunks import launched

    parts = None if isinstance(loss, type) else getattr(loss, PARTS, None)
    if parts is not None:
        taken = parts(*args, **kwargs)
        if isinstance(taken, str):
            raise ValueError(taken)
        return kernels_of(taken.call.func, *taken.call.args, **taken.call.keywords)
    dispatcher, args = call_of(loss, args)
    name = dispatcher.name_of(args)
    made = dispatcher.handwritten
    handwritten = "none" if made is None else made.bind(args, kwargs, anywhere=True)
    if not isinstance(handwritten, str):
        call, found, tensors = handwritten
        planned, after = call.planned((*tensors, *found.tensors), found.sizes)
        made_for = call.loss.backends
        return (
            *(specialize_launch(launch, name, "forward", made_for) for launch in planned.launches),
            *(specialize_launch(launch, name, "backward", made_for) for launch in (after.launches if after else ())),
        )
    kernels: list[SpecializedKernel] = []
    for run in dispatcher.look(name, args, kwargs, anywhere=True, mandatory=True)[0]:
        if run.captured.runner is not None:
            compiled, sizes = run.captured.runner.kernels_for(run.arguments)
            backward = compiled.backward() if run.captured.runner.training else ()
            kernels += [specialize(each, own, name, "forward") for each, own in launched(compiled.forward, sizes)]
            kernels += [specialize(each, own, name, "backward") for each, own in launched(backward, sizes)]
    return tuple(kernels)


def specialize(
    launcher: Launcher, sizes: Mapping[str, int], loss: str, direction: Direction, *, aligned: bool = True
) -> SpecializedKernel:
    """A launcher's kernel for the given sizes; `aligned` says whether tensors start at multiples of 16 bytes."""
    from autogen.runtime.launch import Results

    tiling = launcher.tiling(sizes)
    source = launcher.source(tiling.variant)
    geometry = Results(source.buffers).geometry(sizes)
    parameters = [_tensor(geometry[buffer.name], aligned) for buffer in source.buffers]
    # Partial results and the counter are allocated by the launcher, which makes them aligned and small.
    parameters += [_pointer(partial.dtype) for partial in source.partials]
    if source.partials:
        parameters.append(Parameter("*i32", divisible=True, short=True))
    for (name, _), value in zip(source.sizes, launcher.arguments(sizes, tiling.variant), strict=True):
        parameters.append(Parameter("fp64") if name in source.doubles else _number(value))
    tiles = dict(tiling.tiles)
    parameters += [Parameter("constexpr", tiles[tile]) for tile in source.tiles]
    return SpecializedKernel(
        loss, direction, source.name, source.text, tuple(parameters), tiling.num_warps, tiling.programs
    )


def specialize_launch(
    launch: Launch, loss: str, direction: Direction, backends: frozenset[str] = _BACKENDS
) -> SpecializedKernel:
    """A handwritten kernel as Triton would specialise it for a planned launch, on tensors of their own memory."""
    constants = launch.constants
    parameters = tuple(
        _argument(launch.arguments[name], is_constexpr=name in constants) for name in launch.kernel.arg_names
    )
    programs = math.prod(launch.grid)
    text = launch.source
    return SpecializedKernel(
        loss, direction, launch.name, text, parameters, launch.num_warps, programs, backends=backends
    )


def _argument(value: Any, *, is_constexpr: bool) -> Parameter:
    import torch

    if isinstance(value, torch.Tensor):
        extent = sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True)) + 1
        return _pointer(value.dtype, short=extent * value.element_size() < 2**31)
    if is_constexpr or value is None:
        return Parameter("constexpr", value)
    return _number(value)


def _tensor(geometry: Geometry, aligned: bool) -> Parameter:
    shape, strides, dtype = geometry
    extent = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1 if all(shape) else 0
    return _pointer(dtype, divisible=aligned, short=extent * dtype.itemsize < 2**31)


def _pointer(dtype: torch.dtype, *, divisible: bool = True, short: bool = True) -> Parameter:
    return Parameter(f"*{_TYPES[str(dtype).removeprefix('torch.')]}", divisible=divisible, short=short)


def _number(value: float) -> Parameter:
    if isinstance(value, float):
        return Parameter("fp32")
    if value == 1:
        return Parameter("constexpr", 1)
    kind = "i32" if value in _INT32 else "i64" if value in _INT64 else "u64"
    return Parameter(kind, divisible=value % _ALIGNMENT == 0)
