"""Functions that keep what they return: those under `functools.lru_cache`."""

from __future__ import annotations

import functools
from typing import Any

from autogen.calls.libraries import is_library

MEMO: Any = type(functools.lru_cache(len))
_WRAPPERS = (staticmethod, classmethod, property)
MAY_KEEP = frozenset({MEMO, *_WRAPPERS})
OF_MEMOS = frozenset(vars(functools.lru_cache(lambda: None)))  # what each of them has of Python


def is_memo(value: Any) -> bool:
    """Whether a function of the user's, or a method as a class has it, keeps what it returns."""
    while isinstance(value, _WRAPPERS):
        value = value.fget if isinstance(value, property) else value.__func__
    return isinstance(value, MEMO) and not is_library(value.__module__)
