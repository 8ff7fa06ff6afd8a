"""What a loss reaches beside its arguments: the state of its module, its closure, and names of the modules it is from.

One walk finds the tensors, with the place where each is kept, so that another can be put there; and makes a key of
everything else, which changes when anything changes that the loss may read.
"""

from __future__ import annotations

import functools
import math
import sys
import types
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

_DEPTH = 6
_MOST_BYTES = 4096  # of an array whose contents are part of the key
_MOST_GLOBALS = 64  # of a list or a dictionary that a module has under a name


@dataclass(frozen=True)
class Kept:
    """A tensor or a float, and where it is kept: `container[key]`, or the contents of a cell."""

    name: str
    value: Any
    container: Any
    key: Any

    def put(self, value: Any) -> Any:
        """Keep another value there; returns what was there."""
        if isinstance(self.container, types.CellType):
            before, self.container.cell_contents = self.container.cell_contents, value
        else:
            before, self.container[self.key] = self.container[self.key], value
        return before


class Reachable:
    """The walk over one call.

    `tensors` are those that were found, in order, and `floats` the numbers that are known to vary, by the names in
    `varying`; `fixed` are all other floats by name. `changed` names what the loss has changed when it last ran.
    """

    def __init__(self, varying: Collection[str] = ()) -> None:
        self.tensors: list[Kept] = []
        self.floats: list[Kept] = []
        self.fixed: dict[str, float] = {}
        self._varying = varying
        self.changed: list[str] = []
        self._seen: dict[int, int] = {}
        self._watched: list[tuple[Any, Any]] = []

    def visit(
        self, value: Any, name: str = "", container: Any = None, key: Any = None, depth: int = _DEPTH
    ) -> Hashable:
        """A key for a value; the tensors below it are noted, if they are in a `container`."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name, container, key)
        if isinstance(value, float):
            if name in self._varying and container is not None and math.isfinite(value):
                self.floats.append(Kept(name, value, container, key))
                return float
            self.fixed[name] = value
            return float, repr(value)  # nan equals itself here, and 0.0 differs from -0.0
        if value is None or isinstance(value, (int, str, bytes, complex, torch.dtype, torch.device)):
            return type(value), value
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        return self._composite(value, name, depth - 1) if depth else _Identity(value)

    def _tensor(self, tensor: torch.Tensor, name: str, container: Any, key: Any) -> Hashable:
        if container is None:
            return _Identity(tensor)
        self.tensors.append(Kept(name or "tensor", tensor, container, key))
        return torch.Tensor

    def _composite(self, value: Any, name: str, depth: int) -> Hashable:
        if isinstance(value, tuple):
            return type(value), self._parts(value, None, name, depth)
        if isinstance(value, list):
            self._watched.append((value, list(value)))
            return list, self._parts(value, value, name, depth)
        if isinstance(value, dict):
            return dict, self._items(value, name, depth)
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, torch.nn.Module):
            return self._module(value, name, depth)
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, types.MethodType):
            return self.visit(value.__func__, name, depth=depth), self.visit(value.__self__, name, depth=depth)
        if isinstance(value, functools.partial):
            return self.visit(value.func, name, depth=depth), self.visit(
                (value.args, value.keywords), name, depth=depth
            )
        if hasattr(value, "tobytes") and getattr(value, "nbytes", _MOST_BYTES + 1) <= _MOST_BYTES:  # of NumPy
            return type(value), str(value.dtype), value.shape, value.tobytes()
        is_object = hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType))
        if is_object and not (callable(value) and _is_library(type(value).__module__)):
            return type(value), self._items(vars(value), name, depth)
        return _Identity(value)

    def _parts(self, items: Sequence[Any], container: Any, name: str, depth: int) -> Hashable:
        return tuple(self.visit(item, f"{name}_{k}", container, k, depth) for k, item in enumerate(items))

    def _items(self, items: dict[Any, Any], name: str, depth: int, skipped: frozenset[str] = frozenset()) -> Hashable:
        self._watched.append((items, dict(items)))
        prefix = f"{name}." if name else ""
        return tuple(
            (key if isinstance(key, str) else repr(key), self.visit(item, f"{prefix}{key}", items, key, depth))
            for key, item in list(items.items())
            if key not in skipped
        )

    def _module(self, module: Any, name: str, depth: int) -> Hashable:
        stores = tuple(self._items(store, name, depth) for store in (module._parameters, module._buffers))
        rest = self._items(module.__dict__, name, depth, _INTERNALS)
        prefix = f"{name}." if name else ""
        inner = tuple((key, self.visit(child, f"{prefix}{key}")) for key, child in module._modules.items())
        owner: Any = type(module)
        constants = tuple((name, self.visit(getattr(owner, name, None))) for name in _class_constants(owner))
        return owner, constants, *stores, rest, inner, self._globals(_methods(owner), depth)

    def _function(self, function: types.FunctionType, depth: int) -> Hashable:
        closure = []
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            contents = _contents(cell)
            self._watched.append((cell, contents))
            closure.append(self.visit(contents, name, cell, None, depth))
        defaults = self.visit((function.__defaults__, function.__kwdefaults__), depth=depth)
        return function.__code__, tuple(closure), defaults, self._globals((function,), depth)

    def _globals(self, functions: tuple[types.FunctionType, ...], depth: int) -> Hashable:
        found = []
        for scope, name in _globals_read(functions):
            value = scope.get(name)
            self._watched.append((scope, {name: value}))
            found.append(self.visit(value, name, scope, name, depth))
        return tuple(found)

    @contextmanager
    def swapped(self, values: Sequence[Any]) -> Iterator[None]:
        """Other values in the places of the tensors, and then of the floats. What the loss changes is put back."""
        self.changed = []
        placed = list(zip((*self.tensors, *self.floats), values, strict=True))
        for kept, value in placed:
            kept.put(value)
        try:
            yield
        finally:
            for kept, value in reversed(placed):
                if kept.put(kept.value) is not value:
                    self.changed.append(kept.name)
            self._put_back()

    def _put_back(self) -> None:
        for container, before in self._watched:
            if isinstance(container, types.CellType):
                if _contents(container) is not before:
                    container.cell_contents = before
                    self.changed.append("a variable of an enclosing function")
                continue
            if isinstance(container, list):
                if len(container) != len(before) or any(a is not b for a, b in zip(container, before, strict=True)):
                    container[:] = before
                    self.changed.append("a list")
                continue
            is_scope = "__builtins__" in container
            for key in [] if is_scope else [key for key in container if key not in before]:
                del container[key]
                self.changed.append(str(key))
            for key, value in before.items():
                if container.get(key) is not value:
                    container[key] = value
                    self.changed.append(str(key))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


@functools.lru_cache(maxsize=1024)
def _methods(owner: Any) -> tuple[types.FunctionType, ...]:
    """The functions of a class and of its bases that are not torch's."""
    bases = [base for base in owner.__mro__ if not _is_library(base.__module__)]
    return tuple(each for base in bases for each in vars(base).values() if isinstance(each, types.FunctionType))


@functools.lru_cache(maxsize=1024)
def _class_constants(owner: Any) -> tuple[str, ...]:
    """The names of numbers and strings that a class and its bases that are not torch's have."""
    bases = [base for base in owner.__mro__ if not _is_library(base.__module__)]
    return tuple(name for base in bases for name, value in vars(base).items() if isinstance(value, (int, float, str)))


@functools.lru_cache(maxsize=1024)
def _globals_read(functions: tuple[types.FunctionType, ...]) -> tuple[tuple[dict[str, Any], str], ...]:
    """The values that some functions, and those that they call by a global name, may read by such a name."""
    found: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
    todo = list(functions)
    seen: set[types.CodeType] = set()
    while todo:
        function = todo.pop()
        if function.__code__ in seen or _is_library(function.__module__):
            continue
        seen.add(function.__code__)
        scope = function.__globals__
        names = _names(function.__code__)
        modules = [scope[name] for name in names if isinstance(scope.get(name), types.ModuleType)]
        scopes = [scope, *(vars(module) for module in modules if not _is_library(module.__name__))]
        for place, name in product(scopes, names):
            value = place.get(name)
            if isinstance(value, types.FunctionType):
                todo.append(value)
            elif _is_value(value):
                found[id(place), name] = place, name
    return tuple(found.values())


def _names(code: types.CodeType) -> set[str]:
    """The global names and attributes that code mentions, inner functions included."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _is_value(value: Any) -> bool:
    """Whether a global is data: not a module, a class or an object with a life of its own."""
    if isinstance(value, (list, tuple, dict)):
        return len(value) <= _MOST_GLOBALS
    return isinstance(value, (bool, int, float, complex, str, torch.Tensor, torch.nn.Module))


def _is_library(module: str | None) -> bool:
    """Whether a module does not change while a program runs."""
    return module is None or module.partition(".")[0] in _LIBRARIES


_LIBRARIES = frozenset({"torch", "autogen", "numpy", *sys.stdlib_module_names}) - {"__main__"}

# What every module keeps for torch's own use. Hooks run around `forward`, outside what is traced.
_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}


class _Identity:
    """Any other object: equal to itself only. Holding it keeps its identity from being given to another."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
