"""What the losses beyond torch share: reductions, checks of arguments, and safe arithmetic."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REDUCTIONS = ("none", "mean", "sum")

_gaussian_nll_loss, _multi_margin_loss = F.gaussian_nll_loss, F.multi_margin_loss  # as they are without `autogen.patch`


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """`value`, if it is one of the `known`; else a ValueError."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
    return value


def number_in(
    name: str, value: float, low: float = -math.inf, high: float = math.inf, *, strict: bool = False
) -> float:
    """`value`, if it is finite and lies within the bounds, or strictly so; else a ValueError."""
    inside = low < value < high if strict else low <= value <= high
    if not inside or not math.isfinite(value):
        bounds = f"({low}, {high})" if strict else f"[{low}, {high}]"
        raise ValueError(f"{name} must be a number in {bounds}; got {value}")
    return float(value)


def same_shape(**tensors: Tensor) -> None:
    """Raise a ValueError unless all tensors have the shape of the first."""
    (first, expected), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != expected.shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {tuple(expected.shape)}; got {tuple(tensor.shape)}"
            )


def broadcasts_to(input: Tensor, **tensors: Tensor) -> None:
    """Raise a ValueError unless every tensor broadcasts to the shape of `input`."""
    for name, tensor in tensors.items():
        pairs = zip(tensor.shape[::-1], input.shape[::-1], strict=False)
        if tensor.dim() > input.dim() or any(own not in (1, size) for own, size in pairs):
            raise ValueError(f"{name} must broadcast to {tuple(input.shape)}; got {tuple(tensor.shape)}")


def smallest(tensor: Tensor) -> float:
    """The smallest normal number of the tensor's dtype: a bound that keeps roots and powers off an infinite slope."""
    return torch.finfo(tensor.dtype).tiny


def lowest(tensor: Tensor) -> float:
    """The lowest finite number of the tensor's dtype: a logit of no weight, also where all logits are that."""
    return torch.finfo(tensor.dtype).min


def bounded(logits: Tensor) -> Tensor:
    """Logits that are at least a number whose exponential is 0: of -inf, 0 times a difference would be nan."""
    return logits.clamp(min=lowest(logits) / 2)


def power(base: Tensor, exponent: float) -> Tensor:
    """`base ** exponent` for a base of at least 0, with slope 0 at 0 for every exponent."""
    return base.clamp(min=smallest(base)).pow(exponent)


class ReducedLoss(nn.Module):
    """A loss with a reduction.

    Args:
        reduction: "none", "mean" or "sum".

    Raises:
        ValueError: another reduction.
    """

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = one_of("reduction", reduction, REDUCTIONS)

    def reduce(self, loss: Tensor, counted: Tensor | None = None, total: Tensor | float | None = None) -> Tensor:
        """`loss`, reduced over what is `counted`; what is not is 0, and so is a mean over nothing counted.

        A mean is the sum over `total`, where that is given.
        """
        if counted is not None:
            loss = torch.where(counted, loss, 0)
        if self.reduction == "none":
            return loss
        if self.reduction == "sum":
            return loss.sum()
        if total is not None:
            return loss.sum() / total
        return loss.mean() if counted is None else loss.sum() / counted.sum().clamp(min=1)

    def only_for_means(self, num_items: Tensor | float | None) -> None:
        """Raise a ValueError if there is a number to divide by, but no mean."""
        if num_items is not None and self.reduction != "mean":
            raise ValueError(f"num_items is what a mean divides by, and the reduction is {self.reduction!r}")

    def extra_repr(self) -> str:
        shown = (bool, int, float, str)
        own: dict[str, Any] = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        hidden = ("training", "use_autogen")
        return ", ".join(f"{n}={v!r}" for n, v in own.items() if isinstance(v, shown) and n not in hidden)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`0.5 * (log(max(var, eps)) + (x - t)^2 / max(var, eps))`, as `torch.nn.functional.gaussian_nll_loss`.

    torch looks for a negative variance, and raises. While torch captures it, it is nan there: nothing is looked at.
    """
    is_known = isinstance(var, Tensor) and reduction in REDUCTIONS and input.is_floating_point()
    if not torch.compiler.is_compiling() or not is_known:
        return _gaussian_nll_loss(input, target, var, full, eps, reduction)
    assert isinstance(var, Tensor)
    if var.shape == input.shape:
        pass
    elif var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    else:
        differing = [own for own, size in zip(var.shape, input.shape, strict=False) if own != size]
        if var.dim() != input.dim() or sum(differing) != 1:
            raise ValueError("var is of incorrect size")
    var = var.where(var >= 0, float("nan"))
    with torch.no_grad():  # the gradient is that of var also where it is too small
        var.clamp_(min=eps)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`sum_{c != y} max(0, margin - x_y + x_c)^p * w_y / C`, as `torch.nn.functional.multi_margin_loss`.

    Of a single row, what torch captures has a dimension too many.
    """
    loss = _multi_margin_loss(input, target, p, margin, weight, size_average, reduce, reduction)
    is_single = torch.compiler.is_compiling() and target.dim() == 0
    return loss.reshape(()) if is_single else loss
