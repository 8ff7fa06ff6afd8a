"""Each loss of torch once, on kernels and in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import autogen.losses
from tests.interpret.samples import Samples
from tests.interpret.table import ROWS, Row

FIRST = list({row.loss: row for row in reversed(ROWS)}.values())


def pair(row: Row, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
    """Our loss, torch's, and inputs of which the first asks for its gradient."""
    samples = Samples(dtype)
    given = {**row.options(samples), **options}
    first, *rest = row.inputs(samples)
    return getattr(autogen.losses, row.loss)(**given), getattr(nn, row.loss)(**given), (first.requires_grad_(), *rest)
