"""Functions of torch whose arguments are read as numbers before anything hears of a symbol: `torch.tensor(n)`,
`x[n - 1]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autogen.tracing.python.conversions import SymbolicRange
from autogen.tracing.symbols import NUMBERS

_MOST_NUMBERS = 8  # of a tensor: each is an operation
_BASIC = (int, torch.SymInt, slice, type(None), type(...))  # indices, but for booleans


def _has_symbols(values: list[Any], kinds: tuple[type, ...]) -> bool:
    """Whether values are of some kinds alone, and symbols are among them."""
    return any(isinstance(each, NUMBERS) for each in values) and all(isinstance(each, kinds) for each in values)


def _tensor(data: Any, options: dict[str, Any]) -> Tensor | None:
    """A tensor of numbers, as `torch.tensor` makes it; None if no symbol is among them, or there is more to it."""
    numbers = pytree.tree_leaves(data)
    options = {name: option for name, option in options.items() if name != "requires_grad" or option}
    is_plain = options.keys() <= {"dtype", "device"} and len(numbers) <= _MOST_NUMBERS
    if not is_plain or not _has_symbols(numbers, (int, float, *NUMBERS)):
        return None
    if options.get("dtype") is None:
        is_floating = any(isinstance(each, (float, torch.SymFloat)) for each in numbers)
        options["dtype"] = torch.get_default_dtype() if is_floating else torch.int64
    return _stacked(data, options)


def _stacked(data: Any, options: dict[str, Any]) -> Tensor:
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(each, options) for each in data])
    return torch.full((), data, **options)


def _of_numbers(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(data: Any, **options: Any) -> Tensor:
        made = _tensor(data, options)
        return function(data, **options) if made is None else made

    return make


def _new_tensor(input: Tensor, data: Any, **options: Any) -> Tensor:
    made = _tensor(data, {"dtype": input.dtype, "device": input.device, **options})
    return input.new_tensor(data, **options) if made is None else made


def _with_tensors(index: Any, device: torch.device) -> Any:
    """An index, in which `range(n)` is a tensor."""
    if isinstance(index, SymbolicRange):
        return torch.arange(index.size, device=device)
    return tuple([_with_tensors(each, device) for each in index]) if isinstance(index, tuple) else index


def _setitem(input: Tensor, index: Any, value: Any) -> None:
    input[_with_tensors(index, input.device)] = value


def _getitem(input: Tensor, index: Any) -> Tensor:
    """`input[index]`; of places and slices, those that are symbols are taken last."""
    index = _with_tensors(index, input.device)
    indices = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(each, bool) for each in indices) or not _has_symbols(indices, _BASIC):
        return input[index]
    if all(each is not ... for each in indices):
        indices.append(...)
    rest = input.dim() - sum(each is not None and each is not ... for each in indices)
    places, dimension = [], 0
    for k, each in enumerate(indices):
        if isinstance(each, torch.SymInt):
            places.append((dimension, each))
            indices[k] = slice(None)
        dimension += rest if each is ... else not isinstance(each, int)
    found = input[tuple(indices)]
    for dimension, place in reversed(places):
        found = found.select(dimension, place)
    return found


TAKINGNUMBERS: dict[Any, Callable[..., Any]] = {
    torch.tensor: _of_numbers(torch.tensor),
    torch.as_tensor: _of_numbers(torch.as_tensor),
    Tensor.new_tensor: _new_tensor,
    Tensor.__getitem__: _getitem,
    Tensor.__setitem__: _setitem,
}
