"""What decides is exact to the last bit on a GPU, too.

Triton and LLVM fuse no product with a sum: they would do so in one kernel, or loop, and not in the other, and what
forward finds the largest of, backward computes once more, to see where it is. Quotients that are made integers of are
rounded as a processor does it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen.aot import TARGETS, kernels_of
from autogen.aot.compilation import triton_kernel
from autogen.losses import CrossEntropyLoss


def magnitude(a: Tensor, b: Tensor) -> Tensor:
    return (a * a + b * b).max()


def largest_of_rows(a: Tensor, b: Tensor) -> Tensor:
    return (a * a + b * b).amax(1).sum() + (a * a).sum()


def distances(a: Tensor, b: Tensor) -> Tensor:
    squared = (2.5 * (a[:, None] - b[None]) ** 2).sum(-1)
    return squared.amin(1).mean() + squared.amin(0).mean()


@pytest.mark.parametrize("loss", [magnitude, largest_of_rows, distances])
def test_products_are_rounded(loss: Callable[..., Tensor]) -> None:
    a, b = torch.rand(64, 37, requires_grad=True), torch.rand(64, 37, requires_grad=True)
    compiled = [triton_kernel(kernel, TARGETS["sm_90"])[1] for kernel in kernels_of(loss, a, b)]
    assert any("mul" in each.asm["ptx"] for each in compiled)
    for each in compiled:
        assert "fma" not in each.asm["ptx"], each.metadata.name
        assert not each.metadata.enable_fp_fusion  # which ptxas is told, too


def test_polynomials_are_fused() -> None:
    """Where a kernel asks for it: half as many instructions."""
    x, target = torch.rand(64, 1000, requires_grad=True), torch.zeros(64, dtype=torch.int64)
    for kernel in kernels_of(CrossEntropyLoss(), x, target):
        assert "fma.rn.f32" in triton_kernel(kernel, TARGETS["sm_90"])[1].asm["ptx"]


def bins(a: Tensor, b: Tensor) -> Tensor:
    return (a * (a / b * 10 + 1).long()).sum() + (a * (1 / b).floor()).sum()


def test_quotients_that_become_integers() -> None:
    a, b = torch.rand(64, 37, requires_grad=True), torch.rand(64, 37)
    for kernel in kernels_of(bins, a, b):
        ptx = triton_kernel(kernel, TARGETS["sm_90"])[1].asm["ptx"]
        assert "div.rn.f32" in ptx and "div.full.f32" not in ptx


def test_numbers_that_a_kernel_reads_meet_in_double_precision() -> None:
    def balanced(x: Tensor, label: Tensor) -> Tensor:
        return x.sum() * ((1 - 0.9999) / (1 - 0.9999 ** (label == 1).sum().item()))

    (kernel,) = kernels_of(balanced, torch.ones(5), torch.ones(5, dtype=torch.int64))
    ptx = triton_kernel(kernel, TARGETS["sm_90"])[1].asm["ptx"]
    one_minus_0_9999 = struct.pack(">d", 1 - 0.9999).hex().upper()  # all its digits
    assert "div.rn.f64" in ptx and f"0d{one_minus_0_9999}" in ptx
