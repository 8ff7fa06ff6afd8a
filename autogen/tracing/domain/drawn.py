"""Checks of what a loss has drawn, such as those of `torch.distributions`: the loss is nan if one of them fails.

They would decide whether the loss raises, and what is drawn is not known before it runs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from autogen.torch_step import is_random
from autogen.tracing.domain.ahead import ancestors


class DrawnChecks:
    """The checks of one loss; `node_of` tells what a tensor is in its graph."""

    def __init__(self, node_of: Callable[[torch.Tensor], torch.fx.Node]) -> None:
        self._node_of = node_of
        self._valid: list[torch.Tensor] = []

    def take(self, valid: torch.Tensor) -> bool:
        """Note a check, that all of `valid` is true, if random draws decide it."""
        is_drawn = any(is_random(node.target) for node in ancestors(self._node_of(valid)))
        if is_drawn:
            self._valid.append(valid)
        return is_drawn

    def marked(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Results of the loss, which are nan if a check has failed."""
        if not self._valid:
            return results
        marks = [torch.where(valid, 0.0, float("nan")).sum() for valid in self._valid]
        mark = torch.stack(marks).sum() if len(marks) > 1 else marks[0]
        return [each + mark.to(each.dtype) if each.is_floating_point() else each for each in results]
