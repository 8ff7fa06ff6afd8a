"""`cross_entropy` by formulas, where torch's own would make a trace for each size or number of it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.tracing.formulas.arguments import reduction_of, widened
from autogen.tracing.symbols import NUMBERS

_cross_entropy = F.cross_entropy
_ASKS_FOR_SIZES = torch.__version__ < "2.12"  # of probabilities, so that each size would be a trace of its own


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch's own, but for a smoothing that varies, and for probabilities as target where it does not know symbolic
    sizes, as before torch 2.12.
    """
    if isinstance(label_smoothing, NUMBERS):
        reduction = reduction_of(reduction, size_average, reduce)
        return _smoothed(input, target, weight, ignore_index, reduction, label_smoothing)
    is_soft = _ASKS_FOR_SIZES and target.is_floating_point() and input.dim() > 0 and input.shape == target.shape
    # Where torch refuses a call, it says so.
    has_weights = weight is None or weight.shape == (input.shape[0 if input.dim() == 1 else 1],)
    is_reduced = reduction in ("none", "mean", "sum")
    if not (is_soft and has_weights and is_reduced and ignore_index < 0 and 0.0 <= label_smoothing <= 1.0):
        return _cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing=label_smoothing
        )
    reduction = reduction_of(reduction, size_average, reduce)
    return _cross_entropy_of_probabilities(input, target, weight, reduction, label_smoothing)


def _cross_entropy_of_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, label_smoothing: float
) -> Tensor:
    """`-sum_c w_c q_c log softmax(x)_c`, where `q` is the smoothed target, and its mean over all samples."""
    if input.device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # in full precision, as torch's own on the CPU
        input, target, weight = widened(input), widened(target), None if weight is None else widened(weight)
    axis = 0 if input.dim() == 1 else 1
    classes = input.shape[axis]
    if label_smoothing > 0:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = _weighted(input.log_softmax(axis) * target, weight, axis)
    if reduction == "none":
        return -terms.sum(axis)
    return -terms.sum() / (input.numel() / classes) if reduction == "mean" else -terms.sum()


def _weighted(log_prob: Tensor, weight: Tensor | None, axis: int) -> Tensor:
    """Logarithms times the weights of their classes."""
    if weight is None:
        return log_prob
    return log_prob * weight.reshape([-1 if dim == axis else 1 for dim in range(log_prob.dim())])


def _smoothed(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: Any,
) -> Tensor:
    """`-(1 - s) w_y log p_y - s / C sum_c w_c log p_c`, its mean over all `w_y`; of probabilities, smoothed ones."""
    options: dict[str, Any] = {"weight": weight, "ignore_index": ignore_index, "reduction": reduction}
    if label_smoothing <= 0:  # which torch takes for none
        return cross_entropy(input, target, **options)
    if label_smoothing > 1:
        raise RuntimeError("label_smoothing must be between 0.0 and 1.0")
    if torch.is_autocast_enabled(input.device.type):  # in full precision, as torch's own
        input, weight = widened(input), None if weight is None else widened(weight)
    axis = 0 if input.dim() == 1 else 1
    classes = input.shape[axis]
    if target.is_floating_point():
        return cross_entropy(input, target * (1 - label_smoothing) + label_smoothing / classes, **options)
    loss = cross_entropy(input, target, **options)
    log_prob = _weighted(input.log_softmax(axis), weight, axis)
    counts = target != ignore_index
    smooth = -log_prob.sum(axis).where(counts, 0.0)
    if reduction != "none":
        smooth = smooth.sum()
    if reduction == "mean":
        smooth = smooth / (counts if weight is None else weight[target.where(counts, 0)].where(counts, 0.0)).sum()
    return loss * (1 - label_smoothing) + smooth * (label_smoothing / classes)
