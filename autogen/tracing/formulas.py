"""torch functions whose fake implementation is missing or differs from the real one: how they are traced.

`multi_margin_loss` cannot be traced as it stands, as torch has no fake implementation of its backward. While a
loss is traced, a call to it runs the formula below; outside a trace nothing changes. Other ops can be traced, but a
trace would take what they refuse, or take it for another dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


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
    if weight is not None and (weight.shape[0] != classes or weight.dtype != input.dtype or weight.requires_grad):
        raise RuntimeError(f"a weight that torch refuses: {weight.dtype} {list(weight.shape)}")
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


FORMULAS: dict[Any, Callable[..., Any]] = {
    F.multi_margin_loss: multi_margin_loss,
}


def _of_one_dtype(*positions: int) -> Callable[..., Any]:
    """A check that the given arguments, where they are tensors, have the dtype of the first of them."""

    def check(*args: Any) -> Any:
        first, *others = [args[k] for k in positions if k < len(args) and args[k] is not None]
        for other in others:
            if other.dtype != first.dtype:
                raise RuntimeError(f"expected {first.dtype} but found {other.dtype}")
        return NotImplemented

    return check


def _huber_loss(input: Tensor, target: Tensor, *options: Any) -> Any:
    if input.dtype == target.dtype:
        return NotImplemented
    wide = torch.promote_types(input.dtype, target.dtype)
    return aten.huber_loss(input.to(wide), target.to(wide), *options).to(input.dtype)


def _in_dtype_of_first(op: Any, position: int) -> Callable[..., Any]:
    """`op` with the argument at `position` cast to the dtype of the first, as it does not promote."""

    def cast(*args: Any) -> Any:
        other = args[position] if position < len(args) else None
        if other is None or other.dtype == args[0].dtype:
            return NotImplemented
        return op(*args[:position], other.to(args[0].dtype), *args[position + 1 :])

    return cast


def _first(*formulas: Callable[..., Any]) -> Callable[..., Any]:
    """The first of some formulas that applies."""

    def apply(*args: Any) -> Any:
        results = (formula(*args) for formula in formulas)
        return next((result for result in results if result is not NotImplemented), NotImplemented)

    return apply


# Ops whose fake implementation takes dtypes that the real one refuses, or gives another dtype.
CORRECTIONS: dict[Any, Callable[..., Any]] = {
    aten.binary_cross_entropy.default: _first(
        _of_one_dtype(0, 1), _in_dtype_of_first(aten.binary_cross_entropy.default, 2)
    ),
    aten.huber_loss.default: _huber_loss,
    aten.huber_loss_backward.default: _of_one_dtype(1, 2),
    aten.nll_loss_forward.default: _of_one_dtype(0, 2),
    aten.nll_loss2d_forward.default: _of_one_dtype(0, 2),
    aten.soft_margin_loss.default: _in_dtype_of_first(aten.soft_margin_loss.default, 1),
}
