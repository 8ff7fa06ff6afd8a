"""Losses beyond torch, and graphs of other structures, compiled for real targets: nothing spills."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autogen.scheduling.launches.kernel
from autogen.aot import TARGETS, SpecializedKernel, compile_kernel, kernels_of
from autogen.tiling.tiler import HEAVY
from bench.losses import chamfer, clip, dice, discrepancy, ranked
from examples import beyond
from tests.ptx.versions import TRITON

UNUSED = 8 if TRITON >= (3, 8) else 0  # bytes of stack of `chosen` that no instruction touches
SLOW_SINE = 48  # bytes of stack for the sine of a large number, which lgamma of a negative one needs


def two_softmaxes(a: Tensor) -> Tensor:
    return (a.softmax(0) * a.softmax(1)).sum()


def chosen(a: Tensor, mask: Tensor) -> Tensor:
    return a[mask].pow(2).mean()


def of_sequences(logits: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return loss.view_as(target).mean(1).pow(2).mean()


def scaled(a: Tensor, scale: Tensor) -> Tensor:
    return (a * scale).tanh().pow(2).mean()


def spread(a: Tensor) -> Tensor:
    return a.norm(dim=1).std()


def conditions(a: Tensor, b: Tensor) -> Tensor:
    whole = (a.sum() > 0) & (b.sum() > 0)
    return torch.where(whole, a.softmax(1).softmax(0), b).where(whole & (b > 0), 2).mean()


def positions(a: Tensor) -> Tensor:
    place = torch.arange(a.shape[1])
    chosen = torch.where(a > 0, a.shape[0], 7) * torch.where(a > 0, place, a.shape[1] * a.shape[0])
    return (a.bfloat16().float() * chosen * place * place).sum() + place.expand(a.shape).where(a > 0, 9).amin(1).sum()


def levels(*tensors: Tensor) -> Tensor:
    """Of a pyramid, and rows of another kind."""
    *pyramid, rows = tensors
    return sum((each.sigmoid().square().mean() for each in pyramid), rows.logsumexp(1).sum())


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


GRAPHS: list[tuple[Any, tuple[Tensor, ...]]] = [
    (dice(), (x(2, 4, 5, 6), torch.zeros(2, 5, 6).long())),
    (dice(), (x(2, 8, 64, 64), torch.zeros(2, 64, 64).long())),
    (dice(), (x(2, 4, 16, 16, dtype=torch.bfloat16), torch.zeros(2, 16, 16).long())),
    (two_softmaxes, (x(60, 60),)),
    (two_softmaxes, (x(300, 400),)),
    (clip, (x(64, 32), x(64, 32))),
    (clip, (x(512, 32), x(512, 32))),
    (chosen, (x(64, 32), torch.zeros(64, 32) > 0)),
    (conditions, (x(60, 60), x(60, 60))),
    (conditions, (x(300, 400), x(300, 400))),
    (positions, (x(60, 60),)),
    (positions, (x(300, 40000),)),
    # Of several parts.
    (levels, (x(8, 3, 64, 65), x(8, 3, 33, 32), x(8, 3, 16, 16, dtype=torch.bfloat16), x(4000, 1001))),
    (levels, (x(8, 3, 64, 65), x(300, 50257))),
    # Of pairs.
    (chamfer, (x(8, 2048, 3), x(8, 2048, 3))),
    (chamfer, (x(2, 1000, 3, dtype=torch.bfloat16), x(2, 900, 3, dtype=torch.bfloat16))),
    (discrepancy, (x(8000, 3), x(9000, 3))),
    (ranked, (x(64, 512), x(64, 512).detach())),
    # Finished by the last block.
    (dice(), (x(8, 19, 256, 256, dtype=torch.bfloat16), torch.zeros(8, 256, 256).long())),
    (of_sequences, (x(4, 1024, 32000, dtype=torch.bfloat16), torch.zeros(4, 1024).long())),
    (of_sequences, (x(4, 1024, 1000), torch.zeros(4, 1024).long())),
    (scaled, (x(65536, 512), x(512))),
    (spread, (x(8192, 1024),)),
]


def kernels() -> Iterator[SpecializedKernel]:
    for loss, inputs in (*beyond.calls(), *GRAPHS):
        yield from kernels_of(loss, *inputs)


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_nothing_spills(target: str) -> None:
    count = 0
    for kernel in kernels():
        if TARGETS[target].backend not in kernel.backends:
            continue
        spilled = compile_kernel(kernel, TARGETS[target]).spilled
        allowed = SLOW_SINE if any(f"{op}(" in kernel.text for op in HEAVY) else 0
        if kernel.name == "chosen_forward":
            allowed = UNUSED
        assert spilled <= allowed, f"{kernel.loss}, {kernel.direction}: {spilled} bytes"
        count += 1
    assert count > 80


def test_a_block_that_is_too_large_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the bound on what one program holds is known to be one."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 2**18)
    forward, _ = kernels_of(two_softmaxes, x(400, 500))
    assert compile_kernel(forward, TARGETS["sm_90"]).spilled > 0


def _is_ordered(kernel: SpecializedKernel) -> bool:
    """Whether all threads of a block have stored before one of them draws the ticket."""
    asm = compile_kernel(kernel, TARGETS["sm_90"]).asm
    before, _, _ = asm.partition("atom.")
    return before.rindex("bar.sync") > before.rindex("st.global")


def test_all_threads_store_before_the_ticket_is_drawn() -> None:
    finished = [k for loss, inputs in GRAPHS[-5:] for k in kernels_of(loss, *inputs) if "_last_block(" in k.text]
    assert len(finished) == 5 and all(map(_is_ordered, finished))
