"""The gradient in forward, compiled for real targets: backward loads a number, compares it, and is done."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from autogen import autogen_loss
from autogen.aot import TARGETS, compile_kernel, kernels_of
from bench.losses import dice


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


CALLS: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "flat": (nn.BCEWithLogitsLoss(), (x(4096, 1024), torch.zeros(4096, 1024))),
    "rows": (nn.CrossEntropyLoss(), (x(8192, 4096, dtype=torch.bfloat16), torch.zeros(8192).long())),
    "long rows": (nn.CrossEntropyLoss(), (x(8192, 128256, dtype=torch.bfloat16), torch.zeros(8192).long())),
    "one program": (dice(), (x(2, 4, 16, 16), torch.zeros(2, 16, 16).long())),
}


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("name", CALLS)
def test_two_kernels_that_do_not_spill(name: str, target: str) -> None:
    loss, inputs = CALLS[name]
    forward, backward = kernels_of(autogen_loss(loss, gradient="forward"), *inputs)
    assert "grad_" in forward.text and "        return\n" in backward.text
    assert compile_kernel(forward, TARGETS[target]).spilled == compile_kernel(backward, TARGETS[target]).spilled == 0


def test_backward_looks_before_it_loads_anything_else() -> None:
    loss, inputs = CALLS["flat"]
    asm = compile_kernel(kernels_of(autogen_loss(loss, gradient="forward"), *inputs)[1], TARGETS["sm_90"]).asm
    before, branch, after = asm.partition("bra")
    assert branch and len(re.findall(r"ld\.global", before)) == 1 and "st.global" not in before
    assert re.search(r"ld\.global\S*\.v4", after) and re.search(r"st\.global\S*\.v4", after)
