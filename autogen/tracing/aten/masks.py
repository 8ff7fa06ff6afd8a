"""Boolean masks as indices: what they choose has a size that only values know.

`x[mask]` is recorded as `masked_read`, whose result has a dimension of unknown size: one size per mask, so that what is
chosen by equal masks goes together. `x[mask] = y` is recorded as `masked_write`. Lowering never chooses: it walks the
whole tensor, and what the mask leaves out does not count. Where that cannot be done, the loss is traced again, and the
places where a mask holds are known ahead.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from autogen.tracing.domain.ahead import Keys
from autogen.tracing.domain.entries import Size

aten = torch.ops.aten

_READS = {aten.index.Tensor}
_WRITES = {
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index_put.default,
    aten._index_put_impl.default,
    aten._index_put_impl_.default,
}
DTYPES = {torch.bool, torch.uint8}
IN_PLACE = {aten.index_put_.default, aten._index_put_impl_.default}


def masked_read(tensor: torch.Tensor, mask: torch.Tensor, before: int) -> torch.Tensor:
    """`tensor[:, ..., mask]` with `before` whole dimensions in front of the mask's."""
    return tensor[(slice(None),) * before + (mask,)]


def masked_write(
    tensor: torch.Tensor,
    mask: torch.Tensor,
    before: int,
    values: torch.Tensor,
    accumulate: bool,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """A copy of `tensor` in which `values` stand where the mask is true, or are added there; `order` tells, if it is
    known, which of the values goes where.
    """
    return tensor.index_put((None,) * before + (mask,), values, accumulate)


def mask_of(indices: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, int] | None:
    """The boolean mask among the indices of an op, and the number of dimensions before it; None if there is more."""
    given = [(position, index) for position, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0][1].dtype != torch.bool:
        return None
    return given[0][1], given[0][0]


def are_none(indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether no index is a mask."""
    return all(index is None or index.dtype not in DTYPES for index in indices)


def require_fit(tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
    """Raise if a mask among the indices of an op has not the sizes of the dimensions that it is for."""
    dim = 0
    for index in indices:
        if index is None or index.dtype not in DTYPES:
            dim += 1
            continue
        sizes = tensor.shape[dim : dim + index.dim()]
        if len(sizes) < index.dim() or any(map(operator.ne, index.shape, sizes)):
            raise IndexError(f"a mask of shape {tuple(index.shape)} for dimensions of {tuple(sizes)}")
        dim += index.dim()


def require_broadcast(shape: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raise if a tensor of one shape cannot be written where another is chosen."""
    if len(shape) > len(wanted):
        raise RuntimeError(f"values of shape {tuple(shape)} in the place of {tuple(wanted)}")
    for own, size in zip(reversed(shape), reversed(wanted), strict=False):
        is_same = isinstance(own, torch.SymInt) and isinstance(size, torch.SymInt) and own.node.expr == size.node.expr
        if not is_same and own != 1 and own != size:
            raise RuntimeError(f"values of shape {tuple(shape)} in the place of {tuple(wanted)}")


def reads(func: Any) -> bool:
    """Whether an op reads at indices."""
    return func in _READS


def writes(func: Any) -> bool:
    """Whether an op writes at indices."""
    return func in _WRITES


class Choices:
    """The sizes of what masks choose, in one trace, where they are not known ahead; equal masks have one.

    Masks that differ in nothing but sizes, as one that is expanded for a prediction and for its target, are equal where
    these sizes are; that becomes a guard.
    """

    def __init__(self, keys: Keys) -> None:
        self._sizes: dict[int, torch.SymInt] = {}
        self._alike: dict[int, list[torch.fx.Node]] = {}
        self._keys = keys

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def size(self, node: torch.fx.Node, shapes: Any) -> torch.SymInt:
        """The number of places where a mask, a node of the graph, is true."""
        key = self._keys.of(node)
        if key not in self._sizes:
            alike = self._alike.setdefault(self._keys.of_now(node), [])
            self._sizes[key] = self._size_of_new(node, alike, shapes)
            alike.append(node)
        return self._sizes[key]

    def _size_of_new(self, node: torch.fx.Node, alike: Sequence[torch.fx.Node], shapes: Any) -> torch.SymInt:
        for mask in alike:
            if all(_require_equal(*pair, shapes) for pair in self._keys.differences(mask, node)):
                return self._sizes[self._keys.of(mask)]
        unknown: torch.SymInt = shapes.create_unbacked_symint()
        torch._check(unknown >= 0)
        return unknown


def _require_equal(one: Size, other: Size, shapes: Any) -> bool:
    """Whether two sizes are equal, which is a guard."""
    own, their = (shapes.create_symintnode(size.expression, hint=size.hint) for size in (one, other))
    return bool(own == their)
