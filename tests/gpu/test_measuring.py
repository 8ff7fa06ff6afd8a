"""On a GPU: what `bench.gpu` says of calls."""

from __future__ import annotations

import time

import pytest
import torch

from bench import gpu
from bench.results import percentile
from tests.gpu.device import DEVICE


@pytest.mark.hardware
def test_launches_of_each_call() -> None:
    x = torch.zeros(1024, device=DEVICE)
    calls = {
        "one": (lambda _: x.add_(1), lambda _: x.mul_(2)),
        "two": (lambda _: x.add_(1).mul_(2), lambda _: x.mul_(2).add_(1).mul_(2)),
        "none": (lambda _: None, lambda _: x.mul_(2)),
    }
    assert gpu.launches(calls) == {"one": 1, "two": 2, "none": 0}


@pytest.mark.hardware
def test_what_the_host_takes_is_not_timed() -> None:
    x = torch.zeros(1024, device=DEVICE)

    def slowly(_: int) -> None:
        time.sleep(0.0005)
        x.add_(1)

    assert percentile(gpu.times(slowly, lambda _: None), 0.5) < 100
