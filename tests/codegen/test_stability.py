"""The same loss gives the same bytes: on every call, in every process, from every folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autogen.aot import kernels_of
from autogen.losses import CrossEntropyLoss
from bench.kernel_cases import CASES, Case, kernels

ROOT = Path(__file__).parents[2]
# One of each shell: the whole list would take minutes.
SAMPLE = [CASES[k] for k in range(0, len(CASES), 7)]


def digest(case: Case) -> str:
    return hashlib.sha256("".join(kernel.text for kernel in kernels(case)).encode()).hexdigest()


def digests() -> list[str]:
    return [digest(case) for case in SAMPLE]


@pytest.mark.slow
def test_another_process_with_another_hash_seed(tmp_path: Path) -> None:
    program = "from tests.codegen.test_stability import digests; print(*digests())"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == digests()


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_generating_again(case: Case) -> None:
    first = digest(case)
    kernels.__globals__["_kernels"].cache_clear()
    assert digest(case) == first


def test_after_the_same_loss_with_other_numbers() -> None:
    def text(ignored: int) -> str:
        x, y = torch.ones(64, 100, requires_grad=True), torch.zeros(64, dtype=torch.int64)
        return kernels_of(CrossEntropyLoss(ignore_index=ignored), x, y)[0].text

    first, *others = map(text, (-100, 3, 5, -100))
    assert first == others[-1]
