"""torch functions that are traced through an equivalent formula.

`multi_margin_loss` cannot be traced as it stands, as torch has no fake implementation of its backward. While a
loss is traced, a call to it runs the formula below; outside a trace nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FormulaMode(TorchFunctionMode):
    """Replaces the functions of `FORMULAS` by their formula."""

    def __torch_function__(
        self,
        func: Any,
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return FORMULAS.get(func, func)(*args, **(kwargs or {}))


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`sum_{c != y} max(0, margin - x_y + x_c)^p * w_y / C`, as `torch.nn.functional.multi_margin_loss`."""
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    if weight is not None and weight.dim() != 1:
        raise ValueError("weight must be one-dimensional")
    scores = input.reshape(1, -1) if input.dim() < 2 else input
    labels = target.reshape(-1)
    if scores.dim() != 2 or scores.shape[1] == 0:
        raise RuntimeError(f"input should be a vector or a matrix of scores, got: {list(input.shape)}")
    if target.dim() > 1 or labels.shape[0] != scores.shape[0]:
        raise RuntimeError(f"inconsistent target size, got: {list(target.shape)}")
    classes = scores.shape[1]
    if weight is not None and weight.shape[0] != classes:
        raise RuntimeError(f"inconsistent weight size, got: {list(weight.shape)}")
    label = labels.unsqueeze(1)
    violation = (margin - scores.gather(1, label) + scores).clamp_min(0.0)
    if p == 2:
        violation = violation * violation
    if weight is not None:
        violation = violation * weight[labels].unsqueeze(1)
    is_target = torch.arange(classes, device=input.device) == label
    loss = violation.masked_fill(is_target, 0.0).sum(dim=1) / classes
    if reduction == "mean":
        return loss.mean() if loss.shape[0] else loss.sum()  # torch's mean of no loss is 0 here
    if reduction == "sum":
        return loss.sum()
    return loss.reshape(()) if target.dim() == 0 else loss


def soft_margin_loss(input: Tensor, target: Tensor, *options: Any, **named: Any) -> Tensor:
    """`torch.nn.functional.soft_margin_loss`, whose fake implementation promotes where the real one does not."""
    return F.soft_margin_loss(input, target.to(input.dtype), *options, **named)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *rest: Any, **named: Any
) -> Tensor:
    """`torch.nn.functional.binary_cross_entropy`, whose fake implementation takes dtypes that the real one refuses."""
    for other in (target, weight):
        if other is not None and other.dtype != input.dtype:
            raise RuntimeError(f"Found dtype {other.dtype} but expected {input.dtype}")
    return F.binary_cross_entropy(input, target, weight, *rest, **named)


FORMULAS: dict[Any, Callable[..., Any]] = {
    F.binary_cross_entropy: binary_cross_entropy,
    F.multi_margin_loss: multi_margin_loss,
    F.soft_margin_loss: soft_margin_loss,
}
