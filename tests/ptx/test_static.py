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


# 30 kernels in the first tier, but none of those of pairs of embeddings, which take ptxas longest.
@pytest.mark.cases(15)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("InfoNCE", "SupCon"))) for name in CALLS]
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
