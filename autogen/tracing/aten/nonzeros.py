"""Writes at places that `nonzero` has found, such as the gradient of what was read there.

These places are different from each other, and a mask tells where they are: such a write needs no sorting and no sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from autogen.frozen import frozen
from autogen.tracing.aten import masks


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

    @property
    def mask(self) -> torch.Tensor:
        """Whether there is a place at each element of `where`."""
        return self.where if self.where.dtype == torch.bool else self.where != 0

    def rows(self, tensor: torch.Tensor, values: torch.Tensor, *, accumulate: bool) -> torch.Tensor:
        """What each place is given, the values in their places of the dimensions that follow."""
        if not self.others:
            return values
        rest = tensor.shape[len(self.columns) :]
        rows = tensor.new_zeros((self.count, *rest)) if accumulate else tensor[tuple(self.columns)]
        each = torch.arange(self.count, device=tensor.device)
        return rows.index_put((each, *self.others), values, accumulate)


class Nonzeros:
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
        if not given or len(given) != len(indices) - before or len(indices) > tensor.dim():
            return None
        known = self._found.get(given[0].untyped_storage()._cdata)
        if known is None or known.versions != (known.found._version, known.where._version):
            return None
        count, columns = known.found.shape
        others = given[columns:]
        if len(given) < columns or not all(_is_column(each, known.found, k) for k, each in enumerate(given[:columns])):
            return None
        if others and (before or any(each.dim() > 1 or each.dtype in masks.DTYPES for each in others)):
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
