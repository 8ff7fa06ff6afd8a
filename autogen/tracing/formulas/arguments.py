"""What torch's losses make of arguments that they have in common."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import _reduction as legacy


def reduction_of(reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """The reduction, which the deprecated arguments override."""
    is_deprecated = size_average is not None or reduce is not None
    return legacy.legacy_get_string(size_average, reduce) if is_deprecated else reduction


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """A loss for each element, reduced."""
    legacy.get_enum(reduction)  # which refuses what is none
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def widened(tensor: Tensor) -> Tensor:
    """A tensor in full precision, as autocast gives it to losses."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
