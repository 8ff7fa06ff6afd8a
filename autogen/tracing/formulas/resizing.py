"""Resizing: torch's kernels copy along a dimension that keeps its size, whatever the factor, and round bytes in a way
of their own; its formulas do neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table

from autogen.tracing.symbols import NUMBERS

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


# By how a tensor is resized, the ops for one, two and three dimensions.
_OF_MODES: dict[str, Sequence[Any]] = {
    "nearest": (aten.upsample_nearest1d.default, aten.upsample_nearest2d.default, aten.upsample_nearest3d.default),
    "linear": (aten.upsample_linear1d.default,),
    "bilinear": (None, aten.upsample_bilinear2d.default),
    "trilinear": (None, None, aten.upsample_trilinear3d.default),
    "bicubic": (None, aten.upsample_bicubic2d.default),
}


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """`torch.nn.functional.interpolate`, which takes sizes as integers: where they are symbols, the op it comes to."""
    dims, ops = input.dim() - 2, _OF_MODES.get(mode, ())
    op = ops[dims - 1] if 0 < dims <= len(ops) else None
    factors = _each(scale_factor, dims)
    is_plain = not (recompute_scale_factor or antialias) and (size is None) != (scale_factor is None)
    sizes = _each(size, dims) if factors is None else _resized(input.shape[2:], factors)
    symbols = [each for each in (*input.shape, *(sizes or ())) if isinstance(each, NUMBERS)]
    is_refused = (mode == "nearest" and align_corners is not None) or any(each < 1 for each in sizes or ())
    if op is None or not is_plain or sizes is None or not symbols or is_refused:
        return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    flags = () if mode == "nearest" else (bool(align_corners),)
    result: Tensor = op(input, sizes, *flags, *(factors or [None] * dims))
    return result


def _each(given: Any, dims: int) -> list[Any] | None:
    """A number for each dimension; None where there is not."""
    if isinstance(given, (list, tuple)):
        return list(given) if len(given) == dims else None
    return None if given is None else [given] * dims


def _resized(sizes: Sequence[Any], factors: Sequence[Any]) -> list[Any] | None:
    if not all(type(factor) in (int, float) and factor > 0 for factor in factors):
        return None
    return [
        size * int(factor) if float(factor).is_integer() else torch.sym_int(math.floor(size * float(factor)))
        for size, factor in zip(sizes, factors, strict=True)
    ]
