"""Losses for the separation of audio signals."""

from __future__ import annotations

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, same_shape

__all__ = ["SISDRLoss"]


@autogen_loss(reads="arguments")
class SISDRLoss(ReducedLoss):
    """Minus the scale-invariant signal-to-distortion ratio in decibels: `-10 * log10(|s|^2 / |input - s|^2)`.

    `s = (input · target) / |target|^2 * target` is the part of the input that the target explains.

    Source: Le Roux et al. (2019), "SDR - half-baked or well done?", arXiv:1811.02508.

    Shapes: `input` and `target` (..., T), floating point; the loss (), or (...) without reduction.

    Args:
        zero_mean: whether the mean of each signal is taken off first.
        eps: added to each energy, for signals of silence; at least 0.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or shapes that do not fit.
    """

    def __init__(self, zero_mean: bool = True, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.zero_mean = bool(zero_mean)
        self.eps = number_in("eps", eps, 0)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of signals."""
        same_shape(input=input, target=target)
        if input.dim() == 0:
            raise ValueError("input must have the shape (..., T); got ()")
        if self.zero_mean:
            input = input - input.mean(-1, keepdim=True)
            target = target - target.mean(-1, keepdim=True)
        share = (input * target).sum(-1, keepdim=True) / ((target**2).sum(-1, keepdim=True) + self.eps)
        signal = share * target
        energy = (signal**2).sum(-1) + self.eps
        distortion = ((input - signal) ** 2).sum(-1) + self.eps
        return self.reduce(10 * torch.log10(distortion / energy))
