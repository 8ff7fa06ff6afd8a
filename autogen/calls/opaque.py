"""Objects of libraries of which nothing tells what they give next: random generators, iterators, shared numbers."""

from __future__ import annotations

import contextvars
import random
import re
import types
import weakref
from collections.abc import Sequence
from typing import Any

from autogen.calls.mentions import attributes_in


def is_memory(kind: type) -> bool:
    """Whether objects of a class, which may be the user's, are memory in the terms of C."""
    return any(base.__module__ == "_ctypes" for base in kind.__mro__)


class Opaque:
    """Those that a loss reaches; `streams` are the random generators among them, which can be put back, `dictionaries`
    the names of dictionaries, whose items code may have without their keys.

    Args:
        given: the arguments of the call, which the loss has without any name.
    """

    def __init__(self, given: Sequence[Any] = ()) -> None:
        self.streams: list[Any] = []
        self.dictionaries: set[str] = set()
        self._given = given
        self._others: list[tuple[tuple[str, ...], type]] = []

    def note(self, value: Any, name: str) -> None:
        """Note an object of a library, if it is one of these."""
        kind = type(value)
        if isinstance(value, random.SystemRandom):
            self._others.append((self._mentions(value, name), kind))
        elif isinstance(value, random.Random) or str(kind.__module__).startswith("numpy.random"):
            self.streams.append(value)
        elif (
            isinstance(value, (contextvars.ContextVar, weakref.ref))
            or (hasattr(kind, "__next__") and not hasattr(kind, "readline"))
            or str(kind.__module__).startswith(("multiprocessing.", "ctypes"))  # numbers that processes share
            or is_memory(kind)
        ):
            self._others.append((self._mentions(value, name), kind))

    def _mentions(self, value: Any, name: str) -> tuple[str, ...]:
        """The names of which code mentions one if it has this object; none if it needs no name."""
        if any(value is each for each in self._given):
            return ()
        parent, _, last = _unnumbered(name).rpartition(".")
        if name and not last:  # an item of defaults, or of the arguments of a partial function
            return ()
        return (last, *self._mentions(value, parent)) if parent and parent in self.dictionaries else (last,)

    def mentioned_in(self, codes: Sequence[types.CodeType]) -> str | None:
        """One of those that cannot be put back, if code mentions it."""
        mentioned = frozenset[str]().union(*map(attributes_in, codes), *map(_parameters_and_variables, codes))
        for names, kind in self._others:
            if not names or not mentioned.isdisjoint(names):
                return f"{names[0]} ({kind.__name__})" if names else f"a {kind.__name__} that the loss is given"
        return None


def _unnumbered(name: str) -> str:
    """The name of what holds an item of a tuple or a list, which are numbered."""
    return re.sub(r"(_\d+)+$", "", name)


def _parameters_and_variables(code: types.CodeType) -> tuple[str, ...]:
    """The parameters of a function, and the variables of those around it that it reads."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] + code.co_freevars
