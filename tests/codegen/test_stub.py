"""What a type checker sees of the losses: after a change of a constructor, `python -m tests.codegen.regenerate`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.codegen import stub

ROOT = Path(__file__).parents[2]

PROGRAM = """
import torch
import autogen
import autogen.functional as F
from autogen.losses import CrossEntropyLoss, FocalLoss

class Mine(FocalLoss):
    def __init__(self) -> None:
        super().__init__(gamma=3, use_autogen=False)

reveal_type(CrossEntropyLoss(torch.ones(3), use_autogen=True))
reveal_type(Mine().gamma)
reveal_type(F.mse_loss(torch.ones(3), torch.ones(3)))
CrossEntropyLoss(label_smooth=0.1)
FocalLoss(use_autogen=None)
autogen.explian
"""
SEEN = {
    11: 'Revealed type is "autogen.losses.CrossEntropyLoss"',
    12: 'Revealed type is "float"',
    13: 'Revealed type is "torch._tensor.Tensor"',
    14: 'Unexpected keyword argument "label_smooth"',
    15: 'Argument "use_autogen" to "FocalLoss" has incompatible type "None"; expected "bool"',
    16: 'Module has no attribute "explian"',
}


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="written with torch 2.13")
def test_the_file_has_the_constructors_of_all_losses() -> None:
    assert stub.FILE.read_text(encoding="utf-8") == stub.text()


@pytest.mark.slow
def test_a_type_checker_knows_constructors_and_functions(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = re.findall(r"program\.py:(\d+): (?:error|note): (.*)", run.stdout)
    first = dict(reversed([(int(line), text) for line, text in lines]))
    assert first.keys() == SEEN.keys(), run.stdout + run.stderr
    assert all(first[line].startswith(text) for line, text in SEEN.items()), run.stdout
