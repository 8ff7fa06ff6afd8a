"""The losses of `torch.nn.functional`, each decorated; public as `autogen.functional`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from autogen.decorator import autogen_loss
from autogen.losses import handwritten
from autogen.parts import PARTS, FusedCall, Parts

if TYPE_CHECKING:
    from autogen.handwritten import Handwritten

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def _fused(function: Callable[..., Any], kernels: Callable[[], Handwritten] | None = None) -> Callable[..., Any]:
    fused = autogen_loss(handwritten=kernels)(function)
    fused.__module__ = "autogen.functional"  # where pickle looks for it
    fused.__doc__ = f"`torch.nn.functional.{function.__name__}` on fused kernels.\n\n{function.__doc__ or ''}"
    return fused


binary_cross_entropy = _fused(F.binary_cross_entropy)
binary_cross_entropy_with_logits = _fused(F.binary_cross_entropy_with_logits)
cosine_embedding_loss = _fused(F.cosine_embedding_loss, handwritten.cosine_embedding)
cross_entropy = _fused(F.cross_entropy)
ctc_loss = _fused(F.ctc_loss, handwritten.ctc)
gaussian_nll_loss = _fused(F.gaussian_nll_loss)
hinge_embedding_loss = _fused(F.hinge_embedding_loss)
huber_loss = _fused(F.huber_loss)
kl_div = _fused(F.kl_div)
l1_loss = _fused(F.l1_loss)
margin_ranking_loss = _fused(F.margin_ranking_loss)
mse_loss = _fused(F.mse_loss)
multi_margin_loss = _fused(F.multi_margin_loss)
multilabel_margin_loss = _fused(F.multilabel_margin_loss, handwritten.multilabel_margin)
multilabel_soft_margin_loss = _fused(F.multilabel_soft_margin_loss)
nll_loss = _fused(F.nll_loss)
poisson_nll_loss = _fused(F.poisson_nll_loss)
smooth_l1_loss = _fused(F.smooth_l1_loss)
soft_margin_loss = _fused(F.soft_margin_loss)
triplet_margin_loss = _fused(F.triplet_margin_loss)
triplet_margin_with_distance_loss = _fused(F.triplet_margin_with_distance_loss)


def _project(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`input @ weight.T + bias` for a weight of shape (classes, *outputs, features): (..., classes, *outputs)."""
    flat = F.linear(input, weight.flatten(0, -2), None if bias is None else bias.flatten())
    return flat.reshape(*input.shape[:-1], *weight.shape[:-1])


def linear_cross_entropy_parts(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Parts | str:
    """The product and the cross entropy of its result; for what torch is left to do, why."""
    if options is not None:
        return "with options, torch computes the product and the loss in chunks of its own"
    shape = (*input.shape[:-1], *linear_weight.shape[:-1])
    is_plain = (
        input.dim() in (1, 2)
        and linear_weight.dim() >= 2
        and input.shape[-1] == linear_weight.shape[-1]
        and (linear_bias is None or linear_bias.shape == linear_weight.shape[:-1])
        and (input.dim() == 2 or linear_weight.dim() == 2)
        and (ignore_index is None or target.shape != shape)
    )
    if not is_plain:
        return "the arguments do not fit together"
    rest = {
        "weight": weight,
        "reduction": reduction,
        "ignore_index": -100 if ignore_index is None else ignore_index,
        "label_smoothing": label_smoothing,
    }
    return Parts(("linear",), (FusedCall(cross_entropy, (_project(input, linear_weight, linear_bias), target), rest),))


if hasattr(F, "linear_cross_entropy"):  # torch has had it since 2.12
    __all__ += ["linear_cross_entropy"]

    @functools.wraps(F.linear_cross_entropy)
    def linear_cross_entropy(*args: Any, **kwargs: Any) -> Tensor:
        """`torch.nn.functional.linear_cross_entropy`: the product runs in torch, the cross entropy on fused kernels."""
        parts = linear_cross_entropy_parts(*args, **kwargs)
        return F.linear_cross_entropy(*args, **kwargs) if isinstance(parts, str) else parts.calls[0]()

    linear_cross_entropy.__module__ = "autogen.functional"
    linear_cross_entropy_parts.__qualname__ = "linear_cross_entropy"  # whose arguments it takes, as errors say
    setattr(linear_cross_entropy, PARTS, linear_cross_entropy_parts)
