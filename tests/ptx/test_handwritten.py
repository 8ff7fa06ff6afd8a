"""Every handwritten kernel, compiled for real targets: nothing spills, and the last block is ordered."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

import autogen.losses
from autogen.aot import TARGETS, SpecializedKernel, compile_kernel, kernels_of
from bench.assembly import Atomic, atomics_of
from tests.ptx.cases import TRITON

LAST_BLOCK = Atomic("add", "acq_rel", "gpu")


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype).log_softmax(-1).requires_grad_()


def ctc(dtype: torch.dtype, steps: int, labels: int) -> tuple[Any, ...]:
    return x(steps, 4, 30, dtype=dtype), torch.ones(4, labels).long(), torch.full((4,), steps), torch.full((4,), labels)


def y(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


F16, F32, BF16, F64 = torch.float16, torch.float32, torch.bfloat16, torch.float64
signs, none = torch.ones(64), -torch.ones(64, 100).long()
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "cosine": (autogen.losses.CosineEmbeddingLoss(), (x(64, 768), x(64, 768), signs)),
    "cosine, bfloats": (autogen.losses.CosineEmbeddingLoss(margin=0.5), (x(64, 999, dtype=BF16), x(64, 999), signs)),
    "cosine, doubles": (autogen.losses.CosineEmbeddingLoss(reduction="none"), (x(64, 9, dtype=F64), x(64, 9), signs)),
    "margin": (autogen.losses.MultiLabelMarginLoss(), (x(64, 100), none)),
    "margin, bfloats": (autogen.losses.MultiLabelMarginLoss(reduction="sum"), (x(64, 100, dtype=BF16), none)),
    "margin, many classes": (autogen.losses.MultiLabelMarginLoss(), (x(4, 5000), -torch.ones(4, 5000).long())),
    "ctc": (autogen.losses.CTCLoss(), ctc(F32, 100, 20)),
    "ctc, doubles": (autogen.losses.CTCLoss(reduction="none", zero_infinity=True), ctc(F64, 50, 10)),
    "ctc, long targets": (autogen.losses.CTCLoss(), ctc(F32, 700, 300)),
    "InfoNCE": (autogen.losses.InfoNCELoss(), (y(4096, 128), y(4096, 128))),
    "InfoNCE, few": (autogen.losses.InfoNCELoss(reduction="none"), (y(256, 128), y(256, 128))),
    "InfoNCE, bfloats": (autogen.losses.InfoNCELoss(), (y(8192, 128, dtype=BF16), y(8192, 128, dtype=BF16))),
    "InfoNCE, negatives": (autogen.losses.InfoNCELoss(), (y(4096, 128), y(4096, 128), y(65536, 128))),
    "InfoNCE, long": (autogen.losses.InfoNCELoss(), (y(4096, 256), y(4096, 256))),
    "InfoNCE, long bfloats": (autogen.losses.InfoNCELoss(), (y(4096, 256, dtype=BF16), y(4096, 256, dtype=BF16))),
    "SupCon": (autogen.losses.SupConLoss(), (y(2048, 2, 128), torch.zeros(2048).long())),
    "SupCon, few": (autogen.losses.SupConLoss(), (y(512, 128, dtype=BF16), torch.zeros(512).long())),
    "SupCon, halves": (autogen.losses.SupConLoss(), (y(8192, 2, 128, dtype=F16), torch.zeros(8192).long())),
}
# With products on tensor cores of NVIDIA, which calls on others have no kernel for.
# Bytes of numbers that wait for the end of a loop.
SPILLED = {"sm_80": 24, "sm_90": 16, "sm_100": 8} if TRITON < (3, 7) else {"sm_80": 40, "sm_90": 0, "sm_100": 16}
SPILLED_OF_LONG = 80  # of 256 dimensions by four warps: with eight nothing does, and they take half as long again
if TRITON >= (3, 9):
    SPILLED["sm_80"], SPILLED_OF_LONG = 48, 88
PRODUCTS = frozenset(name for name in CALLS if name.startswith(("InfoNCE", "SupCon")))
CASES = [
    case for case in itertools.product(CALLS, TARGETS) if case[0] not in PRODUCTS or TARGETS[case[1]].backend == "cuda"
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def compiled(request: pytest.FixtureRequest) -> tuple[str, list[SpecializedKernel], list[Any]]:
    name, target = request.param
    loss, inputs = CALLS[name]
    found = list(kernels_of(loss, *inputs))
    return name, found, [compile_kernel(kernel, TARGETS[target]) for kernel in found]


def test_one_kernel_each_way(compiled: tuple[str, list[SpecializedKernel], list[Any]]) -> None:
    _, kernels, _ = compiled
    assert [kernel.direction for kernel in kernels] == ["forward", "backward"]


def test_nothing_spills(compiled: tuple[str, list[SpecializedKernel], list[Any]]) -> None:
    name, _, results = compiled
    for result in results:
        allowed = SPILLED[result.target] if name in PRODUCTS else 0
        if name == "InfoNCE, long":
            allowed = SPILLED_OF_LONG
        assert result.spilled <= allowed, result.kernel


def test_only_the_last_block_is_ordered(compiled: tuple[str, list[SpecializedKernel], list[Any]]) -> None:
    """Of all, and of the parts of some rows' columns, in as many programs."""
    name, (first, _), (forward, backward) = compiled
    is_scalar = CALLS[name][0].reduction != "none"
    is_split = name in PRODUCTS and bool(first.parameters[-1].value)  # IS_SPLIT
    assert atomics_of(forward) == (LAST_BLOCK,) * (is_scalar + is_split)
    assert atomics_of(backward) == ()


def test_columns_are_in_shared_memory_twice() -> None:
    """As they are read, two tiles of 64 at a time, and as two halves."""
    loss, inputs = CALLS["InfoNCE"]
    forward, _ = kernels_of(loss, *inputs)
    assert compile_kernel(forward, TARGETS["sm_90"]).shared <= 4 * 128 * (2 * 64 + 64) + 1024


def test_products_are_on_tensor_cores() -> None:
    """Of bfloat16, and of the halves of single precision."""
    for call, kind in (("InfoNCE, bfloats", "bf16"), ("InfoNCE", "f16")):
        loss, inputs = CALLS[call]
        for kernel in kernels_of(loss, *inputs):
            text = compile_kernel(kernel, TARGETS["sm_80"]).asm
            found = set(re.findall(r"\bmma\.sync\.aligned\.m16n8k\d+\.row\.col\.f32\.(\w+)", text))
            assert found == {kind}
