"""Losses with more operations than one kernel can compute, as functions with inputs for them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Call = tuple[Callable[..., Tensor], tuple[Tensor, ...]]


def chain(operations: int, *shape: int) -> Call:
    """So many elementwise operations, each on the result of the one before it."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for _ in range(operations // 4):
            x = x + 0.01 * torch.tanh(x * y)
        return x.mean()

    return loss, (_drawn(*shape).requires_grad_(), _drawn(*shape))


def reductions(count: int, *shape: int) -> Call:
    """A sum of so many means."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return sum((((x - k / count).abs() * (y + k)).mean() for k in range(count)), start=x.new_zeros(()))

    return loss, (_drawn(*shape).requires_grad_(), _drawn(*shape))


def detector(levels: int, smallest: int, classes: int) -> Call:
    """The terms of a detector in the manner of YOLO, of so many levels of features: GIoU of boxes, objectness and
    classes. The last level has `smallest` places, each other one twice as many as the next, up to 64 times as many.
    """

    def loss(*tensors: Tensor) -> Tensor:
        return sum(map(_level, tensors[:levels], tensors[levels:]), start=tensors[0].new_zeros(()))

    places = [smallest << min(levels - 1 - k, 6) for k in range(levels)]
    predictions = (_drawn(n, 5 + classes).requires_grad_() for n in places)
    return loss, (*predictions, *(_drawn(n, 5 + classes).sigmoid() for n in places))


def _level(prediction: Tensor, target: Tensor) -> Tensor:
    size, wanted_size = prediction[:, 2:4].exp(), target[:, 2:4]
    low, high = prediction[:, :2].sigmoid() - size / 2, prediction[:, :2].sigmoid() + size / 2
    wanted_low, wanted_high = target[:, :2] - wanted_size / 2, target[:, :2] + wanted_size / 2
    overlap = (torch.minimum(high, wanted_high) - torch.maximum(low, wanted_low)).clamp(min=0).prod(1)
    union = size.prod(1) + wanted_size.prod(1) - overlap
    hull = (torch.maximum(high, wanted_high) - torch.minimum(low, wanted_low)).prod(1)
    giou = overlap / union - (hull - union) / hull
    is_object = target[:, 4]
    boxes = ((1 - giou) * is_object).sum() / is_object.sum()
    objects = F.binary_cross_entropy_with_logits(prediction[:, 4], giou.detach().clamp(min=0) * is_object)
    classes = F.binary_cross_entropy_with_logits(prediction[:, 5:], target[:, 5:], reduction="none").mean(1)
    return 0.05 * boxes + objects + 0.5 * (classes * is_object).sum() / is_object.sum()


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
