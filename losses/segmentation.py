"""Segmentation losses: the overlap of predicted and true regions.

Per sample and class (per class with `batch`), over all places, with probabilities p and targets t: the true positives
`TP = sum(p * t)`, the false positives `FP = sum(p * (1 - t))`, and the false negatives `FN = sum((1 - p) * t)`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, one_of, power, same_shape

__all__ = ["DiceLoss", "FocalTverskyLoss", "TverskyLoss"]


class _Counts(NamedTuple):
    true_positive: Tensor
    false_positive: Tensor
    false_negative: Tensor


class _OverlapLoss(ReducedLoss):
    """A loss of the three sums."""

    def __init__(self, activation: str, smooth: float, batch: bool, reduction: str) -> None:
        super().__init__(reduction)
        self.activation = one_of("activation", activation, ("sigmoid", "softmax", "none"))
        self.smooth = number_in("smooth", smooth, 0)
        self.batch = bool(batch)

    def counts(self, input: Tensor, target: Tensor) -> _Counts:
        """TP, FP and FN, of shape (N, C), or (C,) with `batch`."""
        if input.dim() < 3:
            raise ValueError(
                f"input must have the shape (N, C, ...) with a dimension of places; got {tuple(input.shape)}"
            )
        if self.activation == "softmax" and target.dim() == input.dim() - 1:
            classes = torch.arange(input.shape[1], device=target.device)
            target = target.unsqueeze(1) == classes.view(-1, *[1] * (input.dim() - 2))
        same_shape(input=input, target=target)
        probability, target = self._probability(input), target.to(input.dtype)
        dims = [*([0] if self.batch else []), *range(2, input.dim())]
        return _Counts(
            (probability * target).sum(dims),
            (probability * (1 - target)).sum(dims),
            ((1 - probability) * target).sum(dims),
        )

    def _probability(self, input: Tensor) -> Tensor:
        if self.activation == "none":
            return input
        return input.sigmoid() if self.activation == "sigmoid" else input.softmax(1)


@autogen_loss(reads="arguments")
class DiceLoss(_OverlapLoss):
    """`1 - (2 * TP + smooth) / (2 * TP + FP + FN + smooth)`.

    Source: Milletari et al. (2016), "V-Net: fully convolutional neural networks for volumetric medical image
    segmentation", arXiv:1606.04797, there with squares in the denominator.

    Shapes: `input` (N, C, ...), floating point; `target` likewise, or with the activation "softmax" also class labels
    (N, ...). The loss is (), without reduction (N, C), or (C,) with `batch`. A label that is no class is no error: its
    place is of no class, so that all probability there is false positive.

    Args:
        activation: what makes probabilities of the input: "sigmoid", "softmax" over the classes, or "none".
        smooth: what numerator and denominator are given besides; at least 0, and more where a class may be absent.
        batch: whether the sums go over the samples too.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(
        self, activation: str = "sigmoid", smooth: float = 1.0, batch: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(activation, smooth, batch, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a segmentation."""
        counts = self.counts(input, target)
        errors = counts.false_positive + counts.false_negative
        return self.reduce(errors / (2 * counts.true_positive + errors + self.smooth))


class _TverskyLoss(_OverlapLoss):
    """A loss of the Tversky index."""

    def __init__(self, alpha: float, beta: float, activation: str, smooth: float, batch: bool, reduction: str) -> None:
        super().__init__(activation, smooth, batch, reduction)
        self.alpha = number_in("alpha", alpha, 0)
        self.beta = number_in("beta", beta, 0)

    def distance(self, input: Tensor, target: Tensor) -> Tensor:
        """One minus the Tversky index."""
        counts = self.counts(input, target)
        errors = self.alpha * counts.false_positive + self.beta * counts.false_negative
        return errors / (counts.true_positive + errors + self.smooth)


@autogen_loss(reads="arguments")
class TverskyLoss(_TverskyLoss):
    """`1 - (TP + smooth) / (TP + alpha * FP + beta * FN + smooth)`.

    Source: Salehi et al. (2017), "Tversky loss function for image segmentation using 3D fully convolutional deep
    networks", arXiv:1706.05721.

    Shapes: those of `DiceLoss`.

    Args:
        alpha: the weight of false positives; at least 0.
        beta: the weight of false negatives; at least 0.
        activation, smooth, batch, reduction: those of `DiceLoss`.

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(
        self,
        alpha: float = 0.3,
        beta: float = 0.7,
        activation: str = "sigmoid",
        smooth: float = 1.0,
        batch: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(alpha, beta, activation, smooth, batch, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a segmentation."""
        return self.reduce(self.distance(input, target))


@autogen_loss(reads="arguments")
class FocalTverskyLoss(_TverskyLoss):
    """`(1 - T)^(1 / gamma)`, with T the Tversky index of `TverskyLoss`.

    Source: Abraham and Khan (2019), "A novel focal Tversky loss function with improved attention U-Net for lesion
    segmentation", arXiv:1810.07842.

    Shapes: those of `DiceLoss`.

    Args:
        alpha, beta: those of `TverskyLoss`.
        gamma: more than 1 for a focus on hard classes; more than 0.
        activation, smooth, batch, reduction: those of `DiceLoss`.

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(
        self,
        alpha: float = 0.3,
        beta: float = 0.7,
        gamma: float = 4 / 3,
        activation: str = "sigmoid",
        smooth: float = 1.0,
        batch: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(alpha, beta, activation, smooth, batch, reduction)
        self.gamma = number_in("gamma", gamma, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of a segmentation."""
        return self.reduce(power(self.distance(input, target), 1 / self.gamma))
