"""Taking apart what was read at once."""

import triton
import triton.language as tl


@triton.jit
def parts_of_2(pairs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The columns of a tile of two; each thread has whole rows, so nothing moves."""
    return tl.split(pairs)


@triton.jit
def parts_of_4(records: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The columns of a tile of four; each thread has whole rows, so nothing moves."""
    even, odd = tl.split(tl.reshape(records, [records.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth
