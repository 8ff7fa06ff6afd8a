"""Digests of keys: the same in every process in which they stand for the same call.

A key tells calls of one process apart, some by the identity of an object. Another process has that object, too, if it
is a class, a function or a module that can be found by its name. Code is known by all that it consists of, and by the
content of its file, so that functions and classes of the user need not be found.

What a library's function returns in one process, such as a rank or an environment variable, it need not in another. So
code must name nothing that may tell processes apart: only modules are allowed that compute, and no name that is known
to ask. That is strict, and costs a trace where it is wrong.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import hashlib
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from autogen.calls.answers import QUESTIONS
from autogen.calls.identity import Identity
from autogen.calls.libraries import is_library
from autogen.calls.spots import MISSING

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

# Modules whose functions give the same in every process.
_PURE = frozenset({
    "_operator", "abc", "autogen", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses",
    "enum", "fractions", "functools", "heapq", "inspect", "itertools", "logging", "math", "numbers", "numpy",
    "operator", "statistics", "string", "types", "typing", "typing_extensions", "warnings",
})  # fmt: skip
_PURE_IN_TORCH = (
    "torch._C._VariableFunctions",
    "torch._C._linalg",
    "torch._C._nn",
    "torch._C._special",
    "torch._jit_internal",
    "torch._tensor",
    "torch.amp",
    "torch.autograd",
    "torch.distributions",
    "torch.fft",
    "torch.functional",
    "torch.linalg",
    "torch.nn",
    "torch.special",
    "torch.utils._pytree",
)

# Names in code by which it may ask for something that differs between processes, or reads files. The answers to some
# questions are part of the key (`autogen.calls.answers`): those may be asked.
_TELLING = frozenset({
    "RandomState", "SeedSequence", "_C", "__import__", "_version", "accelerator", "backends", "cuda",
    "currentframe", "default_generator", "default_rng", "distributed", "environ", "eval", "exec", "from_file",
    "fromfile", "fromregex", "genfromtxt", "getEffectiveLevel", "getLogger", "get_rank", "get_rng_state",
    "get_state", "get_world_size", "getenv", "getpid", "globals", "hash", "hub", "id", "import_module",
    "initial_seed", "input", "isEnabledFor", "is_leaf", "load", "load_library", "loadtxt", "local_rank", "locals",
    "memmap", "mps", "mtia", "multiprocessing", "open", "ops", "random_raw", "rank", "seed", "show_config",
    "stack_trace", "vars", "world_size", "xpu",
})  # fmt: skip

# Functions of torch and NumPy with such names tell settings, but for these; what is new there is taken to.
_SETTING = re.compile(r"(are|get|is)_\w+|get(buf|err)\w+")
_NO_SETTINGS = frozenset({
    "get_device", "get_default_dtype", "is_complex", "is_conj", "is_contiguous", "is_floating_point",
    "is_inference", "is_neg", "is_nonzero", "is_same_size", "is_signed", "is_storage", "is_tensor", "is_tensor_like",
})  # fmt: skip

_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_TORCH = torch.__path__[0]


class Portable:
    """An object of ours that other processes can make again."""

    @property
    def content(self) -> tuple[Any, ...] | None:
        """All that tells it from others, in any process; None if other processes do not have it after all."""
        raise NotImplementedError


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
    elif type(value) is int:
        yield hex(value).encode()  # Python refuses to write long ones in decimals
    elif value is None or value is MISSING or value is Ellipsis or isinstance(value, _PLAIN):
        yield repr(value).encode() if value is not MISSING else b""
    elif isinstance(value, types.CodeType):
        if not _is_of_library(value.co_filename):
            _require_pure(value)
        yield _content_of(value.co_filename)
        yield from (_digest(getattr(value, name)) for name in _CODE if hasattr(value, name))
        yield from map(_digest, value.co_consts)
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}".encode()  # what it has is in the key, if it is the user's
    elif isinstance(value, Identity) and isinstance(value.value, type):
        home = value.value.__module__
        if not isinstance(home, str) or (is_library(home) and not _is_pure(home)):
            raise UnstableKeyError(repr(value.value))
        yield from _parts(value.value)
    elif isinstance(value, Identity):
        content = value.value.content if isinstance(value.value, Portable) else None
        yield _name_of(value.value).encode() if content is None else _digest(content)
    else:
        raise UnstableKeyError(type(value).__name__)


def _is_pure(module: str) -> bool:
    """Whether a library's module gives the same in every process."""
    if module.partition(".")[0] == "torch":
        return module == "torch" or any(f"{module}.".startswith(f"{each}.") for each in _PURE_IN_TORCH)
    return module.partition(".")[0] in _PURE


def _is_of_library(file: str) -> bool:
    """Whether a file of code is torch's or Python's, such as a decorator: the modules that it calls are looked at."""
    return file.startswith(_TORCH) or (file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file)


def _require_pure(code: types.CodeType) -> None:
    """Raises `UnstableKeyError` if code may ask for something that differs between processes."""
    telling = [name for name in code.co_names if name in _TELLING or _tells_setting(name)]
    imported = [each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"]
    if telling or not all(map(_is_pure, imported)):
        raise UnstableKeyError(f"{code.co_name} names {', '.join((*telling, *imported))}")


@functools.cache
def _tells_setting(name: str) -> bool:
    """Whether a name in code may be that of a function by which a library tells a setting that is in no key."""
    if name in QUESTIONS or name in _NO_SETTINGS or not _SETTING.fullmatch(name):
        return False
    import numpy

    return any(hasattr(home, name) for home in (torch, torch.amp, torch.autograd, torch.autograd.graph, numpy))


@functools.cache
def _content_of(file: str) -> bytes:
    """A digest of a file of source code, as it was when first asked for; of nothing if it cannot be read."""
    content = b""
    with contextlib.suppress(OSError, ValueError):  # such as "<stdin>"
        content = Path(file).read_bytes()
    return hashlib.sha256(content).digest()


def _name_of(value: Any) -> str:
    """The name of a module, or of a library's function, by which it can be found.

    Raises:
        UnstableKeyError: it cannot.
    """
    if isinstance(value, types.ModuleType) and (_is_pure(value.__name__) or not is_library(value.__name__)):
        return value.__name__
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(value, (types.BuiltinMethodType, types.WrapperDescriptorType)):  # a class's, such as `tuple.__new__`
        owner = getattr(value, "__objclass__", getattr(value, "__self__", None))
        home = home or getattr(owner, "__module__", None)
    if isinstance(home, str) and is_library(home) and _is_pure(home):
        for path in (name, name.rpartition(".")[2]):  # torch's functions in C name a class that is not there
            found: Any = sys.modules.get(home)
            for part in path.split("."):
                found = getattr(found, part, None)
            if found is value:
                return f"{home}.{path}"
    raise UnstableKeyError(repr(value))
