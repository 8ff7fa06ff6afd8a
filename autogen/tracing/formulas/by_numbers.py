"""torch's functions that take a number as it is, by formulas where that is a symbol: margins that grow, schedules.

torch would fix the number, and each would be a trace of its own. Definitions are those of ATen's `Loss.cpp` and
`LossNLL.cpp`, whose order of operations the formulas keep.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.tracing.formulas.arguments import reduced, reduction_of, widened
from autogen.tracing.symbols import NUMBERS

_TINY = 1e-12  # beside the squares of `cosine_embedding_loss`


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: Any = 0,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, -y (x1 - x2) + margin)`."""
    if input1.dim() != input2.dim() or input1.dim() != target.dim():
        raise RuntimeError("inputs of other dimensions")
    return reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: Any = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """`x` where `y = 1`, `max(0, margin - x)` where `y = -1`, and their sum elsewhere."""
    of_others = (margin - input).clamp_min(0).where(target != 1, 0.0)
    return reduced(of_others + input.where(target != -1, 0.0), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: Any = 0,
    reduction: str = "mean",
) -> Tensor:
    """`1 - cos(x1, x2)` where `y = 1`, `max(0, cos(x1, x2) - margin)` where `y = -1`."""
    dim = target.dim()
    if dim > 1 or input1.dim() != dim + 1 or input2.dim() != dim + 1:
        raise RuntimeError("inputs of other dimensions")
    squares = ((input1 * input1).sum(dim) + _TINY) * ((input2 * input2).sum(dim) + _TINY)
    cosine = (input1 * input2).sum(dim) / squares.sqrt()
    alike, others = (1 - cosine).where(target == 1, 0.0), (cosine - margin).clamp_min(0).where(target == -1, 0.0)
    return reduced(alike + others, reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: Any = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, margin + d(a, p) - d(a, n))`; with `swap`, the smaller of `d(a, n)` and `d(p, n)`."""
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError("inputs of other dimensions")
    if margin <= 0:
        raise ValueError("margin must be greater than 0")
    near, far = (F.pairwise_distance(anchor, each, p, eps) for each in (positive, negative))
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return reduced((margin + near - far).clamp_min(0), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: Any = 1.0, weight: Tensor | None = None
) -> Tensor:
    """`d^2 / 2` of differences up to `delta`, beyond that `delta (d - delta / 2)`."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta")
    if weight is not None and weight.shape != input.shape:
        raise ValueError("Weights and input must have the same size.")
    if not _are_alike(input, target):
        return NotImplemented
    near, distance, is_far = _differences(input, target, delta)
    loss = (delta * (distance - 0.5 * delta)).where(is_far, 0.5 * near * near)
    return reduced(loss if weight is None else loss * weight, reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    beta: Any = 1.0,
) -> Tensor:
    """`d^2 / (2 beta)` of differences up to `beta`, beyond that `d - beta / 2`."""
    if beta == 0:
        return F.l1_loss(input, target, reduction=reduction)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta")
    if not _are_alike(input, target):
        return NotImplemented
    near, distance, is_far = _differences(input, target, beta)
    loss = (distance - 0.5 * beta).where(is_far, 0.5 * near * near / beta)
    return reduced(loss, reduction)


def _are_alike(input: Tensor, target: Tensor) -> bool:
    """Whether sizes are equal, of which torch else warns, and dtypes, of which it may have no gradient else."""
    return input.shape == target.shape and input.dtype == target.dtype


def _differences(input: Tensor, target: Tensor, most: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Differences up to `most`, which nan is, too, or 0; how large all are, and which are larger.

    What is far has no square, whose gradient would be nan where that is infinite.
    """
    difference = input - target
    distance = difference.abs()
    is_far = distance >= most
    return difference.masked_fill(is_far, 0.0), distance, is_far


def lerp(input: Tensor, end: Tensor, weight: Any, *, out: Tensor | None = None) -> Tensor:
    """`x + w (y - x)`, of halves in single precision, to which torch does not round the weight."""
    if out is not None:
        return NotImplemented
    wide = widened(input)
    return torch.lerp(wide, widened(end), wide.new_full((), weight)).to(input.dtype)


def lerp_(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """`lerp` in place."""
    return input.copy_(lerp(input, end, weight))


def _quantile(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def quantile(input: Tensor, q: Any, *args: Any, **options: Any) -> Tensor:
        if not 0 <= q <= 1:
            raise RuntimeError("quantile() q must be in the range [0, 1]")
        return function(input, input.new_full((), q), *args, **options)

    return quantile


def linspace(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """`steps` floats, as far from `start` as from `end`; of tensors, which have no gradient of it, by torch itself."""
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point or isinstance(start, Tensor) or isinstance(end, Tensor) or "out" in options:
        return NotImplemented
    place, step = torch.arange(steps, dtype=dtype, **options), (end - start) / (steps - 1)
    return torch.where(place < steps // 2, start + step * place, end - step * (steps - 1 - place))


def _indices(part: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """The places of a triangle, which are found ahead of the kernels, once for each size."""

    def indices(row: Any, col: Any, offset: int = 0, *, dtype: torch.dtype = torch.int64, device: Any = None) -> Tensor:
        if dtype not in (torch.int32, torch.int64):
            return NotImplemented
        is_part = part(torch.ones(row, col, dtype=torch.bool, device=device), offset)
        return is_part.nonzero().t().contiguous().to(dtype)

    return indices


def _where_it_varies(function: Callable[..., Any], formula: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function, by its formula where one of its arguments is a symbol, and all numbers are of one precision."""
    signature = inspect.signature(formula)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if not any(isinstance(each, NUMBERS) for each in given) or not _is_of_one_precision(given):
            return function(*args, **kwargs)
        rest = dict(kwargs)
        if "size_average" in rest:  # a loss, which names all of these
            rest["reduction"] = reduction_of(rest["reduction"], rest.pop("size_average"), rest.pop("reduce"))
        try:
            varies = isinstance(signature.bind(*args, **rest).arguments.get(name), NUMBERS)
        except TypeError:  # which the function itself is to say
            varies = False
        result = formula(*args, **rest) if varies else NotImplemented
        return function(*args, **kwargs) if result is NotImplemented else result

    return call


def _is_of_one_precision(given: Iterable[Any]) -> bool:
    """Whether tensors are floating-point ones of one dtype, which autocast leaves as it is, beside integers."""
    tensors = [each for each in given if isinstance(each, Tensor)]
    if not tensors:
        return True
    dtypes = {each.dtype for each in tensors if each.is_floating_point()}
    is_cast = torch.is_autocast_enabled(tensors[0].device.type) and not dtypes <= {torch.float32, torch.float64}
    return tensors[0].is_floating_point() and len(dtypes) == 1 and not is_cast


_FORMULAS: list[tuple[Callable[..., Any], Callable[..., Any], str]] = [
    (F.margin_ranking_loss, margin_ranking_loss, "margin"),
    (F.hinge_embedding_loss, hinge_embedding_loss, "margin"),
    (F.cosine_embedding_loss, cosine_embedding_loss, "margin"),
    (F.triplet_margin_loss, triplet_margin_loss, "margin"),
    (F.huber_loss, huber_loss, "delta"),
    (F.smooth_l1_loss, smooth_l1_loss, "beta"),
    (torch.lerp, lerp, "weight"),
    (Tensor.lerp, lerp, "weight"),
    (Tensor.lerp_, lerp_, "weight"),
    (torch.linspace, linspace, "steps"),
    (torch.triu_indices, _indices(torch.triu), "row"),
    (torch.tril_indices, _indices(torch.tril), "row"),
]
if torch.__version__ >= "2.12":  # before, the place of a tensor cannot be traced with symbolic sizes
    _FORMULAS += [(each, _quantile(torch.quantile), "q") for each in (torch.quantile, Tensor.quantile)]
    _FORMULAS += [(each, _quantile(torch.nanquantile), "q") for each in (torch.nanquantile, Tensor.nanquantile)]

BY_NUMBERS = {function: _where_it_varies(function, formula, name) for function, formula, name in _FORMULAS}
"""The functions, as they are called while a loss is traced."""
