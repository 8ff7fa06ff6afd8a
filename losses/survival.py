"""Survival losses: times until an event that is not observed for all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, same_shape

__all__ = ["CoxPHLoss"]


@autogen_loss(reads="arguments")
class CoxPHLoss(ReducedLoss):
    """Minus the log partial likelihood of Cox's model: `log(sum over j at risk of exp(x_j)) - x_i`, of each event i.

    At risk is whoever is observed at least until then, in any order and with any ties, which count as Breslow has it.
    The mean is over the events, and 0 if there is none.

    Sources: Cox (1972), "Regression models and life-tables"; Breslow (1974), "Covariance analysis of censored survival
    data".

    Shapes: `input`, the logarithms of the hazards, (N,), floating point; `time`, until the event or the end of
    observation, and `event`, true if it was the event, (N,). The loss is (), or (N,) without reduction, 0 where there
    was no event. All pairs are compared: in torch that takes memory for N * N numbers, in a kernel none.

    Args:
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an unknown reduction, or shapes that do not fit.
    """

    def forward(self, input: Tensor, time: Tensor, event: Tensor) -> Tensor:
        """The loss of hazards."""
        same_shape(input=input, time=time, event=event)
        if input.dim() != 1:
            raise ValueError(f"input must have the shape (N,); got {tuple(input.shape)}")
        is_at_risk = time.unsqueeze(0) >= time.unsqueeze(1)
        log_total = torch.where(is_at_risk, input.unsqueeze(0), -math.inf).logsumexp(1)
        return self.reduce(log_total - input, event.bool())
