"""Functions of torch whose own formula, by which AOTAutograd traces them, is wrong: others, written here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import compat


def replace(graph: torch.fx.GraphModule) -> None:
    """Have a graph of Dynamo's call the formulas."""
    wrong = [node for node in graph.graph.nodes if node.target in _FORMULAS]
    for node in wrong:
        node.target = _FORMULAS[node.target]
    if wrong:
        graph.recompile()


def _multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.multilabel_margin_loss`: torch counts what follows the first -1 as class 0."""
    if size_average is not None or reduce is not None:
        reduction = compat.reduction_by_flags(size_average, reduce, emit_warning=False)
    scores, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = scores.shape[1]
    place = torch.arange(classes, device=labels.device)
    counts = place < torch.where(labels == -1, place, classes).amin(1, keepdim=True)
    is_target = (place == torch.where(counts, labels, -1).unsqueeze(2)).any(1)
    chosen = scores.gather(1, torch.where(counts, labels, 0))
    violations = (1 - chosen.unsqueeze(2) + scores.unsqueeze(1)).clamp_min(0) / classes
    losses = torch.where(counts.unsqueeze(2) & ~is_target.unsqueeze(1), violations, 0).sum((1, 2))
    if reduction == "none":
        return losses if input.dim() > 1 else losses.reshape(())
    return losses.mean() if reduction == "mean" else losses.sum()


# As torch has it, also where this is first imported under `autogen.patch`.
_FORMULAS: dict[Any, Callable[..., Any]] = {inspect.unwrap(F.multilabel_margin_loss): _multilabel_margin_loss}
