"""Python's functions of which a trace has its own: those that make a number of a number, as a symbol would not stay
one, and those that say something.
"""

from __future__ import annotations

import builtins
import math
import types
import warnings
from typing import Any

from autogen.calls.mentions import globals_in, only_called
from autogen.calls.places import Kept

_CONVERTERS = {"float": float, "int": int, "range": range}
_OF_MATH = frozenset(each for each in vars(math).values() if isinstance(each, types.BuiltinFunctionType))
SAYING: dict[Any, tuple[types.ModuleType, str]] = {print: (builtins, "print"), warnings.warn: (warnings, "warn")}


def is_stood_in_for(function: Any) -> bool:
    """Whether something is a function of `math`, or one that says something."""
    return isinstance(function, types.BuiltinFunctionType) and (function in _OF_MATH or function in SAYING)


class Conversions:
    """Where code finds `float`, `int` and `range`, which are not only functions: `x.to(float)` wants the class."""

    def __init__(self) -> None:
        self._scopes: dict[int, dict[str, Any]] = {}
        self._codes: dict[int, list[types.CodeType]] = {}

    def note(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Note code that has these globals, but for what ran when objects were made."""
        if code.co_name == "__init__":
            return
        self._scopes[id(scope)] = scope
        self._codes.setdefault(id(scope), []).append(code)

    def kept(self) -> list[Kept]:
        """Those that all code of some globals only calls, as if they were kept there."""
        found = []
        for key, scope in self._scopes.items():
            codes = self._codes[key]
            for name, converter in _CONVERTERS.items():
                is_mentioned = any(name in globals_in(code) for code in codes)
                is_pythons = name not in scope and getattr(builtins, name) is converter
                if is_mentioned and is_pythons and all(only_called(code, name) for code in codes):
                    found.append(Kept(name, converter, scope, name))
        return found
