"""The losses of `torch.nn`, each a subclass of torch's class.

The constructor arguments, shapes, dtypes, reductions and errors are those of the class in `torch.nn`; `use_autogen`
(keyword only, true by default) chooses between generated kernels and torch. Formulas are per element, before the
reduction; `x` is the input, `t` the target, `w` the weight.
"""

import warnings
from typing import Any

from torch import Tensor, nn

from autogen.decorator import autogen_loss
from autogen.losses import handwritten
from autogen.losses._base import gaussian_nll_loss, multi_margin_loss

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GaussianNLLLoss",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "MarginRankingLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "NLLLoss2d",
    "PoissonNLLLoss",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
]


@autogen_loss(reads="arguments")
class L1Loss(nn.L1Loss):
    """`|input - target|`; see `torch.nn.L1Loss`."""


@autogen_loss(reads="arguments")
class MSELoss(nn.MSELoss):
    """`(input - target)^2`; see `torch.nn.MSELoss`."""


@autogen_loss(reads="arguments")
class SmoothL1Loss(nn.SmoothL1Loss):
    """See `torch.nn.SmoothL1Loss`.

    `0.5 * d^2 / beta` where `|d| < beta`, else `|d| - 0.5 * beta`, with `d = input - target`.
    """


@autogen_loss(reads="arguments")
class HuberLoss(nn.HuberLoss):
    """See `torch.nn.HuberLoss`.

    `0.5 * d^2` where `|d| <= delta`, else `delta * (|d| - 0.5 * delta)`, with `d = input - target`.
    """


@autogen_loss(reads="arguments")
class BCELoss(nn.BCELoss):
    """`-w * (t * log(x) + (1 - t) * log(1 - x))`, both logarithms at least -100; see `torch.nn.BCELoss`.

    An input or target outside [0, 1] raises where torch computes the loss; of kernels, which wait for no check, the
    loss is nan.
    """


@autogen_loss(reads="arguments")
class BCEWithLogitsLoss(nn.BCEWithLogitsLoss):
    """`-w * (p * t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x)))`; see `torch.nn.BCEWithLogitsLoss`."""


@autogen_loss(reads="arguments")
class PoissonNLLLoss(nn.PoissonNLLLoss):
    """See `torch.nn.PoissonNLLLoss`.

    `exp(x) - t * x` (`x - t * log(x + eps)` without `log_input`), with Stirling's term if `full`.
    """


@autogen_loss(reads="arguments")
class GaussianNLLLoss(nn.GaussianNLLLoss):
    """`0.5 * (log(v) + (x - t)^2 / v)` with `v = max(var, eps)`; see `torch.nn.GaussianNLLLoss`.

    A negative variance raises where torch computes the loss; of kernels, which wait for no check, the loss is nan.
    """

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        """The loss of `input`, `target` and `var` of one shape; `var` may lack the last dimension."""
        return gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


@autogen_loss(reads="arguments")
class HingeEmbeddingLoss(nn.HingeEmbeddingLoss):
    """`x` where `t == 1`, `max(0, margin - x)` where `t == -1`; see `torch.nn.HingeEmbeddingLoss`."""


@autogen_loss(reads="arguments")
class SoftMarginLoss(nn.SoftMarginLoss):
    """`log(1 + exp(-t * x))`; see `torch.nn.SoftMarginLoss`."""


@autogen_loss(reads="arguments")
class KLDivLoss(nn.KLDivLoss):
    """`t * (log(t) - x)`, or `exp(t) * (t - x)` with `log_target`; see `torch.nn.KLDivLoss`."""


@autogen_loss(reads="arguments")
class MarginRankingLoss(nn.MarginRankingLoss):
    """`max(0, -t * (x1 - x2) + margin)`; see `torch.nn.MarginRankingLoss`."""


@autogen_loss(reads="arguments")
class CrossEntropyLoss(nn.CrossEntropyLoss):
    """See `torch.nn.CrossEntropyLoss`.

    `-w[t] * log_softmax(x)[t]`, or `-sum(w * t * log_softmax(x))` for class probabilities. A label that is no class
    raises where torch computes the loss; of kernels, which wait for no check, it is nan.
    """


@autogen_loss(reads="arguments")
class NLLLoss(nn.NLLLoss):
    """`-w[t] * x[t]`; see `torch.nn.NLLLoss`.

    A label that is no class raises where torch computes the loss; of kernels, which wait for no check, it is nan.
    """


@autogen_loss(reads="arguments")
class MultiMarginLoss(nn.MultiMarginLoss):
    """`sum over c != t of w[t] * max(0, margin - x[t] + x[c])^p / C`; see `torch.nn.MultiMarginLoss`.

    A label that is no class raises where torch computes the loss; of kernels, which wait for no check, it is nan.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of scores (N, C) or (C,) and labels (N,) or ()."""
        return multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


@autogen_loss(reads="arguments")
class MultiLabelSoftMarginLoss(nn.MultiLabelSoftMarginLoss):
    """See `torch.nn.MultiLabelSoftMarginLoss`.

    `-mean over c of w * (t * log(sigmoid(x)) + (1 - t) * log(sigmoid(-x)))`.
    """


@autogen_loss(reads="arguments")
class TripletMarginLoss(nn.TripletMarginLoss):
    """`max(0, |a - p + eps|_p - |a - n + eps|_p + margin)`; see `torch.nn.TripletMarginLoss`."""


@autogen_loss(reads="arguments")
class TripletMarginWithDistanceLoss(nn.TripletMarginWithDistanceLoss):
    """See `torch.nn.TripletMarginWithDistanceLoss`.

    `max(0, distance(a, p) - distance(a, n) + margin)`; the distance is traced too.
    """


with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # that the old name is old; whoever uses it is told

    @autogen_loss(reads="arguments")
    class NLLLoss2d(nn.NLLLoss2d):
        """`NLLLoss` by its old name; see `torch.nn.NLLLoss2d`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            warnings.warn("NLLLoss2d is the old name of NLLLoss", FutureWarning, stacklevel=3)
            super().__init__(*args, **kwargs)


@autogen_loss(reads="arguments", handwritten=handwritten.make_cosine_embedding)
class CosineEmbeddingLoss(nn.CosineEmbeddingLoss):
    """See `torch.nn.CosineEmbeddingLoss`.

    `1 - cos(a, b)` where `t == 1`, `max(0, cos(a, b) - margin)` where `t == -1`.
    """


@autogen_loss(reads="arguments", handwritten=handwritten.make_multilabel_margin)
class MultiLabelMarginLoss(nn.MultiLabelMarginLoss):
    """See `torch.nn.MultiLabelMarginLoss`.

    `sum over targets y and other classes c of max(0, 1 - (x[y] - x[c])) / C`; the targets end at the first -1.
    """


@autogen_loss(reads="arguments", handwritten=handwritten.make_ctc)
class CTCLoss(nn.CTCLoss):
    """`-log p(targets | log_probs)` summed over all alignments (Graves et al., 2006); see `torch.nn.CTCLoss`."""
