"""Writes in place, made functional: what a write to one tensor means for the tensors that share its memory.

A write gives the written tensor a new value. The tensor that it is a view of gets it put in its place, and so on up to
the tensor that owns the memory; all other views are taken anew when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false as is_dense

from autogen.frozen import frozen
from autogen.torch_step import is_view

aten = torch.ops.aten


@frozen
class View:
    """How a tensor looks at another: `func(base, *args, **kwargs)`."""

    base: torch.Tensor
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def _scattered(scatter: Any) -> Callable[[View, Any, Any], Call]:
    return lambda view, base, part: (scatter, (base, part, *view.args), view.kwargs)


def _reshaped(view: View, base: Any, part: Any) -> Call:
    return aten.view.default, (part, list(view.base.shape)), {}


def _permuted_back(view: View, base: Any, part: Any) -> Call:
    order = [dim % view.base.dim() for dim in view.args[0]]
    return aten.permute.default, (part, [order.index(dim) for dim in range(len(order))]), {}


# By view: the call that gives the base with a new part in the place of the view.
_INVERSES: dict[Any, Callable[[View, Any, Any], Call]] = {
    aten.slice.Tensor: _scattered(aten.slice_scatter.default),
    aten.select.int: _scattered(aten.select_scatter.default),
    aten.diagonal.default: _scattered(aten.diagonal_scatter.default),
    aten.as_strided.default: _scattered(aten.as_strided_scatter.default),
    aten.transpose.int: lambda view, base, part: (view.func, (part, *view.args), {}),
    aten.t.default: lambda view, base, part: (view.func, (part,), {}),
    aten.permute.default: _permuted_back,
    aten.alias.default: lambda view, base, part: (aten.alias.default, (part,), {}),
    aten.detach.default: lambda view, base, part: (aten.alias.default, (part,), {}),
    aten.view.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
}


def _sliced(dim: int, start: Any, shape: torch.Size) -> tuple[Any, ...]:
    return aten.slice.Tensor, dim, start, start + shape[dim]


# By op that returns several views: the call that gives one of them, for its position, its shape and other arguments.
_PARTS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    aten.unbind.int: lambda position, shape, dim=0: (aten.select.int, dim, position),
    aten.split.Tensor: lambda position, shape, size, dim=0: _sliced(dim, size * position, shape),
    aten.split_with_sizes.default: lambda position, shape, sizes, dim=0: _sliced(dim, sum(sizes[:position]), shape),
}


def is_where(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same part of the same memory, seen in the same way."""
    if tensor.untyped_storage()._cdata != other.untyped_storage()._cdata or tensor.dtype != other.dtype:
        return False
    same = tensor.shape == other.shape and tensor.stride() == other.stride()
    return bool(same and tensor.storage_offset() == other.storage_offset())


def overlap_in_part(written: torch.Tensor, read: torch.Tensor) -> bool:
    """Whether torch refuses to write to one while the other is read: dense parts of one memory that overlap."""
    if written.untyped_storage()._cdata != read.untyped_storage()._cdata or is_where(written, read):
        return False
    if not (is_dense(written) and is_dense(read)):
        return False
    first, second = written.storage_offset(), read.storage_offset()
    return bool(first < second + read.numel() and second < first + written.numel())


class Aliases:
    """The views of one trace, and which of them no longer show what their memory holds."""

    def __init__(self) -> None:
        self._views: dict[int, View] = {}
        self._sharing: dict[int, list[torch.Tensor]] = {}
        self._stale: set[int] = set()

    def add(self, tensor: torch.Tensor) -> None:
        """Note a tensor, so that writes to its memory reach it."""
        self._sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)

    def add_view(self, tensor: torch.Tensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that an op has returned a view of its first argument."""
        if is_view(func) and args[0] is not tensor:
            self._views[id(tensor)] = View(args[0], func, args[1:], kwargs)

    def add_part(
        self, tensor: torch.Tensor, position: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note that an op has returned several views of its first argument, this one at a position."""
        if func in _PARTS:
            view, *places = _PARTS[func](position, tensor.shape, *args[1:], **kwargs)
            self._views[id(tensor)] = View(args[0], view, tuple(places), {})

    def is_stale(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has to be taken anew from its base."""
        return id(tensor) in self._stale

    def has_stale(self, tensor: torch.Tensor) -> bool:
        """Whether some tensor with the same memory has to be taken anew."""
        return any(map(self.is_stale, self._sharing.get(tensor.untyped_storage()._cdata, ())))

    def view_of(self, tensor: torch.Tensor) -> View | None:
        """How a tensor looks at another, None if it is no view that is known."""
        return self._views.get(id(tensor))

    def refreshed(self, tensor: torch.Tensor) -> None:
        """Note that a tensor has its memory's value again."""
        self._stale.discard(id(tensor))

    def owners(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors that a tensor is a view of, its own base first."""
        found = []
        view = self.view_of(tensor)
        while view is not None:
            found.append(view.base)
            view = self.view_of(view.base)
        return found

    def written(self, tensor: torch.Tensor) -> None:
        """Mark all tensors that share memory with one that was written; it and its owners have their new values."""
        current = {id(tensor), *map(id, self.owners(tensor))}
        for other in self._sharing.get(tensor.untyped_storage()._cdata, ()):
            if id(other) not in current:
                self._stale.add(id(other))

    def put_back(self, tensor: torch.Tensor, base: Any, part: Any) -> Call | None:
        """The op that puts a view's new value into its base's, None if there is none."""
        view = self._views[id(tensor)]
        inverse = _INVERSES.get(view.func)
        return None if inverse is None else inverse(view, base, part)


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in memory as a copy of it would: only then do strides mean the same for both."""
    numel = tensor.untyped_storage().nbytes() // tensor.element_size()
    return bool(tensor.is_contiguous() and tensor.storage_offset() == 0 and tensor.numel() == numel)
