"""Robust and quantile regression losses; formulas are per element, with `d = input - target`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, same_shape

__all__ = ["CharbonnierLoss", "LogCoshLoss", "QuantileLoss", "WingLoss"]


@autogen_loss(reads="arguments")
class LogCoshLoss(ReducedLoss):
    """`log(cosh(d))`, which is `d^2 / 2` near 0 and `|d| - log(2)` far off.

    Source: Saleh and Saleh (2022), "Statistical properties of the log-cosh loss function used in machine learning".

    Shapes: `input` and `target` (...), floating point; the loss (), or (...) without reduction.

    Args:
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: another reduction, or the shapes differ.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of predictions."""
        same_shape(input=input, target=target)
        distance = (input - target).abs()
        is_small = distance < 1
        # cosh(d) is 1 + (1 - e^-d)^2 / (2 e^-d), and (1 + e^-2d) e^d / 2: each form where it does not cancel, and one
        # logarithm for both. The bound keeps the slope finite where the first is not taken.
        change = torch.expm1(-distance)
        decay = 1 + change
        excess = torch.where(is_small, change**2 / (2 * decay.clamp(min=math.exp(-1))), decay**2)
        return self.reduce(torch.where(is_small, 0, distance - math.log(2)) + torch.log1p(excess))


@autogen_loss(reads="arguments")
class CharbonnierLoss(ReducedLoss):
    """`sqrt(d^2 + eps^2)`, a smooth `|d|`.

    Source: Charbonnier et al. (1994), "Two deterministic half-quadratic regularization algorithms for computed
    imaging".

    Shapes: `input` and `target` (...), floating point; the loss (), or (...) without reduction.

    Args:
        eps: where the loss turns from a parabola into a line; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, eps: float = 1e-3, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.eps = number_in("eps", eps, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of predictions."""
        same_shape(input=input, target=target)
        return self.reduce(torch.sqrt((input - target) ** 2 + self.eps**2))


@autogen_loss(reads="arguments")
class QuantileLoss(ReducedLoss):
    """The pinball loss: `q * e` where `e = target - input` is positive, else `(q - 1) * e`.

    Source: Koenker and Bassett (1978), "Regression quantiles".

    Shapes: `target` (...); `input` likewise for one quantile, (..., Q) for Q of them; floating point. The loss is (),
    or of the input's shape without reduction.

    Args:
        quantiles: the quantile, or several; each in (0, 1).
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: a quantile out of its range, none at all, or shapes that do not fit.
    """

    quantiles: Tensor

    def __init__(self, quantiles: float | Sequence[float] = 0.5, reduction: str = "mean") -> None:
        super().__init__(reduction)
        levels = torch.tensor(quantiles, dtype=torch.float64)  # exact, whatever the input's dtype
        if levels.dim() > 1 or not levels.numel() or not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"quantiles must be one or several numbers in (0, 1); got {quantiles}")
        self.register_buffer("quantiles", levels, persistent=False)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of predicted quantiles."""
        expected = (*target.shape, *self.quantiles.shape)
        if tuple(input.shape) != expected:
            raise ValueError(f"input must have the shape {tuple(expected)}; got {tuple(input.shape)}")
        error = (target.unsqueeze(-1) if self.quantiles.dim() else target) - input
        level = self.quantiles.to(input.dtype)
        return self.reduce(torch.where(error > 0, level, level - 1) * error)


@autogen_loss(reads="arguments")
class WingLoss(ReducedLoss):
    """`omega * log(1 + |d| / epsilon)` where `|d| < omega`, else `|d| - c`, with the c that makes it continuous.

    Source: Feng et al. (2018), "Wing loss for robust facial landmark localisation with convolutional neural networks",
    arXiv:1711.06753.

    Shapes: `input` and `target` (...), floating point; the loss (), or (...) without reduction.

    Args:
        omega: where the loss becomes linear; more than 0.
        epsilon: how sharply it bends; more than 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, omega: float = 10.0, epsilon: float = 2.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.omega = number_in("omega", omega, 0, strict=True)
        self.epsilon = number_in("epsilon", epsilon, 0, strict=True)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of predictions."""
        same_shape(input=input, target=target)
        distance = (input - target).abs()
        offset = self.omega - self.omega * math.log1p(self.omega / self.epsilon)
        curved = self.omega * torch.log1p(distance / self.epsilon)
        return self.reduce(torch.where(distance < self.omega, curved, distance - offset))
