"""Policy gradients with clipped ratios, from the log-probabilities of actions or tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, same_shape

__all__ = ["GRPOLoss", "PPOClipLoss"]


class _ClippedLoss(ReducedLoss):
    """`-min(r * A, clip(r) * A)` of the ratio r and the advantage A."""

    def __init__(self, clip: float, clip_high: float | None, reduction: str) -> None:
        super().__init__(reduction)
        self.clip = number_in("clip", clip, 0, 1)
        self.clip_high = self.clip if clip_high is None else number_in("clip_high", clip_high, 0)

    def clipped(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        """The loss per action."""
        ratio = log_ratio.exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip_high) * advantage)


@autogen_loss(reads="arguments")
class PPOClipLoss(_ClippedLoss):
    """`-min(r * A, clip(r, 1 - clip, 1 + clip_high) * A)`, with the ratio `r = exp(input - old)` and the advantage A.

    The mean is over the actions that count, and 0 if none does.

    Source: Schulman et al. (2017), "Proximal policy optimization algorithms", arXiv:1707.06347.

    Shapes: `input` and `old`, the log-probabilities of the actions now and when they were drawn, and `advantage` (...),
    floating point; `mask`, true for actions that count, (...). The loss is (), or (...) without reduction.

    Args:
        clip: how much less likely an action may become with gradient; in [0, 1].
        clip_high: how much more likely; at least 0, by default `clip`.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, or the shapes differ.
    """

    def __init__(self, clip: float = 0.2, clip_high: float | None = None, reduction: str = "mean") -> None:
        super().__init__(clip, clip_high, reduction)

    def forward(self, input: Tensor, old: Tensor, advantage: Tensor, mask: Tensor | None = None) -> Tensor:
        """The loss of actions."""
        if mask is None:
            same_shape(input=input, old=old, advantage=advantage)
            return self.reduce(self.clipped(input - old, advantage))
        same_shape(input=input, old=old, advantage=advantage, mask=mask)
        counted = mask.bool()
        # What does not count may be anything, and exp of it infinite.
        log_ratio = torch.where(counted, input - old, 0)
        return self.reduce(self.clipped(log_ratio, torch.where(counted, advantage, 0)), counted)


@autogen_loss(reads="arguments")
class GRPOLoss(_ClippedLoss):
    """Per sequence, the mean over its tokens of `-min(r * A, clip(r, 1 - clip, 1 + clip_high) * A) + beta * KL`.

    The ratio is `r = exp(input - old)`, A the advantage of the sequence in its group, and the distance to a reference
    is estimated as `KL = exp(d) - d - 1` with `d = reference - input`. A sequence without tokens gives 0.

    Source: Shao et al. (2024), "DeepSeekMath: pushing the limits of mathematical reasoning in open language models",
    arXiv:2402.03300.

    Shapes: `input`, `old` and `reference`, the log-probabilities of the tokens now, when they were drawn, and under the
    reference, (N, T), floating point; `advantage` (N,); `mask`, true for tokens that count, (N, T). The loss is (), or
    (N,) without reduction.

    Args:
        clip: how much less likely a token may become with gradient; in [0, 1].
        clip_high: how much more likely; at least 0, by default `clip`.
        beta: the weight of the distance to the reference; at least 0, and with 0 there is none.
        reduction: "none", "mean" over sequences, or "sum".

    Raises:
        ValueError: an argument out of its range, shapes that do not fit, a reference without a weight, or the reverse.
    """

    def __init__(
        self, clip: float = 0.2, clip_high: float | None = None, beta: float = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(clip, clip_high, reduction)
        self.beta = number_in("beta", beta, 0)

    def forward(
        self, input: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, reference: Tensor | None = None
    ) -> Tensor:
        """The loss of tokens."""
        same_shape(input=input, old=old, mask=mask, **({} if reference is None else {"reference": reference}))
        if input.dim() != 2 or advantage.shape != input.shape[:1]:
            shapes = f"{tuple(input.shape)} and {tuple(advantage.shape)}"
            raise ValueError(f"input and advantage must have the shapes (N, T) and (N,); got {shapes}")
        if (reference is None) is bool(self.beta):  # Dynamo compares no symbol with a bool
            raise ValueError("a reference must be given if, and only if, its weight `beta` is not 0")
        counted = mask.bool()
        # What does not count may be anything, and exp of it infinite.
        loss = self.clipped(torch.where(counted, input - old, 0), advantage.unsqueeze(1))
        if reference is not None:
            apart = torch.where(counted, reference - input, 0)
            loss = loss + self.beta * (torch.expm1(apart) - apart)
        tokens = counted.sum(1).clamp(min=1)
        return self.reduce(torch.where(counted, loss, 0).sum(1) / tokens)
