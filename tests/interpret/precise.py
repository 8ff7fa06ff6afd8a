"""Compute references for double precision with more digits.

Each operation that torch dispatches, forward and backward, is computed by NumPy as well, in `longdouble`: on x86 it has
64 bits where a double has 53. Where `longdouble` has no more (`HAS_MORE` is false), there is no such judge. What is
compared or chosen is decided by torch's own numbers, so both go the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Wide = np.ndarray[Any, np.dtype[np.longdouble]]

HAS_MORE = np.finfo(np.longdouble).nmant > np.finfo(np.float64).nmant


def _norm(x: Wide, order: float = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axis = _axis(x, dims)
    if abs(order) == np.inf:
        return (np.max if order > 0 else np.min)(np.abs(x), axis=axis, keepdims=keepdim)
    return np.sum(np.abs(x) ** order, axis=axis, keepdims=keepdim) ** (np.longdouble(1) / order)


def _axis(x: Wide, dims: Any) -> Any:
    """NumPy's name of dimensions, which are all if none is named; a scalar has one for torch, and none for NumPy."""
    if dims is None or dims == [] or not x.ndim:
        return None
    return dims if isinstance(dims, int) else tuple(dims)


def _reduced(by: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dims=None, keepdim=False, dtype=None: by(x, axis=_axis(x, dims), keepdims=keepdim)


def _clamp(x: Wide, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = low if low is not None else min, high if high is not None else max
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _index(x: Wide, places: Any) -> Any:
    return x[tuple(slice(None) if each is None else each for each in places)]


# Operations that round, by torch's names.
_ROUNDED: dict[str, Callable[..., Any]] = {
    "add": lambda a, b, alpha=1: a + b * alpha,
    "sub": lambda a, b, alpha=1: a - b * alpha,
    "rsub": lambda a, b, alpha=1: b - a * alpha,
    "mul": np.multiply,
    "div": np.true_divide,
    "reciprocal": lambda x: 1 / x,
    "pow": np.power,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "acos": np.arccos,
    "cos": np.cos,
    "sin": np.sin,
}
# The same, of many numbers each; what these are is rounded on the way, too.
_SUMS: dict[str, Callable[..., Any]] = {
    "sum": _reduced(np.sum),
    "mean": _reduced(np.mean),
    "linalg_vector_norm": _norm,
    "mm": np.matmul,
    "bmm": np.matmul,
}
_EXACT: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "amax": _reduced(np.max),
    "amin": _reduced(np.min),
    "clamp": _clamp,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "relu": lambda x: np.maximum(x, 0),
    "where": np.where,
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "cat": lambda xs, dim=0: np.concatenate(xs, dim),
    "index": _index,
    "clone": lambda x, **_: x,
    "_to_copy": lambda x, **_: x,
    "copy": lambda x, source, *_: source,
    "fill": lambda x, value: value,
    "zero": lambda x: 0,
}
# Each number is one of the arguments'.
_MOVING = {"gather", "scatter", "select_scatter", "slice_scatter", "index_select", "flip", "repeat", "constant_pad_nd"}
# What torch gives is exact.
_OF_TORCH = {"sign", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_empty", "new_full"}
_SINGLE = torch.finfo(torch.float32).eps
_aten = torch.ops.aten
_DECOMPOSITIONS = {**core_aten_decompositions(), **get_decompositions([_aten._log_softmax, _aten._softmax])}


class Precise(TorchDispatchMode):
    """Runs what torch runs and keeps the same in more digits, see `of`.

    With a `seed`, each operation is rounded up or down by chance, as in its dtype: so wrong may torch be, whether or
    not its errors happen to cancel. `unknown` names operations that round and are not known here.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        self._chance = None if seed is None else np.random.default_rng(seed)
        self._memories: dict[int, tuple[Tensor, Wide]] = {}  # the numbers of each storage, which is kept alive

    def of(self, tensor: Tensor) -> Wide:
        """The numbers of a tensor, in memory that all its views share."""
        if not tensor.numel():
            return np.zeros(tensor.shape, np.longdouble)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._memories:
            whole = tensor.detach().as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0)
            self._memories[storage.data_ptr()] = whole, whole.double().numpy().astype(np.longdouble)
        wide = self._memories[storage.data_ptr()][1]
        strides = [stride * wide.itemsize for stride in tensor.stride()]
        return np.lib.stride_tricks.as_strided(wide[tensor.storage_offset() :], tensor.shape, strides)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            found = _DECOMPOSITIONS.get(func, func.decompose)(*args, **kwargs)
        if found is not NotImplemented:
            return found
        wide, named = pytree.tree_map_only(Tensor, self._given, (args, kwargs))
        found = func(*args, **kwargs)
        is_of_numbers = any(map(_has_digits, pytree.tree_leaves((args, kwargs))))
        if not is_of_numbers or not any(_has_digits(each) and each.numel() for each in pytree.tree_leaves(found)):
            return found
        name = func._schema.name.removeprefix("aten::")
        if not isinstance(found, Tensor):  # there are several results
            self.unknown.add(name)
        elif func._schema.is_mutable or found.untyped_storage().data_ptr() not in self._memories:  # no view
            with np.errstate(all="ignore"):
                result = self._computed(name.removesuffix("_"), wide, named, torch.finfo(found.dtype).eps)
                self.of(found)[...] = found.double().numpy() if result is None else result
        return found

    def _given(self, tensor: Tensor) -> Any:
        return self.of(tensor) if _has_digits(tensor) else tensor.numpy()

    def _computed(self, name: str, args: Any, kwargs: Any, eps: float) -> Any:
        """The result of an operation whose dtype has such digits; None if that is torch's."""
        if name in _SUMS:
            first, *rest = args
            return self._rounded(_SUMS[name](self._rounded(first, min(eps, _SINGLE)), *rest, **kwargs), eps)
        if name in _ROUNDED:
            return self._rounded(_ROUNDED[name](*args, **kwargs), eps)
        if name in _EXACT:
            result = _EXACT[name](*args, **kwargs)
            return self._rounded(result, eps) if name == "_to_copy" and eps >= _SINGLE else result
        if name in _MOVING:
            return _moved(getattr(_aten, name), args, kwargs)
        if name not in _OF_TORCH:
            self.unknown.add(name)
        return None

    def _rounded(self, wide: Wide, eps: float) -> Wide:
        if self._chance is None:
            return wide
        return wide * (1 + self._chance.choice((-1, 1), np.shape(wide)) * np.longdouble(eps / 2))


def _moved(operation: Callable[..., Tensor], args: Any, kwargs: Any) -> Wide:
    """What torch moves, the digits of a double first, then the others; numbers to be filled in are in both."""

    def move(part: Callable[[Wide], Any]) -> Any:
        def taken(each: Any) -> Tensor:
            return torch.from_numpy(np.array(part(each) if each.dtype == np.longdouble else each, order="C"))

        moved = pytree.tree_map_only(np.ndarray, taken, (args, kwargs))
        return operation(*moved[0], **moved[1]).numpy().astype(np.longdouble)

    first = move(lambda wide: wide.astype(np.float64))
    rest = move(lambda wide: (wide - wide.astype(np.float64)).astype(np.float64))
    return first + np.nan_to_num(rest - move(lambda wide: np.zeros(wide.shape)), nan=0)


def _has_digits(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
