"""`@device`: a function for kernels, which Triton reads when it first asks for anything of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

import triton
from triton.runtime.jit import JITFunction

_Function = TypeVar("_Function", bound=Callable[..., Any])

_reading = threading.RLock()


class Unread(JITFunction):  # type: ignore[misc]  # Triton is untyped
    """What `@triton.jit` makes of a function, later: it reads the function's source, a third of a millisecond.

    A kernel that Triton has in its cache asks for none of those that it calls.
    """

    def __init__(self, function: Any) -> None:
        self._unread = function

    def __getattr__(self, name: str) -> Any:
        """What there is not before the source is read."""
        with _reading:
            function = self.__dict__.pop("_unread", None)
            if function is not None:
                super().__init__(function)
        return super().__getattribute__(name)


def device(function: _Function) -> _Function:
    """Decorate a function that kernels call by way of `autogen.device_math`, or functions that they call."""
    is_interpreted = triton.knobs.runtime.interpret
    return cast(_Function, triton.jit(function) if is_interpreted else Unread(function))
