"""Policy-gradient losses with clipped ratios, from the log-probabilities of actions or tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, one_of, same_shape

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
        return -torch.minimum(ratio * advantage, self.clip_ratio(ratio) * advantage)

    def clip_ratio(self, ratio: Tensor) -> Tensor:
        """The ratio within its bounds."""
        return ratio.clamp(1 - self.clip, 1 + self.clip_high)


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


LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "gspo")


class GRPO(_ClippedLoss):
    """The options of GRPO, and its formula without where log-probabilities come from."""

    def __init__(
        self,
        clip: float,
        clip_high: float | None,
        beta: float,
        reduction: str,
        loss_type: str,
        max_length: int | None,
    ) -> None:
        super().__init__(clip, clip_high, reduction)
        self.beta = number_in("beta", beta, 0)
        self.loss_type = one_of("loss_type", loss_type, LOSS_TYPES)
        if max_length is not None and (loss_type != "dr_grpo" or max_length < 1):
            raise ValueError(f"max_length must be at least 1, and is of the type 'dr_grpo'; got {max_length}")
        self.max_length = max_length

    def check_tokens(
        self, log_probs: dict[str, Tensor | None], advantage: Tensor, num_items: Tensor | float | None
    ) -> None:
        """Raise a ValueError unless shapes and options fit; log-probabilities and masks are given by name."""
        same_shape(**{name: each for name, each in log_probs.items() if each is not None})
        (name, first), *_ = log_probs.items()
        assert first is not None
        if first.dim() != 2 or advantage.shape != first.shape[:1]:
            shapes = f"{tuple(first.shape)} and {tuple(advantage.shape)}"
            raise ValueError(f"{name} and advantage must have the shapes (N, T) and (N,); got {shapes}")
        self.only_for_means(num_items)

    def check_reference(self, has_reference: bool) -> None:
        """Raise a ValueError unless there is a reference where it has a weight."""
        fits = has_reference if self.beta else not has_reference  # in a graph, `beta` may be a symbol: it is no bool
        if not fits:
            raise ValueError("a reference must be given if, and only if, its weight `beta` is not 0")

    def of_tokens(
        self,
        input: Tensor,
        old: Tensor | None,
        advantage: Tensor,
        counted: Tensor,
        reference: Tensor | None,
        num_items: Tensor | float | None,
    ) -> Tensor:
        """The loss of log-probabilities (N, T)."""
        # What does not count may be anything, and exp of it infinite.
        log_ratio = torch.where(counted, input - (input.detach() if old is None else old), 0)
        advantage, tokens = advantage.unsqueeze(1), counted.sum(1).clamp(min=1)
        if self.loss_type == "gspo":
            log_ratio = (log_ratio.sum(1) / tokens).unsqueeze(1)
        if self.loss_type == "cispo":
            loss = -self.clip_ratio(log_ratio.detach().exp()) * advantage * torch.where(counted, input, 0)
        else:
            loss = self.clipped(log_ratio, advantage)
        if reference is not None:
            apart = torch.where(counted, reference - input, 0)
            loss = loss + self.beta * (torch.expm1(apart) - apart)
        if self.loss_type in ("grpo", "gspo"):
            return self.reduce(torch.where(counted, loss, 0).sum(1) / tokens, total=num_items)
        if self.loss_type == "dr_grpo" and num_items is None:
            num_items = input.shape[0] * (self.max_length or input.shape[1])
        return self.reduce(loss, counted, num_items)


@autogen_loss(reads="arguments")
class GRPOLoss(GRPO):
    """`-min(r * A, clip(r, 1 - clip, 1 + clip_high) * A) + beta * KL` of tokens, averaged as `loss_type` says.

    The ratio is `r = exp(input - old)`, A the advantage of the sequence in its group, and the distance to a reference
    is estimated as `KL = exp(d) - d - 1` with `d = reference - input`. By `loss_type`,

    - "grpo": the mean over the tokens of a sequence, and then over sequences; one without tokens gives 0;
    - "bnpo", "dapo": the mean over all tokens; what makes them differ is whether `num_items` is given;
    - "dr_grpo": the sum over all tokens, over N times `max_length`;
    - "cispo": `-clip(r) * A * input` in the place of the minimum, `clip(r)` without gradient; the mean as of "dapo".
      There `clip=1` leaves out the lower bound;
    - "gspo": as "grpo", with one ratio for a sequence, the exponential of its mean of `input - old`.

    Source: Shao et al. (2024), "DeepSeekMath: pushing the limits of mathematical reasoning in open language models",
    arXiv:2402.03300; Xiao et al. (2025), "BNPO: beta normalization policy optimization", arXiv:2506.02864; Liu et al.
    (2025), "Understanding R1-Zero-like training: a critical perspective", arXiv:2503.20783; Yu et al. (2025), "DAPO: an
    open-source LLM reinforcement learning system at scale", arXiv:2503.14476; MiniMax (2025), "MiniMax-M1: scaling
    test-time compute efficiently with lightning attention", arXiv:2506.13585; Zheng et al. (2025), "Group sequence
    policy optimization", arXiv:2507.18071.

    Shapes: `input`, `old` and `reference`, the log-probabilities of the tokens now, when they were drawn (without them
    `input` as it is), and under the reference, (N, T), floating point; `advantage` (N,); `mask`, true for tokens that
    count, (N, T); `num_items`, by which a mean divides (tokens, or sequences for "grpo" and "gspo", of all
    micro-batches of a step or of all processes), a number or (). The loss is (). Without reduction it is (N,) for
    "grpo" and "gspo", else (N, T).

    Args:
        clip: how much less likely a token may become with gradient; in [0, 1].
        clip_high: how much more likely; at least 0, by default `clip`.
        beta: the weight of the distance to the reference; at least 0, and with 0 there is none.
        reduction: "none", "mean", or "sum" over sequences or tokens.
        loss_type: "grpo", "bnpo", "dr_grpo", "dapo", "cispo" or "gspo".
        max_length: of "dr_grpo", by which a sequence is divided; at least 1, by default T.

    Raises:
        ValueError: an argument out of its range, shapes that do not fit, a reference without a weight, or the reverse,
            or `num_items` without a mean.
    """

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        beta: float = 0.0,
        reduction: str = "mean",
        loss_type: str = "grpo",
        max_length: int | None = None,
    ) -> None:
        super().__init__(clip, clip_high, beta, reduction, loss_type, max_length)

    def forward(
        self,
        input: Tensor,
        old: Tensor | None,
        advantage: Tensor,
        mask: Tensor,
        reference: Tensor | None = None,
        num_items: Tensor | float | None = None,
    ) -> Tensor:
        """The loss of tokens."""
        self.check_tokens({"input": input, "old": old, "mask": mask, "reference": reference}, advantage, num_items)
        self.check_reference(reference is not None)
        return self.of_tokens(input, old, advantage, mask.bool(), reference, num_items)
