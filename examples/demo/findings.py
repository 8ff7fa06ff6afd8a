"""All that the demo found out, from which the terminal's table and the page are made."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from examples.demo.compiling import Verdict
from examples.demo.training import Training
from examples.demo.walking import Row


@dataclass(frozen=True)
class Findings:
    """What happened on a device: the training, and for every case a row of the table and its compilation."""

    device: torch.device
    training: Training
    rows: list[Row]
    verdicts: list[list[Verdict]]

    @property
    def good(self) -> bool:
        """Whether everything is as it should be."""
        compiled = all(verdict.good for verdicts in self.verdicts for verdict in verdicts)
        return self.training.agrees and compiled and all(row.report.path == "generated" for row in self.rows)
