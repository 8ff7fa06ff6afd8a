"""Losses in several threads, and on several devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.losses
from autogen import autogen_loss

pytestmark = pytest.mark.hardware


def cases(device: str) -> list[tuple[nn.Module, nn.Module, tuple[Tensor, ...]]]:
    """Losses, what they stand for, and calls of both."""
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.randn(512, 1000, device=device, generator=generator)
    labels = torch.randint(1000, (512,), device=device, generator=generator)
    other = torch.rand(512, 1000, device=device, generator=generator)
    names: list[tuple[str, tuple[Tensor, ...]]] = [
        ("CrossEntropyLoss", (logits, labels)),
        ("BCEWithLogitsLoss", (logits, other)),
        ("SmoothL1Loss", (logits, other)),
        ("TripletMarginLoss", (logits, other, other.flip(0))),
    ]
    return [(getattr(autogen.losses, name)(), getattr(nn, name)(), given) for name, given in names]


def outcome(loss: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    first = inputs[0].detach().requires_grad_()
    value = loss(first, *inputs[1:])
    (gradient,) = torch.autograd.grad(value, first)
    return value.detach(), gradient


@pytest.mark.parametrize("own_streams", [False, True])
def test_threads(own_streams: bool) -> None:
    """They compile and launch at the same time, on one stream or on one each."""
    given = cases("cuda")
    expected = [outcome(plain, inputs) for _, plain, inputs in given]
    fresh = [autogen_loss(type(plain)()) for _, plain, _ in given]
    torch.cuda.synchronize()

    def run(k: int) -> None:
        stream = torch.cuda.Stream() if own_streams else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            for turn in range(40):
                which = (k + turn) % len(given)
                found = outcome(fresh[which], given[which][2])
                stream.synchronize()
                torch.testing.assert_close(found, expected[which], rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, range(8)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("current", [0, 1])
def test_devices(current: int) -> None:
    with torch.cuda.device(current):
        for device in ("cuda:0", "cuda:1"):
            for loss, plain, inputs in cases(device):
                for _ in range(3):  # the short way, too
                    found, expected = outcome(loss, inputs), outcome(plain, inputs)
                    assert [str(each.device) for each in found] == [device, device]
                    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
