"""`@device`: a function for kernels, which Triton reads when one first asks for it."""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import triton

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Device:
    """What `@triton.jit` makes of a function, later: it reads the function's source, a quarter of a millisecond."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @functools.cached_property
    def read(self) -> Any:
        """The function as Triton has read it, with those that it calls, in whose place they are from now on."""
        scope = self._function.__globals__
        for each in dis.get_instructions(self._function):
            if each.opname == "LOAD_GLOBAL" and isinstance(called := scope.get(each.argval), Device):
                scope[each.argval] = called.read
        return triton.jit(self._function)


def device(function: _Function) -> _Function:
    """Decorate a function that kernels call by way of `autogen.device_math`, or functions that they call."""
    return cast(_Function, Device(function))
