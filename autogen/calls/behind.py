"""Objects of Python's library that stand for the user's own, such as properties: what code has of them is behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import types
import typing
from typing import Any

_ALIASES: Any = (type(typing.List[int]), types.GenericAlias)  # noqa: UP006
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
_BEHIND: Any = (
    (types.MethodType, ("__func__", "__self__")),
    ((staticmethod, classmethod), ("__func__",)),
    (property, ("fget", "fset", "fdel")),
    (types.DynamicClassAttribute, ("fget", "fset", "fdel")),  # as properties of enumerations are
    (functools.cached_property, ("func",)),
    (functools.partialmethod, ("func", "args", "keywords")),
    (contextlib._GeneratorContextManager, ("func", "args", "kwds")),  # gone once it has been entered
    (_ALIASES, ("__origin__",)),
)


def behind(value: Any) -> tuple[Any, ...] | None:
    """What an object of Python's calls, or stands for; None of others."""
    if isinstance(value, _VIEWS):
        return (gc.get_referents(value)[0],)
    for kind, names in _BEHIND:
        if isinstance(value, kind):
            return tuple([getattr(value, name, None) for name in names])
    return None
