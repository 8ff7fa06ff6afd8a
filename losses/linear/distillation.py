"""Distillation of a language model's head by that of another model."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses._base import ReducedLoss, number_in, one_of
from autogen.losses.distillation import jensen_shannon, kl_divergence
from autogen.losses.linear._head import check_head, check_rows, logits_of

__all__ = ["FusedLinearDistillationLoss"]


@autogen_loss(reads="arguments")
class FusedLinearDistillationLoss(ReducedLoss):
    """`(1 - hard) * T^2 * D(q, p) + hard * cross_entropy(x, labels)` of a student's logits x and a teacher's y.

    `x = hidden @ weight.t() + bias`, y likewise, `p = softmax(x / T)` and `q = softmax(y / T)`. The divergence D is
    `KL(q, p)` ("forward_kl"), `KL(p, q)` ("reverse_kl"), or `(1 - beta) * KL(p, m) + beta * KL(q, m)` with
    `m = (1 - beta) * p + beta * q` ("jsd"). A class of logit -inf has the probability 0.

    The mean is over the tokens that count, or the sum over `num_items`; 0 if none counts.

    Source: Hinton et al. (2015), "Distilling the knowledge in a neural network", arXiv:1503.02531; Agarwal et al.
    (2024), "On-policy distillation of language models: learning from self-generated mistakes", arXiv:2306.13649.

    Shapes: `hidden` (..., H) and `weight` (V, H), of one dtype; `teacher_hidden` (..., K) and `teacher_weight` (V, K),
    of one dtype; `bias` and `teacher_bias` (V,); `labels` (...), torch.int64; `mask`, true for tokens that count,
    (...); `num_items` a number or (). The loss is (), or (...) without reduction, in single precision for halves.

    Args:
        divergence: "forward_kl", "reverse_kl" or "jsd".
        beta: the weight of the teacher in "jsd"; in (0, 1).
        temperature: T; more than 0.
        hard: the weight of the labels, in [0, 1]. With 0 labels need not be given, and say which tokens count.
        ignore_index: the label of tokens that do not count.
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: an argument out of its range, shapes or a dtype of labels that do not fit, no labels with a weight,
            or `num_items` without a mean.
    """

    def __init__(
        self,
        divergence: str = "forward_kl",
        beta: float = 0.5,
        temperature: float = 1.0,
        hard: float = 0.0,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.divergence = one_of("divergence", divergence, ("forward_kl", "reverse_kl", "jsd"))
        self.beta = number_in("beta", beta, 0, 1, strict=True)
        self.temperature = number_in("temperature", temperature, 0, strict=True)
        self.hard = number_in("hard", hard, 0, 1)
        self.ignore_index = int(ignore_index)

    def forward(
        self,
        hidden: Tensor,
        weight: Tensor,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        labels: Tensor | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
        num_items: Tensor | float | None = None,
    ) -> Tensor:
        """The loss of a student's hidden states."""
        check_head(hidden, weight, bias)
        check_head(teacher_hidden, teacher_weight, teacher_bias, of="teacher_")
        check_rows(hidden, labels=labels, mask=mask)
        self.only_for_means(num_items)
        if teacher_hidden.shape[:-1] != hidden.shape[:-1] or teacher_weight.shape[0] != weight.shape[0]:
            shapes = " and ".join(str(tuple(each.shape)) for each in (hidden, weight, teacher_hidden, teacher_weight))
            raise ValueError(f"student and teacher must have as many tokens and classes; got {shapes}")
        if labels is None and self.hard:
            raise ValueError("labels must be given where their weight `hard` is not 0")
        counted = None if mask is None else mask.bool()
        if labels is not None:
            counted = labels != self.ignore_index if counted is None else counted & (labels != self.ignore_index)
        student, teacher = logits_of(hidden, weight, bias), logits_of(teacher_hidden, teacher_weight, teacher_bias)
        loss = self.temperature**2 * self._divergence(student / self.temperature, teacher / self.temperature)
        if self.hard:
            assert labels is not None
            entropies = F.cross_entropy(student, labels.flatten(), ignore_index=self.ignore_index, reduction="none")
            loss = (1 - self.hard) * loss + self.hard * entropies
        return self.reduce(loss.view(hidden.shape[:-1]), counted, num_items)

    def _divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        if self.divergence == "forward_kl":
            return kl_divergence(teacher, student)
        if self.divergence == "reverse_kl":
            return kl_divergence(student, teacher)
        return jensen_shannon(student, teacher, beta=self.beta)
