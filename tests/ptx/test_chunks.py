"""Kernels of chunks of rows, compiled for real targets: nothing spills."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss
from autogen.aot import TARGETS, compile_kernel, kernels_of


def head(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = hidden @ weight.t()
    return F.cross_entropy(logits, labels) + 1e-4 * logits.logsumexp(-1).square().mean()


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize(
    ("dtype", "reduction"), [(torch.float32, "mean"), (torch.bfloat16, "mean"), (torch.bfloat16, "none")]
)
def test_kernels_of_chunks(dtype: torch.dtype, reduction: str, target: str) -> None:
    def rows(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(hidden @ weight.t(), labels, reduction="none")

    hidden, weight = (torch.empty(n, 64, dtype=dtype, requires_grad=True) for n in (4096, 128_256))
    loss = autogen_loss(head if reduction == "mean" else rows)
    kernels = kernels_of(loss, hidden, weight, torch.empty(4096, dtype=torch.long))
    chunks = [kernel for kernel in kernels if "chunk_rows" in kernel.text]
    assert [kernel.direction for kernel in chunks] == ["forward"] + ["backward"] * (reduction == "none")
    assert all(compile_kernel(kernel, TARGETS[target]).spilled == 0 for kernel in chunks)
