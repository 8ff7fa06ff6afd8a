"""Compiled graphs with losses in the caches of torch and of ours: the next process finds both, or neither."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autogen import autogen_loss
from autogen.dynamo import opaque
from autogen.options import PLANS_VARIABLE
from autogen.runtime import build
from tests.interpret.compiled import compiled, labels, outcome, x
from tests.interpret.processes import result_of, start

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("fresh_dynamo")]

PROGRAM = """
import sys, torch
from torch._dynamo.utils import counters
import autogen.losses
torch.set_num_threads(1)
torch.manual_seed(0)
weight, inputs, labels = torch.randn(5, 7, requires_grad=True), torch.randn(6, 7), torch.randint(5, (6,))
loss = autogen.losses.CrossEntropyLoss(label_smoothing=float(sys.argv[1]))

@torch.compile(fullgraph=True)
def step():
    return loss(inputs @ weight.T, labels)

def outcome(function):
    value = function()
    return [f"{each:.5f}" for each in (value.item(), *torch.autograd.grad(value, weight)[0].sum(1).tolist())]

ours = outcome(step)
autogen.set_policy("disabled")
assert ours == outcome(lambda: loss(inputs @ weight.T, labels)), ours
print(*(counters["inductor"][f"fxgraph_cache_{each}"] for each in ("hit", "miss")), *ours)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches."""
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "autogen"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.delenv(PLANS_VARIABLE)
    return tmp_path


def test_the_next_process_compiles_nothing(folder: Path) -> None:
    first, second, other = (result_of(start(PROGRAM, folder, k, each)) for k, each in enumerate(("0.1", "0.1", "0.2")))
    assert first.startswith("0 2 ")
    assert second == "2 0 " + first[4:]
    assert other.startswith("0 2 ") and other[4:] != first[4:]


def tokens(monkeypatch: pytest.MonkeyPatch, *smoothing: float) -> list[str]:
    """What graphs call losses that are decorated anew, as in another process."""
    found = []
    for each in smoothing:
        torch.compiler.reset()
        monkeypatch.setattr(opaque, "_registered", {})
        outcome(compiled(autogen_loss(torch.nn.CrossEntropyLoss(label_smoothing=each))), x(6, 5), labels(5, 6))
        found += opaque._registered
    return found


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = tokens(monkeypatch, 0.1, 0.1, 0.2)
    assert first == again != other
    monkeypatch.setenv(PLANS_VARIABLE, "0")
    assert len({first, *tokens(monkeypatch, 0.1, 0.1)}) == 3
