"""Every handwritten kernel, compiled for real targets: nothing spills, and the last block is ordered."""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

import pytest
import torch

import autogen.losses
from autogen import autogen_loss
from autogen.aot import TARGETS, SpecializedKernel, compile_kernel, kernels_of
from autogen.losses import handwritten
from bench.assembly import Atomic, atomics_of

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
    "InfoNCE, many": (autogen.losses.InfoNCELoss(), (y(16384, 128), y(16384, 128))),
    "InfoNCE, few": (autogen.losses.InfoNCELoss(reduction="none"), (y(256, 128), y(256, 128))),
    "InfoNCE, bfloats": (autogen.losses.InfoNCELoss(), (y(8192, 128, dtype=BF16), y(8192, 128, dtype=BF16))),
    "InfoNCE, negatives": (autogen.losses.InfoNCELoss(), (y(4096, 128), y(4096, 128), y(65536, 128))),
    "InfoNCE, long": (autogen.losses.InfoNCELoss(), (y(4096, 256), y(4096, 256))),
    "InfoNCE, long bfloats": (autogen.losses.InfoNCELoss(), (y(4096, 256, dtype=BF16), y(4096, 256, dtype=BF16))),
    "InfoNCE, one gradient": (autogen.losses.InfoNCELoss(), (y(512, 33), y(512, 33).detach())),
    "InfoNCE, the other": (autogen.losses.InfoNCELoss(), (y(512, 33).detach(), y(512, 33))),
    "InfoNCE, positives alone": (autogen.losses.InfoNCELoss(), (y(512, 33).detach(), y(512, 33), y(9, 33).detach())),
    "SupCon": (autogen.losses.SupConLoss(), (y(2048, 2, 128), torch.zeros(2048).long())),
    "SupCon, many": (autogen.losses.SupConLoss(reduction="none"), (y(16384, 128), torch.zeros(16384).long())),
    "SupCon, few": (autogen.losses.SupConLoss(), (y(512, 128, dtype=BF16), torch.zeros(512).long())),
    "SupCon, halves": (autogen.losses.SupConLoss(), (y(8192, 2, 128, dtype=F16), torch.zeros(8192).long())),
}
PRODUCTS = frozenset(name for name in CALLS if name.startswith(("InfoNCE", "SupCon")))
SPILLED = 48  # bytes of numbers that wait for the end of a loop, in single precision
CASES = [
    case for case in itertools.product(CALLS, TARGETS) if case[0] not in PRODUCTS or TARGETS[case[1]].backend == "cuda"
]


def kernels_for(name: str, target: str) -> list[SpecializedKernel]:
    """Those of a call, planned for a target; of contrastive losses those of tiles, whatever the sizes are."""
    loss, inputs = CALLS[name]
    if name in PRODUCTS:
        make = handwritten.make_info_nce if name.startswith("InfoNCE") else handwritten.make_sup_con
        version = int(target.removeprefix("sm_"))
        loss = autogen_loss(loss, handwritten=partial(make, always=True, capability=divmod(version, 10)))
    return list(kernels_of(loss, *inputs))


@pytest.fixture(scope="module", params=CASES, ids=str)
def compiled(request: pytest.FixtureRequest) -> tuple[str, list[SpecializedKernel], list[Any]]:
    name, target = request.param
    found = kernels_for(name, target)
    return name, found, [compile_kernel(kernel, TARGETS[target]) for kernel in found]


def test_one_kernel_each_way(compiled: tuple[str, list[SpecializedKernel], list[Any]]) -> None:
    """And one before forward's for what contrastive losses compute of each embedding."""
    name, kernels, _ = compiled
    assert [kernel.direction for kernel in kernels] == [*["forward"] * (name in PRODUCTS), "forward", "backward"]


def test_nothing_spills(compiled: tuple[str, list[SpecializedKernel], list[Any]]) -> None:
    name, _, results = compiled
    for result in results:
        assert result.spilled <= (SPILLED if name in PRODUCTS else 0), result.kernel


def test_only_the_last_block_is_ordered(compiled: tuple[str, list[SpecializedKernel], list[Any]]) -> None:
    """Of all, and of the parts of some rows' columns, in as many programs."""
    name, (*_, first, _), (*before, forward, backward) = compiled
    is_scalar = CALLS[name][0].reduction != "none"
    is_split = name in PRODUCTS and bool(first.parameters[-1].value)  # IS_SPLIT
    assert atomics_of(forward) == (LAST_BLOCK,) * (is_scalar + is_split)
    assert not any(map(atomics_of, (*before, backward)))


# Of bfloat16, and of the halves of single precision; both directions.
@pytest.mark.parametrize(
    ("call", "kind"), [("InfoNCE, bfloats", "bf16"), ("InfoNCE, many", "f16"), ("SupCon, many", "f16")]
)
def test_products_are_on_tensor_cores(call: str, kind: str) -> None:
    """On Hopper on those of warp groups, which read factors where they are, in shared memory."""
    for target, instruction in (
        ("sm_80", r"\bmma\.sync\.aligned\.m16n8k\d+\.row\.col\.f32\.(\w+)"),
        ("sm_90", r"\bwgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.(\w+)"),
    ):
        for kernel in kernels_for(call, target)[1:]:
            text = compile_kernel(kernel, TARGETS[target]).asm
            assert set(re.findall(instruction, text)) == {kind}, (kernel.name, target)
            assert target == "sm_80" or "mma.sync" not in text, kernel.name


@pytest.mark.parametrize("call", ["InfoNCE, many", "SupCon, many"])
def test_embeddings_are_read_once(call: str) -> None:
    """Kernels of pairs are given factors and lengths, which another computes, and no embedding."""
    for kernel in kernels_for(call, "sm_90")[1:]:
        inputs = [each for each in kernel.parameters if each.type.startswith("*")]
        assert [each.type for each in inputs[:2]] == ["*fp16", "*fp16"]
        text = compile_kernel(kernel, TARGETS["sm_90"]).asm
        assert "rsqrt" not in text
