"""The losses of `torch.nn.functional`, each decorated; public as `autogen.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch.nn.functional as F

from autogen.decorator import autogen_loss
from autogen.losses import _base, handwritten

if TYPE_CHECKING:
    from autogen.runtime.handwritten import Handwritten

_Function = TypeVar("_Function", bound=Callable[..., Any])

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


def _fused(function: _Function, kernels: Callable[[], Handwritten] | None = None) -> _Function:
    fused = autogen_loss(reads="arguments", handwritten=kernels)(function)
    fused.__module__ = "autogen.functional"  # where pickle looks for it
    fused.__doc__ = f"`torch.nn.functional.{function.__name__}` on fused kernels.\n\n{function.__doc__ or ''}"
    return fused


binary_cross_entropy = _fused(F.binary_cross_entropy)
binary_cross_entropy_with_logits = _fused(F.binary_cross_entropy_with_logits)
cosine_embedding_loss = _fused(F.cosine_embedding_loss, handwritten.make_cosine_embedding)
cross_entropy = _fused(F.cross_entropy)
ctc_loss = _fused(F.ctc_loss, handwritten.make_ctc)
gaussian_nll_loss = _fused(_base.gaussian_nll_loss)
hinge_embedding_loss = _fused(F.hinge_embedding_loss)
huber_loss = _fused(F.huber_loss)
kl_div = _fused(F.kl_div)
l1_loss = _fused(F.l1_loss)
margin_ranking_loss = _fused(F.margin_ranking_loss)
mse_loss = _fused(F.mse_loss)
multi_margin_loss = _fused(_base.multi_margin_loss)
multilabel_margin_loss = _fused(F.multilabel_margin_loss, handwritten.make_multilabel_margin)
multilabel_soft_margin_loss = _fused(F.multilabel_soft_margin_loss)
nll_loss = _fused(F.nll_loss)
poisson_nll_loss = _fused(F.poisson_nll_loss)
smooth_l1_loss = _fused(F.smooth_l1_loss)
soft_margin_loss = _fused(F.soft_margin_loss)
triplet_margin_loss = _fused(F.triplet_margin_loss)
triplet_margin_with_distance_loss = _fused(F.triplet_margin_with_distance_loss)


if hasattr(F, "linear_cross_entropy"):  # torch has had it since 2.12
    __all__ += ["linear_cross_entropy"]
    linear_cross_entropy = _fused(F.linear_cross_entropy)
