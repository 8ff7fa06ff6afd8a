"""Resizing: torch's kernels copy along a dimension that keeps its size, whatever the factor, and round bytes in a way
of their own; its formulas do neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten

# How many arguments an op has between the sizes and the factors.
RESIZING = {
    aten.upsample_nearest2d.default: 0,
    aten.upsample_linear1d.default: 1,
    aten.upsample_bilinear2d.default: 1,
    aten.upsample_trilinear3d.default: 1,
    aten.upsample_bicubic2d.default: 1,
}


def resized(op: Any) -> Callable[..., Any]:
    """torch's formula for one of these; bytes are resized by torch itself."""
    flags = RESIZING[op]
    is_copying = op is not aten.upsample_bicubic2d.default

    def resize(input: Tensor, sizes: Sequence[Any], *options: Any) -> Any:
        if input.dtype == torch.uint8:
            return NotImplemented
        along = zip(input.shape[2:], sizes, options[flags:], strict=False)
        factors = (1.0 if is_copying and _keeps(*each) else each[-1] for each in along)
        return decomposition_table[op](input, sizes, *options[:flags], *factors)

    return resize


def _keeps(before: Any, after: Any, factor: Any) -> bool:
    """Whether a size is kept, and a factor given for it; it is asked of those only that may keep one."""
    return factor is not None and bool(1 < factor < 2) and bool(before == after)
