"""Boolean masks as indices: what they choose has a size that only values know.

`x[mask]` is recorded as `masked_read`, whose result has a dimension of unknown size: one size per mask, so that what is
chosen by equal masks goes together. `x[mask] = y` is recorded as `masked_write`. Lowering never chooses: it walks the
whole tensor, and what the mask leaves out does not count. Where that cannot be done, the loss is traced again, and the
places where a mask holds are known ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from autogen.frozen import frozen
from autogen.tracing.ahead import Keys

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
    """The sizes of what masks choose, in one trace, where they are not known ahead; masks of equal keys are equal."""

    def __init__(self, keys: Keys) -> None:
        self._sizes: dict[int, torch.SymInt] = {}
        self._keys = keys

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def size(self, node: torch.fx.Node, shapes: Any) -> torch.SymInt:
        """The number of places where a mask, a node of the graph, is true; of equal masks it is the same."""
        key = self._keys.of(node)
        if key not in self._sizes:
            size = shapes.create_unbacked_symint()
            torch._check(size >= 0)
            self._sizes[key] = size
        return self._sizes[key]


@frozen
class _Known:
    found: torch.Tensor
    where: torch.Tensor
    versions: tuple[int, int]


@frozen
class Written:
    """A write at the `count` places `columns` at which `where` is not 0, after `before` whole dimensions, and at
    `others` of the dimensions that follow.
    """

    where: torch.Tensor
    before: int
    count: Any
    columns: list[torch.Tensor]
    others: list[torch.Tensor]

    def rows(self, tensor: torch.Tensor, values: torch.Tensor, *, accumulate: bool) -> torch.Tensor:
        """What each place is given, the values in their places of the dimensions that follow."""
        if not self.others:
            return values
        rest = tensor.shape[len(self.columns) :]
        rows = tensor.new_zeros((self.count, *rest)) if accumulate else tensor[tuple(self.columns)]
        each = torch.arange(self.count, device=tensor.device)
        return rows.index_put((each, *self.others), values, accumulate)


class Places:
    """What `nonzero` has found in one trace, and in what: indices that are different from each other."""

    def __init__(self) -> None:
        self._found: dict[int, _Known] = {}

    def note(self, found: torch.Tensor, where: torch.Tensor) -> None:
        """That the rows of `found` are the places where `where` is not 0."""
        known = _Known(found, where, (found._version, where._version))
        self._found[found.untyped_storage()._cdata] = known

    def written(self, tensor: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Written | None:
        """A write to `tensor` at places that were found, all of them, if its indices are that."""
        before = next((position for position, index in enumerate(indices) if index is not None), len(indices))
        given = [index for index in indices[before:] if index is not None]
        if not given or len(given) != len(indices) - before:
            return None
        known = self._found.get(given[0].untyped_storage()._cdata)
        if known is None or known.versions != (known.found._version, known.where._version):
            return None
        count, columns = known.found.shape
        others = given[columns:]
        if len(given) < columns or not all(_is_column(each, known.found, k) for k, each in enumerate(given[:columns])):
            return None
        if others and (before or any(each.dim() > 1 or each.dtype in DTYPES for each in others)):
            return None
        sizes = zip(known.where.shape, tensor.shape[before:], strict=False)
        if not all(guard_or_false(n == own) for n, own in sizes):
            return None
        return Written(known.where, before, count, given[:columns], others)


def _is_column(index: torch.Tensor, found: torch.Tensor, k: int) -> bool:
    same = found.select(1, k)
    if index.untyped_storage()._cdata != same.untyped_storage()._cdata or index.dim() != 1:
        return False
    geometry = zip(
        (index.shape[0], index.stride(0), index.storage_offset()), (same.shape[0], same.stride(0), k), strict=True
    )
    return all(guard_or_false(n == own) for n, own in geometry)
