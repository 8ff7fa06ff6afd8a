"""Every kernel is what `bench/static.json` records, or better.

Where a change makes kernels better, or worse for a reason: `python -m bench.static --write`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import triton

import autogen.losses
from bench import static

# Other versions allocate registers otherwise, and schedule instructions otherwise.
pytestmark = pytest.mark.skipif(not triton.__version__.startswith("3.7."), reason="recorded with Triton 3.7")

RECORDED: dict[str, Any] = json.loads(static.BOUNDS.read_text())
CALLS = static.calls()


def test_every_loss_is_recorded() -> None:
    assert set(RECORDED) == set(CALLS)
    losses = {re.match(r"\w+?(?=_|-|$)", name)[0] for name in CALLS}
    assert losses >= set(autogen.losses.__all__) - {"NLLLoss2d"}  # which is NLLLoss


# Forward and backward, so 30 kernels: each shell, losses of every kind, and none that ptxas takes seconds for.
FIRST_TIER = (
    "L1Loss-1023x1025-float32",
    "MSELoss-4099x4101-float32",
    "HuberLoss-delta=2.0-1024x1040-float32",
    "CrossEntropyLoss-64x1000-float32",
    "CrossEntropyLoss-8x8192-float64",
    "CrossEntropyLoss-8x128256-float32",
    "CrossEntropyLoss-200x50257-float32",
    "MultiMarginLoss-p=2-weight-64x1000-float32",
    "TripletMarginLoss-256x128-float32",
    "CosineEmbeddingLoss-4096x512-float32",
    "CTCLoss-200x32x80-bfloat16",
    "GIoULoss-64",
    "SigmoidFocalLoss-256",
    "KTOLoss-257",
    "spread-float32",
)


def test_the_first_tier_is_recorded() -> None:
    assert set(FIRST_TIER) <= set(CALLS)


@pytest.mark.cases(len(FIRST_TIER))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST_TIER)) for name in CALLS]
)
def test_a_kernel_is_no_worse_than_recorded(name: str) -> None:
    assert not static.failures(name, static.facts(*CALLS[name]()), RECORDED[name])


def test_what_is_worse_is_a_failure() -> None:
    bounds = next(iter(RECORDED.values()))
    good = static.Facts(**bounds["forward"])
    for worse in (
        {"launches": 9},
        {"programs": 0},
        {"traffic": 9.0},
        {"width": 0},
        {"registers": 999},
        {"spilled": 8},
        {"shared": 10**6},
    ):
        found = replace(good, **worse), static.Facts(**bounds["backward"])  # type: ignore[arg-type]
        assert len(static.failures("loss", found, bounds)) == 1
