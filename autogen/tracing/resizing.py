"""Resizing: torch's kernels copy along a dimension that keeps its size, whatever the factor; its formulas do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten

# The ops whose kernels do so, and how many of their arguments are between the sizes and the factors.
COPYING = {
    aten.upsample_nearest2d.default: 0,
    aten.upsample_linear1d.default: 1,
    aten.upsample_bilinear2d.default: 1,
    aten.upsample_trilinear3d.default: 1,
}


def resized(op: Any) -> Callable[..., Tensor]:
    """torch's formula for one of these, by a factor of 1 along the dimensions that keep their size."""
    flags = COPYING[op]

    def resize(input: Tensor, sizes: Sequence[Any], *options: Any) -> Tensor:
        along = zip(input.shape[2:], sizes, options[flags:], strict=False)
        factors = (1.0 if _keeps(*each) else each[-1] for each in along)
        result: Tensor = decomposition_table[op](input, sizes, *options[:flags], *factors)
        return result

    return resize


def _keeps(before: Any, after: Any, factor: Any) -> bool:
    """Whether a size is kept, and a factor given for it; it is asked of those only that may keep one."""
    return factor is not None and bool(1 < factor < 2) and bool(before == after)
