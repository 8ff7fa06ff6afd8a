"""Compare kernels that compute the same by launches, then bytes, then programs too few to fill the device.

Sizes are those of a sample call. What programs store for the last block of their own launch stays in the GPU's caches,
and is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import sympy

from autogen.errors import ScheduleError
from autogen.ir import Buffer
from autogen.ir.sizes import evaluator_of, hint
from autogen.scheduling.launches.kernel import Kernel, Level

LONG_ROW = 32768  # columns, of which no program has all at once
FEW_IN_ONE = 4096  # elements, for which one program has enough threads

_Found = TypeVar("_Found")


class Cost(NamedTuple):
    """In the order in which it counts; `idle` are programs that there could be, and are not."""

    launches: int
    moved: int
    idle: int


def cost_of(kernels: Sequence[Kernel], sizes: Mapping[str, int]) -> Cost:
    """The cost of some launches."""
    moved = sum(_moved(kernel, sizes) for kernel in kernels)
    return Cost(len(kernels), moved, sum(map(partial(_idle, sizes), kernels)))


def _idle(sizes: Mapping[str, int], kernel: Kernel) -> int:
    return kernel.in_one_block(sizes) // FEW_IN_ONE


def _moved(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Bytes that a kernel reads and writes."""
    if kernel.parts:
        return sum(_moved(part, sizes) for part in kernel.parts)
    written = {root.buffer for root in kernel.roots}
    return read_by([kernel], sizes) + sum(_bytes(buffer, sizes) for buffer in written)


def read_by(kernels: Iterable[Kernel], sizes: Mapping[str, int]) -> int:
    """Bytes that kernels read: of a tensor what their rows and columns have of it, once for each walk."""
    total = 0
    for kernel in kernels:
        total += read_by(kernel.parts, sizes)
        walks = _walks(kernel, sizes)
        read: dict[Buffer, int] = {}
        for load in [*kernel.loads(), *(kernel.last_block.kernel.loads() if kernel.last_block else ())]:
            buffer = load.attrs[0]
            if buffer.role != "partial" and not kernel.parts:
                places = _product([axis.size for axis in sorted(load.axes, key=str)], sizes)
                times = walks if kernel.level(load) is Level.ELEMENT else 1
                read[buffer] = read.get(buffer, 0) + places * times * buffer.dtype.itemsize
        total += sum(min(found, walks * _bytes(buffer, sizes)) for buffer, found in read.items())
    return total


def _walks(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """How often a program goes through its rows."""
    columns = _product([axis.size for axis in kernel.columns], sizes)
    if not kernel.whole_rows or kernel.one_block or columns <= LONG_ROW:
        return 1
    has_elements = any(kernel.level_of_axes(root.index_axes) is Level.ELEMENT for root in kernel.stores)
    return max(len(kernel.passes) + has_elements, 1)


def _bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    """The size of a tensor; a single number, which several parts may read, is in the caches."""
    if not buffer.shape:
        return 0
    return _product(buffer.shape, sizes) * buffer.dtype.itemsize


def _product(extents: Sequence[sympy.Expr], sizes: Mapping[str, int]) -> int:
    return math.prod(map(hint, evaluator_of(*extents)(sizes)))


def cheapest(candidates: Iterable[Callable[[], _Found]], cost: Callable[[_Found], Cost]) -> _Found:
    """The first of the cheapest; none is tried after one that takes one launch, with all programs that there could be.

    Raises:
        ScheduleError: that of the first, if none can be made.
    """
    best: tuple[Cost, _Found] | None = None
    refused: ScheduleError | None = None
    for make in candidates:
        try:
            found = make()
        except ScheduleError as error:
            refused = refused or error
            continue
        own = cost(found)
        if best is None or own < best[0]:
            best = own, found
        if best[0].launches == 1 and not best[0].idle:
            break
    if best is None:
        assert refused is not None
        raise refused
    return best[1]
