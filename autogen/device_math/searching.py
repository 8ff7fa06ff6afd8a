"""Search in sorted tensors."""

import triton
import triton.language as tl


@triton.jit
def count_at_most(value: tl.tensor, sorted_ptr: tl.tensor, step: tl.tensor, size: tl.tensor) -> tl.tensor:
    """How many of `size` sorted integers, `step` elements apart from `sorted_ptr` on, are at most each value.

    A binary search whose length is the same for all values, and which never reads beyond the last.
    """
    found = value * 0
    left = tl.full((), 0, tl.int32) + size
    while left > 1:
        half = left // 2
        found = tl.where(tl.load(sorted_ptr + (found + half - 1) * step) <= value, found + half, found)
        left -= half
    last = tl.load(sorted_ptr + found * step, mask=found < size, other=0)
    return tl.where((found < size) & (last <= value), found + 1, found)
