"""Classification losses: for unbalanced classes, for several labels at once, and with margins."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, power, same_shape, smallest

__all__ = ["ArcFaceLoss", "AsymmetricLoss", "FocalLoss", "PolyLoss", "SigmoidFocalLoss"]

_NO_LABEL = torch.iinfo(torch.int64).min  # for cross entropy, which ignores -100 where nothing else is said


@autogen_loss(reads="arguments")
class SigmoidFocalLoss(ReducedLoss):
    """`-a * (1 - p)^gamma * log(p)`, with p the probability of the right answer, per element.

    `p = sigmoid(x)` and `a = alpha` where the target is 1, `1 - sigmoid(x)` and `1 - alpha` where it is 0; between 0
    and 1 the cross entropy, p and a are interpolated.

    Source: Lin et al. (2017), "Focal loss for dense object detection", arXiv:1708.02002.

    Shapes: `input` (logits) and `target` (...), floating point; the loss (), or (...) without reduction.

    Args:
        alpha: the weight of positives, in [0, 1]; None for no weights.
        gamma: how much less easy elements count; at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, alpha: float | None = 0.25, gamma: float = 2.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.alpha = None if alpha is None else number_in("alpha", alpha, 0, 1)
        self.gamma = number_in("gamma", gamma, 0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits."""
        same_shape(input=input, target=target)
        wrong = input.sigmoid() * (1 - target) + (-input).sigmoid() * target
        loss = F.binary_cross_entropy_with_logits(input, target, reduction="none") * power(wrong, self.gamma)
        if self.alpha is not None:
            loss = loss * (self.alpha * target + (1 - self.alpha) * (1 - target))
        return self.reduce(loss)


class _LabelLoss(ReducedLoss):
    """A loss of logits (N, C, ...) or (C,) and labels without the dimension C."""

    def __init__(self, ignore_index: int, reduction: str) -> None:
        super().__init__(reduction)
        self.ignore_index = int(ignore_index)

    def cross_entropy(self, input: Tensor, target: Tensor) -> Tensor:
        """`-log(p)` of each label, 0 where it is ignored."""
        if target.is_floating_point():
            raise ValueError(f"target must hold class labels; got {target.dtype}")
        return F.cross_entropy(input, target, ignore_index=self.ignore_index, reduction="none")


@autogen_loss(reads="arguments")
class FocalLoss(_LabelLoss):
    """`-alpha[y] * (1 - p)^gamma * log(p)` with `p = softmax(x)[y]`, of labels y.

    The mean is over the labels that are not ignored, and 0 if all are.

    Source: Lin et al. (2017), "Focal loss for dense object detection", arXiv:1708.02002.

    Shapes: `input` (logits) (N, C, ...) or (C,), floating point; `target` (labels) (N, ...) or (), integers. The loss
    is (), or of the target's shape without reduction.

    Args:
        alpha: the weights of the classes, (C,); None for none.
        gamma: how much less easy labels count; at least 0.
        ignore_index: the label that does not count.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes or dtypes that do not fit.
        IndexError: a label that is no class, on the CPU; on a GPU the loss is nan.
    """

    alpha: Tensor | None

    def __init__(
        self, alpha: Tensor | None = None, gamma: float = 2.0, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(ignore_index, reduction)
        if alpha is not None and alpha.dim() != 1:
            raise ValueError(f"alpha must have the shape (C,); got {tuple(alpha.shape)}")
        self.gamma = number_in("gamma", gamma, 0)
        self.register_buffer("alpha", alpha)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits."""
        cross_entropy = self.cross_entropy(input, target)
        counted = target != self.ignore_index
        loss = cross_entropy * power(-torch.expm1(-cross_entropy), self.gamma)
        if self.alpha is not None:
            classes = input.shape[min(1, input.dim() - 1)]
            if self.alpha.shape[0] != classes:
                raise ValueError(f"alpha must have the shape ({classes},); got {tuple(self.alpha.shape)}")
            loss = loss * self.alpha[torch.where(counted, target, 0)].to(loss.dtype)
        return self.reduce(loss, counted)


@autogen_loss(reads="arguments")
class PolyLoss(_LabelLoss):
    """Poly-1: `-log(p) + epsilon * (1 - p)` with `p = softmax(x)[y]`, of labels y.

    The mean is over the labels that are not ignored, and 0 if all are.

    Source: Leng et al. (2022), "PolyLoss: a polynomial expansion perspective of classification loss functions",
    arXiv:2204.12511.

    Shapes: `input` (logits) (N, C, ...) or (C,), floating point; `target` (labels) (N, ...) or (), integers. The loss
    is (), or of the target's shape without reduction.

    Args:
        epsilon: the weight of the first polynomial term; at least -1.
        ignore_index: the label that does not count.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes or dtypes that do not fit.
        IndexError: a label that is no class, on the CPU; on a GPU the loss is nan.
    """

    def __init__(self, epsilon: float = 1.0, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(ignore_index, reduction)
        self.epsilon = number_in("epsilon", epsilon, -1)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits."""
        cross_entropy = self.cross_entropy(input, target)
        loss = cross_entropy - self.epsilon * torch.expm1(-cross_entropy)
        return self.reduce(loss, target != self.ignore_index)


@autogen_loss(reads="arguments")
class AsymmetricLoss(ReducedLoss):
    """Of several labels at once: `-t * (1 - p)^gamma_pos * log(p) - (1 - t) * q^gamma_neg * log(1 - q)`, per element.

    `p = sigmoid(x)`, and `q = max(0, p - clip)`: a negative of a probability below `clip` does not count at all.

    Source: Ridnik et al. (2021), "Asymmetric loss for multi-label classification", arXiv:2009.14119.

    Shapes: `input` (logits) and `target` (...), floating point; the loss (), or (...) without reduction.

    Args:
        gamma_neg: how much less easy negatives count; at least 0.
        gamma_pos: how much less easy positives count; at least 0.
        clip: the probability that a negative is allowed; in [0, 1).
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(
        self, gamma_neg: float = 4.0, gamma_pos: float = 1.0, clip: float = 0.05, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.gamma_neg = number_in("gamma_neg", gamma_neg, 0)
        self.gamma_pos = number_in("gamma_pos", gamma_pos, 0)
        self.clip = number_in("clip", clip, 0)
        if clip >= 1:
            raise ValueError(f"clip must be a number in [0, 1); got {clip}")

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of logits."""
        same_shape(input=input, target=target)
        probability = input.sigmoid()
        positive = power((-input).sigmoid(), self.gamma_pos) * F.logsigmoid(input)
        shifted = (probability - self.clip).clamp(min=0)
        # Without a clip, 1 - q may round to 0.
        log_complement = torch.log1p(-shifted) if self.clip else F.logsigmoid(-input)
        negative = power(shifted, self.gamma_neg) * log_complement
        return self.reduce(-target * positive - (1 - target) * negative)


@autogen_loss(reads="arguments")
class ArcFaceLoss(ReducedLoss):
    """Cross entropy of `scale * cos(angle)`, with `margin` added to the angle of the label.

    Where that would be more than pi, the cosine of the label is less by `margin * sin(margin)` instead.

    Source: Deng et al. (2019), "ArcFace: additive angular margin loss for deep face recognition", arXiv:1801.07698.

    Shapes: `input` (N, C), cosines between -1 and 1; or (N, `in_features`), embeddings, if the loss owns the centres of
    the classes, its parameter `weight` (C, `in_features`). Floating point; `target` (labels) (N,), integers. The loss
    is (), or (N,) without reduction.

    Args:
        margin: added to the angle, in radians; in [0, pi].
        scale: of the logits; more than 0.
        in_features: the length of an embedding; None for cosines.
        num_classes: the number of classes C, if there are embeddings.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, one of `in_features` and `num_classes` alone, or wrong shapes.
        RuntimeError: embeddings of another length than `in_features`, or a label that is no class, on the CPU; on a GPU
            the loss is nan for such a label.
    """

    weight: Tensor | None

    def __init__(
        self,
        margin: float = 0.5,
        scale: float = 64.0,
        in_features: int | None = None,
        num_classes: int | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = number_in("margin", margin, 0, math.pi)
        self.scale = number_in("scale", scale, 0, strict=True)
        if (in_features is None) != (num_classes is None):
            raise ValueError("in_features and num_classes must be given together")
        if in_features is None or num_classes is None:
            self.register_parameter("weight", None)
        else:
            self.weight = nn.Parameter(torch.empty(num_classes, in_features))
            nn.init.xavier_uniform_(self.weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of cosines or embeddings."""
        if input.dim() != 2 or target.shape != input.shape[:1]:
            shapes = f"{tuple(input.shape)} and {tuple(target.shape)}"
            raise ValueError(f"input and target must have the shapes (N, C) and (N,); got {shapes}")
        cosine = input if self.weight is None else F.linear(F.normalize(input), F.normalize(self.weight))
        own = cosine.gather(1, target.unsqueeze(1))
        sine = ((1 - own) * (1 + own)).clamp(min=smallest(own)).sqrt()
        beyond = own <= math.cos(math.pi - self.margin)
        shifted = own * math.cos(self.margin) - sine * math.sin(self.margin)
        moved = torch.where(beyond, own - self.margin * math.sin(self.margin), shifted)
        logits = self.scale * cosine.scatter(1, target.unsqueeze(1), moved)
        return F.cross_entropy(logits, target, ignore_index=_NO_LABEL, reduction=self.reduction)
