"""Read and write rows of a matrix 16 bytes at a time wherever they begin, as generated kernels do (`tiling.skew`).

Where rows are no multiples of 16 bytes, each row's lanes are counted from the multiple of 16 bytes that it begins in. A
*group* of lanes is 16 bytes: what a row has some of is read, beyond its ends, too; what it has all of is stored at
once, and the elements at its ends by themselves. What is read beyond a row belongs to the next one, so that the last
tile of all is read to the element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from autogen.tiling.skew import ACCESS, LEAST_GROUPS


@triton.jit
def start_of_lanes(row: tl.tensor, row_stride: tl.tensor, ALIGN: tl.constexpr, GROUP: tl.constexpr) -> tl.tensor:
    """Where the lanes of some rows begin."""
    # So that the compiler knows how far rows are aligned, and loads that much at a time.
    return row * (row_stride // ALIGN * ALIGN) // GROUP * GROUP


@triton.jit
def masks_of_lanes(
    lane: tl.tensor, skew: tl.tensor, row_mask: tl.tensor, n_cols: tl.tensor, ALIGN: tl.constexpr, GROUP: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Which lanes of some rows are columns; which are in groups that overlap the row, and which in groups inside it.

    lane: (COLS,), or (1, COLS) beside `skew` and `row_mask` of (ROWS, 1)
    """
    n_cols = n_cols // ALIGN * ALIGN
    col = lane - skew
    mask = (col < n_cols) & row_mask
    if GROUP == 1:
        return mask, mask, mask
    else:
        first = lane // GROUP * GROUP - skew
        overlapping = (first < n_cols) & row_mask
        inside = (first >= 0) & (first + GROUP <= n_cols) & row_mask
        return mask & (col >= 0), overlapping, inside


@triton.jit
def load_lanes(
    input_ptr: tl.tensor, place: tl.tensor, mask: tl.tensor, overlapping: tl.tensor, is_last: tl.tensor
) -> tl.tensor:
    """A tile; where there is no element, 0 in the last one, and anything in others."""
    if is_last:
        input = tl.load(input_ptr + place, mask=mask, other=0.0)
    else:
        # Without `other`: branches that differ in a mask alone would be made one, of narrow loads.
        input = tl.load(input_ptr + place, mask=overlapping)
    return input


@triton.jit
def store_lanes(
    x_ptr: tl.tensor, place: tl.tensor, x: tl.tensor, mask: tl.tensor, inside: tl.tensor, is_edge: tl.tensor
) -> None:
    """Store a tile; the elements at the ends of rows by themselves, where it has an edge."""
    if x_ptr.dtype.element_ty == tl.bfloat16:  # to which there is no way from double precision
        x = x.to(tl.float32)
    tl.store(x_ptr + place, x, mask=inside)
    if is_edge:
        tl.store(x_ptr + place, x, mask=mask & ~inside)


def lanes_of(matrices: Sequence[torch.Tensor]) -> dict[str, int]:
    """How far the rows of all `matrices` are known to be aligned, and elements per group, 1 where none are needed.

    They have the same number of columns.
    """
    n_cols = matrices[0].shape[1]
    steps = [each.stride(0) for each in matrices]
    align = math.gcd(ACCESS, n_cols, *steps)
    group = ACCESS // min(each.itemsize for each in matrices)
    is_long = n_cols >= LEAST_GROUPS * group
    follow = all(each.stride(0) >= n_cols and each.stride(1) == 1 for each in matrices)
    alike = all((step - steps[0]) % group == 0 for step in steps)
    return {"ALIGN": align, "GROUP": group if align % group and is_long and follow and alike else 1}
