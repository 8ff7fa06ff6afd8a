"""Binding: one call of a loss, taken apart into its tensors, by name, and everything else, as a key.

What a loss computes depends on its arguments, on the state of its module, and on what its function closes over.
Tensors among these become inputs of the trace; numbers, strings and flags are baked into it and so belong to the
key, which makes a changed attribute another trace.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

_replaying = threading.local()


def is_replaying() -> bool:
    """Whether this thread is running a loss in torch on behalf of a decorated one: then nothing is generated."""
    return getattr(_replaying, "depth", 0) > 0


@dataclass(frozen=True)
class Binding:
    """A call: `tensors` and their `names`, `statics` for all else, and how to run the loss on other tensors.

    `arguments` are those of the call by name, of a method without its `self`.
    """

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    statics: Hashable
    arguments: Mapping[str, Any]
    _run: Callable[[Sequence[torch.Tensor]], Any]

    def replay(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Run the loss as torch would, on the given tensors in the place of its own."""
        _replaying.depth = getattr(_replaying, "depth", 0) + 1
        try:
            return self._run(tensors)
        finally:
            _replaying.depth -= 1


def bind(
    function: Callable[..., Any],
    signature: inspect.Signature,
    module: torch.nn.Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Binding:
    """Take a call of `function(*args, **kwargs)` apart; for a method of `module`, its state too.

    Raises:
        TypeError: the arguments do not fit the signature.
    """
    given = ((module, *args) if module is not None else args, kwargs)
    leaves, structure = pytree.tree_flatten(given)
    spots = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    arguments = signature.bind(*given[0], **kwargs).arguments
    labels = _labels(arguments)
    names = [next(labels[id(leaves[k])]) for k in spots]
    tensors = [leaves[k] for k in spots]
    statics: list[Hashable] = [str(structure)]
    statics += [_fingerprint(leaf) for leaf in leaves if leaf is not module and not isinstance(leaf, torch.Tensor)]
    statics += [_closure_fingerprint(function)]

    state: list[tuple[torch.nn.Module, str]] = []
    if module is not None:
        for prefix, owner in module.named_modules():
            for attribute, value in _tensors_of(owner):
                state.append((owner, attribute))
                names.append(f"{prefix}.{attribute}".lstrip("."))
                tensors.append(value)
        statics.append(_module_fingerprint(module))

    def run(replacements: Sequence[torch.Tensor]) -> Any:
        filled = list(leaves)
        for spot, tensor in zip(spots, replacements, strict=False):
            filled[spot] = tensor
        new_args, new_kwargs = pytree.tree_unflatten(filled, structure)
        with _swapped(state, replacements[len(spots) :]):
            return function(*new_args, **new_kwargs)

    if module is not None:
        arguments = dict(list(arguments.items())[1:])
    return Binding(tuple(_unique(names)), tuple(tensors), tuple(statics), arguments, run)


def _labels(arguments: Mapping[str, Any]) -> dict[int, Iterator[str]]:
    """What the function calls each tensor: its parameter, numbered inside lists; one after the other if it has several
    names, as it is passed more than once.
    """
    labels: dict[int, list[str]] = {}
    for name, value in arguments.items():
        leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for position, leaf in enumerate(leaves):
            labels.setdefault(id(leaf), []).append(name if len(leaves) == 1 else f"{name}_{position}")
    return {tensor: iter(names) for tensor, names in labels.items()}


def _unique(names: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    result = []
    for name in names:
        name = name.replace(".", "_")
        candidate, copy = name, 2
        while candidate in seen:
            candidate, copy = f"{name}_{copy}", copy + 1
        seen.add(candidate)
        result.append(candidate)
    return result


def _stores(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    return module._parameters, module._buffers, module.__dict__


def _tensors_of(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers and plain tensor attributes of one module."""
    for store in _stores(module):
        for name, value in store.items():
            if isinstance(value, torch.Tensor):
                yield name, value


@contextmanager
def _swapped(state: Sequence[tuple[torch.nn.Module, str]], tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Other tensors in the place of a module's own, without the checks of `nn.Module.__setattr__`."""
    stores: list[dict[str, Any]] = [next(store for store in _stores(owner) if name in store) for owner, name in state]
    before = [store[name] for store, (_, name) in zip(stores, state, strict=True)]
    try:
        for store, (_, name), tensor in zip(stores, state, tensors, strict=True):
            store[name] = tensor
        yield
    finally:
        for store, (_, name), tensor in zip(stores, state, before, strict=True):
            store[name] = tensor


# What every module keeps for torch's own use. Hooks run around `forward`, outside what is traced.
_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}


def _module_fingerprint(module: torch.nn.Module) -> Hashable:
    own = tuple(
        (name, _fingerprint(value))
        for name, value in module.__dict__.items()
        if name not in _INTERNALS and not isinstance(value, torch.Tensor)
    )
    absent = tuple(name for store in (module._parameters, module._buffers) for name, v in store.items() if v is None)
    inner = tuple((name, _module_fingerprint(child)) for name, child in module._modules.items() if child is not None)
    return type(module), own, absent, inner


def _closure_fingerprint(function: Callable[..., Any], depth: int = 3) -> Hashable:
    cells = getattr(function, "__closure__", None) or ()
    return tuple(_fingerprint(_contents(cell), depth) for cell in cells)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _fingerprint(value: Any, depth: int = 3) -> Hashable:
    """A key that changes when a value that the loss may read changes."""
    if isinstance(value, float):
        return float, repr(value)  # nan equals itself here, and 0.0 differs from -0.0
    if value is None or isinstance(value, (int, str, bytes, complex, torch.dtype, torch.device)):
        return type(value), value
    if depth and isinstance(value, (list, tuple)):
        return type(value), tuple(_fingerprint(item, depth - 1) for item in value)
    if depth and isinstance(value, dict):
        return dict, tuple((repr(key), _fingerprint(item, depth - 1)) for key, item in value.items())
    if isinstance(value, torch.nn.Module):
        return _module_fingerprint(value)
    if depth and hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return type(value), _fingerprint(vars(value), depth - 1)
    if depth and isinstance(value, types.FunctionType) and (value.__closure__ or value.__defaults__):
        return _Identity(value), _closure_fingerprint(value, depth - 1), _fingerprint(value.__defaults__, depth - 1)
    return _Identity(value)


class _Identity:
    """Any other object: equal to itself only. Holding it keeps its identity from being given to another."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
