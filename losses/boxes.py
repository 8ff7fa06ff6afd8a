"""Losses for bounding boxes, given by their corners `(x1, y1, x2, y2)` with `x1 <= x2` and `y1 <= y2`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, same_shape

__all__ = ["CIoULoss", "DIoULoss", "GIoULoss", "IoULoss"]


@dataclass
class _Overlap:
    """Of each pair of boxes: `iou`, area of the union; width and height of the smallest box around both."""

    iou: Tensor
    union: Tensor
    width: Tensor
    height: Tensor


class _BoxLoss(ReducedLoss):
    """Args:
    eps: added to every denominator, for boxes without area; at least 0.
    reduction: "none", "mean" or "sum".
    """

    def __init__(self, eps: float = 1e-7, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.eps = number_in("eps", eps, 0)

    def overlap(self, input: Tensor, target: Tensor) -> _Overlap:
        """The overlap of each pair of boxes."""
        same_shape(input=input, target=target)
        if input.dim() == 0 or input.shape[-1] != 4:
            raise ValueError(f"boxes must have the shape (..., 4); got {tuple(input.shape)}")
        low, high = torch.maximum(input, target), torch.minimum(input, target)
        width = (high[..., 2] - low[..., 0]).clamp(min=0)
        height = (high[..., 3] - low[..., 1]).clamp(min=0)
        intersection = width * height
        union = _area(input) + _area(target) - intersection
        return _Overlap(
            iou=intersection / (union + self.eps),
            union=union,
            width=low[..., 2] - high[..., 0],
            height=low[..., 3] - high[..., 1],
        )

    def distance_iou(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """IoU; and the squared distance of the centres, as a share of the squared diagonal around both boxes."""
        overlap = self.overlap(input, target)
        apart = (input - target) / 2
        distance = (apart[..., 0] + apart[..., 2]) ** 2 + (apart[..., 1] + apart[..., 3]) ** 2
        return overlap.iou, distance / (overlap.width**2 + overlap.height**2 + self.eps)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


@autogen_loss(reads="arguments")
class IoULoss(_BoxLoss):
    """`1 - IoU`: intersection over union.

    Source: Yu et al. (2016), "UnitBox: an advanced object detection network", arXiv:1608.01471, who take `-log(IoU)`.

    Shapes: `input` and `target` (..., 4), floating point; the loss (), or (...) without reduction.

    Args:
        eps: added to every denominator, for boxes without area; at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of boxes."""
        return self.reduce(1 - self.overlap(input, target).iou)


@autogen_loss(reads="arguments")
class GIoULoss(_BoxLoss):
    """`1 - IoU + (C - U) / C`, with U the area of the union and C that of the smallest box around both.

    Source: Rezatofighi et al. (2019), "Generalized intersection over union: a metric and a loss for bounding box
    regression", arXiv:1902.09630.

    Shapes, arguments and errors: those of `IoULoss`.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of boxes."""
        overlap = self.overlap(input, target)
        around = overlap.width * overlap.height
        return self.reduce(1 - overlap.iou + (around - overlap.union) / (around + self.eps))


@autogen_loss(reads="arguments")
class DIoULoss(_BoxLoss):
    """`1 - IoU + r^2 / c^2`, with r the distance of the centres and c the diagonal of the smallest box around both.

    Source: Zheng et al. (2020), "Distance-IoU loss: faster and better learning for bounding box regression",
    arXiv:1911.08287.

    Shapes, arguments and errors: those of `IoULoss`.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of boxes."""
        iou, distance = self.distance_iou(input, target)
        return self.reduce(1 - iou + distance)


@autogen_loss(reads="arguments")
class CIoULoss(_BoxLoss):
    """The `DIoULoss` plus `a * v`, for the aspect ratios: `v = 4 / pi^2 * (atan(w_t / h_t) - atan(w / h))^2`.

    The trade-off `a = v / (1 - IoU + v)` has no gradient, as in the source: Zheng et al. (2020), "Distance-IoU loss:
    faster and better learning for bounding box regression", arXiv:1911.08287.

    Shapes, arguments and errors: those of `IoULoss`.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of boxes."""
        iou, distance = self.distance_iou(input, target)
        aspect = 4 / math.pi**2 * (self._angle(target) - self._angle(input)) ** 2
        trade_off = (aspect / (1 - iou + aspect + self.eps)).detach()
        return self.reduce(1 - iou + distance + trade_off * aspect)

    def _angle(self, boxes: Tensor) -> Tensor:
        return torch.atan((boxes[..., 2] - boxes[..., 0]) / (boxes[..., 3] - boxes[..., 1] + self.eps))
