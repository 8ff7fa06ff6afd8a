"""Losses that are too much for one kernel, compiled for a real target: pieces that do not spill, nor take long."""

from __future__ import annotations

import pytest

from autogen.aot import TARGETS, compile_kernel, kernels_of
from bench import large
from bench.compile import cpu_time

CASES = {
    "chain": lambda: large.chain(300, 512, 1000),
    "reductions": lambda: large.reductions(100, 512, 1000),
    "detector": lambda: large.detector(3, 64, 80),
}
SPILLED = 64  # bytes
SECONDS = 10  # of CPU time, on the slowest machine; some two of others


@pytest.mark.parametrize("name", CASES)
def test_pieces_do_not_spill_or_take_long(name: str) -> None:
    loss, inputs = CASES[name]()
    kernels = kernels_of(loss, *inputs)
    assert len(kernels) > 2
    for kernel in kernels:
        start = cpu_time()
        spilled = compile_kernel(kernel, TARGETS["sm_90"]).spilled
        seconds = cpu_time() - start
        assert spilled <= SPILLED and seconds < SECONDS, (kernel.name, spilled, seconds)


def test_few_rows_of_several_parts_have_several_programs() -> None:
    """Of 64, 32 and 16 boxes with 80 classes, a program has at most 16, in each direction."""
    loss, inputs = large.detector(3, 16, 80)
    for direction in ("forward", "backward"):
        kernels = [kernel for kernel in kernels_of(loss, *inputs) if kernel.direction == direction]
        assert sum(kernel.programs for kernel in kernels) >= (64 + 32 + 16) // 16
