"""Make Triton's interpreter convert to and from bfloat16 as a GPU does.

Of itself it cuts bits off where a GPU rounds to the nearest, so that sums of halves are too small, and takes denormals
for other numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy
import triton.language as tl

from autogen import compat


def converting() -> contextlib.AbstractContextManager[None]:
    """Have the interpreter convert so, for the kernels that this thread runs; no other runs one meanwhile."""
    return compat.interpreter_converting(_as_a_gpu)


def _as_a_gpu(convert: Callable[..., Any]) -> Callable[..., Any]:
    def converted(numbers: Any, given: tl.dtype, wanted: tl.dtype, rounding: Any) -> Any:
        match given, wanted:
            case tl.float32, tl.bfloat16:
                return _nearest(numpy.asarray(numbers, numpy.float32))
            case tl.bfloat16, tl.float32:
                return numpy.asarray(numbers, numpy.uint16).astype(numpy.uint32) << 16
        return convert(numbers, given, wanted, rounding)

    return converted


def _nearest(numbers: Any) -> Any:
    """The bits of the bfloat16 that is next to each number, ties to even."""
    bits = numbers.view(numpy.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return numpy.where(numpy.isnan(numbers), 0x7FC0, nearest).astype(numpy.uint16)
