"""Losses that are too much for one kernel: pieces, which together are right."""

from __future__ import annotations

import pytest

from autogen import explain
from bench import large
from tests.interpret.test_horizontal import agree

CASES = {
    "chain": lambda: large.chain(2000, 6, 5),
    "reductions": lambda: large.reductions(200, 6, 5),
    "detector": lambda: large.detector(12, 3, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_large_losses_have_kernels_and_are_right(name: str) -> None:
    loss, inputs = CASES[name]()
    ours = agree(loss, inputs)
    report = explain(ours, *inputs)
    assert report.path == "generated" and not report.breaks
    assert report.forward.launches > 1 and report.backward is not None and report.backward.launches > 1
