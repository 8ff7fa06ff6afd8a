"""On a GPU: InfoNCELoss and SupConLoss, whose kernels multiply on tensor cores, in tiles of every size."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import autogen.losses
from autogen import autogen_loss, explain
from autogen.losses import handwritten
from tests.gpu.device import DEVICE

BOUNDS = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 2e-2}  # of the greatest number of a result


def results(loss: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    value = loss(*inputs)
    # Scaled, as losses in float16 are: gradients of many embeddings would be subnormal, and off by that rounding alone.
    upstream = torch.full_like(value, 4096)
    return [value.detach(), *torch.autograd.grad(value, [each for each in inputs if each.requires_grad], upstream)]


@pytest.mark.hardware
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("kind", ["in the batch", "negatives", "labels"])
# Tiles of 16, 32, 64 and 128 embeddings, of all kinds; the long ones of single precision in chunks, as are odd ones.
@pytest.mark.parametrize(
    ("n", "d"), [(70, 67), (2500, 128), (4500, 127), (4500, 128), (9000, 96), (17000, 128), (3000, 256)]
)
def test_contrastive(n: int, d: int, kind: str, dtype: torch.dtype) -> None:
    made = torch.Generator(DEVICE).manual_seed(0)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, generator=made).to(dtype).requires_grad_()

    if kind == "labels":
        loss, make = autogen.losses.SupConLoss, handwritten.make_sup_con
        inputs: tuple[Tensor, ...] = (real(n, d), torch.randint(0, 50, (n,), device=DEVICE, generator=made))
    else:
        loss, make = autogen.losses.InfoNCELoss, handwritten.make_info_nce
        inputs = (real(n, d), real(n, d), *([real(n // 2, d)] if kind == "negatives" else []))
    tiled = autogen_loss(loss(), handwritten=partial(make, always=True))
    assert explain(tiled, *inputs).path == "handwritten"
    ours, again = results(tiled, inputs), results(tiled, inputs)
    doubles = tuple(each.detach().double().requires_grad_() if each.is_floating_point() else each for each in inputs)
    exact = results(loss(use_autogen=False), doubles)
    for mine, repeated, expected in zip(ours, again, exact, strict=True):
        assert torch.equal(mine, repeated), "two runs differ"
        error = (mine.double() - expected).abs().max() / expected.abs().max()
        assert error <= BOUNDS[dtype], f"off by {error:.1e}"


@pytest.mark.hardware
def test_no_memory_of_the_size_of_all_pairs() -> None:
    """What is allocated beside inputs and gradients is less than an eighth of the matrix of all pairs: factors of both,
    a sum for each row, and parts of these.
    """
    inputs = [torch.randn(8192, 128, device=DEVICE, requires_grad=True) for _ in range(2)]
    loss = autogen.losses.InfoNCELoss()
    results(loss, tuple(inputs))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(loss, tuple(inputs))
    assert torch.cuda.max_memory_allocated() - before <= sum(each.nbytes for each in inputs) + 8192 * 8192 * 4 // 8
