"""Indexing by a boolean mask, without the data-dependent size that its result has.

`x[mask]` becomes `masked_read`, `x[mask] = y` becomes `masked_write`. Kernels never choose: they walk the whole tensor,
and what the mask leaves out does not count.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

READS = frozenset({aten.index.Tensor, aten._unsafe_index.Tensor})
WRITES = frozenset({aten.index_put.default, aten._unsafe_index_put.default})


def masked_read(tensor: torch.Tensor, mask: torch.Tensor, before: int) -> torch.Tensor:
    """`tensor[:, ..., mask]` with `before` whole dimensions in front of the mask's."""
    return tensor[(slice(None),) * before + (mask,)]


def masked_write(
    tensor: torch.Tensor, mask: torch.Tensor, before: int, values: torch.Tensor, accumulate: bool
) -> torch.Tensor:
    """A copy of `tensor` in which `values` stand where the mask is true, or are added there."""
    return tensor.index_put((None,) * before + (mask,), values, accumulate)


def mask_of(node: torch.fx.Node) -> tuple[torch.fx.Node, int] | None:
    """The mask by which a node reads or writes, if that is its only index, and the number of dimensions before it."""
    indices = [(place, each) for place, each in enumerate(node.args[1]) if each is not None]  # type: ignore[arg-type]
    if len(indices) != 1:
        return None
    place, mask = indices[0]
    return (mask, place) if mask.meta["val"].dtype == torch.bool else None
