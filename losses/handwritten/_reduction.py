"""What handwritten losses with a reduction share: sums over programs inside the launch, refusals, and results.

In the kernel, each program has a number, and the last program adds them up; on the host, there are refusals, results,
and arguments.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl

from autogen import compat
from autogen.runtime.direct import padded
from autogen.runtime.handwritten import IS_AUTOCAST, Handwritten
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


class Reduced(Handwritten):
    """A loss of rows that may be added up: what is the same in all that are written by hand.

    `floats` are the dtypes that the kernels take for inputs.
    """

    floats: ClassVar[Sequence[torch.dtype]] = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

    @abstractmethod
    def inputs(self, arguments: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        """The tensors that make up the dtype of the loss; the first is on the device."""

    @abstractmethod
    def shape(self, arguments: Mapping[str, Any]) -> Sequence[int]:
        """That of the losses before they are reduced."""

    @abstractmethod
    def misfit(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Handwritten.refuse`: what is no matter of dtypes or the reduction."""

    def kept(self, arguments: Mapping[str, Any]) -> Mapping[str, tuple[torch.dtype, int]]:
        """What forward keeps for backward, of which dtype and how many, by the names of the kernels' parameters."""
        return {}

    def refuse(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Handwritten.refuse`."""
        if reduction_of(arguments) not in ("none", "mean", "sum"):
            return "an unknown reduction"
        dtypes = {str(each.dtype) for each in self.inputs(arguments) if each.dtype not in self.floats}
        return f"inputs of {' and '.join(sorted(dtypes))}" if dtypes else self.misfit(arguments, needs_gradient)

    def results(self, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Allocate the loss, and what is kept as one tensor of bytes, if anything is."""
        inputs = self.inputs(arguments)
        device, dtype = inputs[0].device, functools.reduce(torch.promote_types, [each.dtype for each in inputs])
        if arguments[IS_AUTOCAST]:  # which computes losses in single precision at least
            dtype = torch.promote_types(dtype, torch.float32)
        shape = self.shape(arguments) if reduction_of(arguments) == "none" else ()
        n_bytes = sum(map(_room, self.kept(arguments).values()))
        saved = (torch.empty(n_bytes, dtype=torch.uint8, device=device),) if n_bytes else ()
        return torch.empty(shape, dtype=dtype, device=device), saved

    def shared(self, arguments: Mapping[str, Any], saved: Sequence[torch.Tensor]) -> dict[str, Any]:
        """What both kernels take of all losses: the parts of what is kept, and what a sum is divided by."""
        divisor = math.prod(self.shape(arguments)) if reduction_of(arguments) == "mean" else 1
        kept = self.kept(arguments)
        # Each begins at a multiple of 16 bytes: Triton compiles a kernel for every other pattern of alignment.
        starts = accumulate(map(_room, kept.values()), initial=0)
        parts = {
            name: saved[0][start:][: dtype.itemsize * count].view(dtype)
            for (name, (dtype, count)), start in zip(kept.items(), starts, strict=False)
        }
        return {**parts, "divisor": divisor}

    def summing(self, arguments: Mapping[str, Any], programs: int, beside: int = 0) -> dict[str, Any]:
        """What forward takes to add up over `programs`, if the loss is a sum; `beside` it are more numbers."""
        programs *= reduction_of(arguments) != "none"
        if not programs + beside:
            return {"partials_ptr": None, "counter_ptr": None, "PARTIALS": None}
        first, *_ = inputs = self.inputs(arguments)
        dtype, device = compute_dtype(*inputs), first.device
        counter = torch.empty(COUNTERS, dtype=torch.int32, device=device) if first.is_meta else ticket_counter(device)
        partials = (_FEW if programs <= _FEW else _MANY) // (4 if dtype == torch.float64 else 1)
        return {
            "partials_ptr": torch.empty(programs + beside, dtype=dtype, device=device),
            "counter_ptr": counter,
            "PARTIALS": partials if programs else None,
        }


def _room(kept: tuple[torch.dtype, int]) -> int:
    """Bytes of some numbers, up to where another tensor may begin."""
    dtype, count = kept
    return padded(dtype.itemsize * count)


def described(
    name: str, tensor: torch.Tensor | None, dims: Sequence[str], shape: Sequence[int] | None = None
) -> dict[str, Any]:
    """A tensor, expanded to a shape, or none, by the names of a kernel's parameters: a pointer, and its strides."""
    strides = [0] * len(dims) if tensor is None else (tensor if shape is None else tensor.expand(*shape)).stride()
    return {f"{name}_ptr": tensor, **{f"{name}_{dim}_stride": each for dim, each in zip(dims, strides, strict=True)}}


def upstream_arguments(upstream: torch.Tensor) -> dict[str, Any]:
    """The gradient of a loss, of all rows or each, by the names of a kernel's parameters."""
    return {"grad_loss_ptr": upstream, "grad_loss_stride": upstream.stride(0) if upstream.dim() else 0}


def reduction_of(arguments: Mapping[str, Any]) -> str:
    """The reduction that a call asks for, by its name or by the old pair of flags."""
    size_average, reduce = arguments.get("size_average"), arguments.get("reduce")
    if size_average is None and reduce is None:
        return arguments["reduction"]
    return compat.reduction_by_flags(size_average, reduce, emit_warning=False)


def compute_dtype(*inputs: torch.Tensor) -> torch.dtype:
    """The dtype to compute in: half precision is for storage only."""
    return torch.float64 if any(each.dtype == torch.float64 for each in inputs) else torch.float32
