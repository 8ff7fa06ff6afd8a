"""Digests of keys: the same in every process in which they stand for the same call.

A key tells calls of one process apart, some by the identity of an object. Another process has that object, too, if it
is a class, a function or a module that can be found by its name. Code is known by all that it consists of, so that
functions and classes of the user need not be found.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from autogen.places import MISSING
from autogen.reachable import Identity, is_library

_PLAIN = (str, bytes, int, float, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
_CODE = (
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_code",
    "co_names",
    "co_varnames",
    "co_cellvars",
    "co_freevars",
    "co_name",
    "co_qualname",
    "co_filename",
    "co_firstlineno",
    "co_linetable",
    "co_exceptiontable",
)


class UnstableKeyError(Exception):
    """A key depends on an object that other processes do not have."""


def digest(key: Any) -> str:
    """A digest of a key, in hexadecimal.

    Raises:
        UnstableKeyError: there is none that other processes could find.
    """
    return _digest(key).hex()


def _digest(value: Any) -> bytes:
    hashed = hashlib.sha256(type(value).__qualname__.encode())
    for part in _parts(value):
        hashed.update(hashlib.sha256(part).digest())
    return hashed.digest()


def _parts(value: Any) -> Iterator[bytes]:
    """What a value consists of: digests, or text."""
    if isinstance(value, tuple):
        yield from map(_digest, value)
    elif isinstance(value, frozenset):
        yield from sorted(map(_digest, value))  # whose order is another in each process
    elif value is None or value is MISSING or value is Ellipsis or isinstance(value, _PLAIN):
        yield repr(value).encode() if value is not MISSING else b""
    elif isinstance(value, types.CodeType):
        yield from (_digest(getattr(value, name)) for name in _CODE if hasattr(value, name))
        yield from map(_digest, value.co_consts)
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}".encode()  # what it has is in the key, if it is the user's
    elif isinstance(value, Identity) and isinstance(value.value, type):
        yield from _parts(value.value)
    elif isinstance(value, Identity):
        yield _name_of(value.value).encode()
    else:
        raise UnstableKeyError(type(value).__name__)


def _name_of(value: Any) -> str:
    """The name of a module, or of a library's function, by which it can be found.

    Raises:
        UnstableKeyError: it cannot.
    """
    if isinstance(value, types.ModuleType):
        return value.__name__
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(home, str) and is_library(home):
        for path in (name, name.rpartition(".")[2]):  # torch's functions in C name a class that is not there
            found: Any = sys.modules.get(home)
            for part in path.split("."):
                found = getattr(found, part, None)
            if found is value:
                return f"{home}.{path}"
    raise UnstableKeyError(repr(value))
