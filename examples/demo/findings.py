"""The demo's findings, from which the terminal's table and the page are made."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from examples.demo.compiling import Verdict
from examples.demo.training import Training
from examples.demo.walking import Row
from examples.llm_head import Heads


@dataclass(frozen=True)
class Findings:
    """What happened on a device: both trainings, and for every case a row of the table and its compilation."""

    device: torch.device
    training: Training
    heads: Heads
    rows: list[Row]
    verdicts: list[list[Verdict]]

    @property
    def good(self) -> bool:
        """Whether everything is as it should be."""
        compiled = all(verdict.good for verdicts in self.verdicts for verdict in verdicts)
        generated = all(row.report.path == "generated" for row in self.rows)
        return self.training.agrees and self.heads.agrees and compiled and generated
