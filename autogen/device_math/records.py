"""Split values that were loaded by one access, and join values for one store.

Each thread has whole rows of a tile, so that nothing moves.
"""

import triton
import triton.language as tl


@triton.jit
def parts_of_2(pairs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The columns of a tile of two."""
    return tl.split(pairs)


@triton.jit
def parts_of_4(records: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The columns of a tile of four."""
    even, odd = tl.split(tl.reshape(records, [records.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def record_of_2(first: tl.tensor, second: tl.tensor) -> tl.tensor:
    """The tile of these two columns."""
    return tl.join(first, second)


@triton.jit
def record_of_4(first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor) -> tl.tensor:
    """The tile of these four columns."""
    halves = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(halves, [first.shape[0], 4])
