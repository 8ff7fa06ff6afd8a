"""The reduction that ends most losses: a number per program, added up inside the launch that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from autogen import compat
from autogen.runtime.handwritten import IS_AUTOCAST
from autogen.runtime.scratch import COUNTERS, ticket_counter

_FEW, _MANY = 128, 1024  # partial results that are added up at once: each number is another kernel


@triton.jit
def _sum_of(partials_ptr: tl.tensor, programs: tl.tensor, PARTIALS: tl.constexpr) -> tl.tensor:
    """The sum of one partial result of each program, in a fixed order."""
    total = tl.full([PARTIALS], 0.0, partials_ptr.dtype.element_ty)
    for first in range(0, programs, PARTIALS):
        program = first + tl.arange(0, PARTIALS)
        arrived = program < programs
        # Past the first-level cache, which does not see what other multiprocessors wrote.
        total += tl.load(partials_ptr + program, mask=arrived, other=0.0, cache_modifier=".cg")
    return tl.sum(total, 0)


@triton.jit
def sum_over_programs(
    partial: tl.tensor,
    total_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    divisor: tl.tensor,
    PARTIALS: tl.constexpr,
    program: tl.tensor,
    programs: tl.tensor,
) -> None:
    """Store the sum of `partial` over some programs, of which this is the one at `program`, divided by `divisor`.

    The last thing that a kernel does. The sum is the same in every run, whichever program comes last.

    partial: scalar, float32 or float64
    total_ptr: scalar (written)
    partials_ptr: (programs,), of the dtype of `partial` (written)
    counter_ptr: int32 scalar, 0 before and after
    divisor: scalar, an integer
    """
    tl.store(partials_ptr + program, partial)
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1:
        tl.store(total_ptr, _sum_of(partials_ptr, programs, PARTIALS) / divisor)
        tl.store(counter_ptr, 0)


@triton.jit
def ratio_over_programs(
    partial: tl.tensor,
    count: tl.tensor,
    ratio_ptr: tl.tensor,
    count_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    PARTIALS: tl.constexpr,
    program: tl.tensor,
    programs: tl.tensor,
) -> None:
    """Like `sum_over_programs`, divided by the sum of `count`, or by 1 if that is 0; the former is stored as well.

    count: scalar, of the dtype of `partial`
    count_ptr: scalar, of that dtype (written)
    partials_ptr: (2 * programs,), the sums and then the counts (written)
    """
    tl.store(partials_ptr + program, partial)
    tl.store(partials_ptr + programs + program, count)
    if tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1:
        total_count = tl.maximum(_sum_of(partials_ptr + programs, programs, PARTIALS), 1.0)
        tl.store(count_ptr, total_count)
        tl.store(ratio_ptr, _sum_of(partials_ptr, programs, PARTIALS) / total_count)
        tl.store(counter_ptr, 0)


def sum_arguments(programs: int, dtype: torch.dtype, device: torch.device, beside: int = 0) -> dict[str, Any]:
    """What `sum_over_programs` needs besides operands and result, by name; `beside` are more numbers to leave there."""
    on_meta = device.type == "meta"
    return {
        "partials_ptr": torch.empty(programs + beside, dtype=dtype, device=device),
        "counter_ptr": torch.empty(COUNTERS, dtype=torch.int32, device=device) if on_meta else ticket_counter(device),
        "PARTIALS": (_FEW if programs <= _FEW else _MANY) // (4 if dtype == torch.float64 else 1),
    }


NO_SUM: Mapping[str, Any] = {"partials_ptr": None, "counter_ptr": None, "PARTIALS": None}
"""The same arguments for a kernel that adds nothing up."""


def reduction_of(arguments: Mapping[str, Any]) -> str:
    """The reduction that a call asks for, by its name or by the old pair of flags."""
    size_average, reduce = arguments["size_average"], arguments["reduce"]
    if size_average is None and reduce is None:
        return arguments["reduction"]
    return compat.reduction_by_flags(size_average, reduce, emit_warning=False)


def result_dtype(arguments: Mapping[str, Any], *inputs: torch.Tensor) -> torch.dtype:
    """The dtype of a loss of `inputs`; under autocast, losses are computed in single precision at least."""
    dtype = inputs[0].dtype
    for each in inputs[1:]:
        dtype = torch.promote_types(dtype, each.dtype)
    return torch.promote_types(dtype, torch.float32) if arguments[IS_AUTOCAST] else dtype


def compute_dtype(*inputs: torch.Tensor) -> torch.dtype:
    """The dtype to compute in: half precision is for storage only."""
    return torch.float64 if any(each.dtype == torch.float64 for each in inputs) else torch.float32
