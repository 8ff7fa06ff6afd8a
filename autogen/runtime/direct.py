"""Launch kernels that Triton has compiled without the work that `kernel[grid]` does at each launch.

`kernel[grid](…)` takes its arguments apart, finds out what they are specialised on, makes a key of that and looks it
up: 7 to 20 µs. Here that is known already: the sizes are those of a call that has been launched before, and the
alignment of pointers is looked at. What remains is Triton's launcher, an object that is called with the grid, the
stream and the arguments. That call is no public interface. It has been the same in Triton 3.6 to 3.8, is checked
below, and where it looks different `kernel[grid]` is used, which the log says once.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from autogen import compat

logger = logging.getLogger("autogen")

ALIGNMENT = 16  # of pointers, in bytes, by which Triton tells kernels apart

# The parameters of `CudaLauncher.__call__`; after the last come kernel_metadata, launch_metadata and the two hooks, by
# name or not, and then the kernel's arguments.
_LAUNCHER = ("self", "gridX", "gridY", "gridZ", "stream", "function")
_REST = ("kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook")


@dataclass(frozen=True)
class Streams:
    """What a launch asks about the kind of device that it runs on."""

    current_device: Callable[[], int | None]
    current_stream: Callable[[Any], int]
    is_capturing: Callable[[], bool]


@functools.cache
def streams_of(device_type: str) -> Streams | None:
    """How a kind of device is asked; None where kernels are not launched directly.

    Triton specialises on more for AMD: whether the memory of a tensor is within 2 GiB.
    """
    if device_type != "cuda" or torch.version.hip is not None:
        return None
    torch.cuda.init()
    return Streams(*compat.cuda_functions())


Compiled = tuple[Callable[..., None], int, tuple[int, ...]]
"""Triton's launcher of a kernel, the kernel's handle on its device, and what the launcher wants to know of it:

    run(programs, 1, 1, stream, function, metadata, None, None, None, *arguments)

launches it. Pointers among the arguments may be integers.
"""


def padded(size: int) -> int:
    """A size up to the next multiple of `ALIGNMENT`: where another tensor may begin in the same memory."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether Triton takes a tensor's memory for aligned."""
    return tensor.data_ptr() % ALIGNMENT == 0


def kind_of(number: float) -> Hashable:
    """What Triton specialises on of a number that a kernel is given at run time."""
    if not isinstance(number, int):
        return float
    return number == 1, number % ALIGNMENT == 0, -(2**31) <= number < 2**31


def compiled_of(kernel: Any) -> Compiled | None:
    """How to launch again what `kernel[grid](…)` has returned; None where Triton is one that we do not know."""
    try:
        is_watched()
        found = kernel.run, kernel.function, kernel.packed_metadata
    except AttributeError as error:
        _say(str(error))
        return None
    kind: Any = type(found[0])
    return found if _is_known(kind) else None


def is_watched() -> bool:
    """Whether a profiler wants to be told of launches, which Triton does."""
    runtime = _runtime()
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool((enter is not None and enter.calls) or (leave is not None and leave.calls))


@functools.cache
def _runtime() -> Any:
    """Triton's settings of its runtime."""
    from triton import knobs

    return knobs.runtime


@functools.cache
def _is_known(launcher: Any) -> bool:
    """Whether a launcher takes what we give it."""
    parameters = inspect.signature(launcher.__call__).parameters
    names = tuple(name for name, each in parameters.items() if each.kind is not each.VAR_POSITIONAL)
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    known = takes_more and names in (_LAUNCHER, (*_LAUNCHER, *_REST))
    if not known:
        _say(f"its {launcher.__name__} takes {', '.join(names)}")
    return known


@functools.cache
def _say(what: str) -> None:
    logger.info("this Triton is launched by kernel[grid], which takes a little longer: %s", what)
