"""Formulas for torch functions that cannot be traced as they are.

That by which AOTAutograd traces a function is wrong (`replace`), or takes sizes as they are, so that each would be a
capture of its own (`OF_SIZES`, by which Dynamo traces them; see `compat.know_formulas`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import compat


def replace(graph: torch.fx.GraphModule) -> None:
    """Have a graph of Dynamo's call the formulas."""
    wrong = [node for node in graph.graph.nodes if node.target in _FORMULAS]
    for node in wrong:
        node.target = _FORMULAS[node.target]
    if wrong:
        graph.recompile()


def _multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """`torch.nn.functional.multilabel_margin_loss`: torch counts what follows the first -1 as class 0."""
    if size_average is not None or reduce is not None:
        reduction = compat.reduction_by_flags(size_average, reduce, emit_warning=False)
    scores, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = scores.shape[1]
    place = torch.arange(classes, device=labels.device)
    counts = place < torch.where(labels == -1, place, classes).amin(1, keepdim=True)
    is_target = (place == torch.where(counts, labels, -1).unsqueeze(2)).any(1)
    chosen = scores.gather(1, torch.where(counts, labels, 0))
    violations = (1 - chosen.unsqueeze(2) + scores.unsqueeze(1)).clamp_min(0) / classes
    losses = torch.where(counts.unsqueeze(2) & ~is_target.unsqueeze(1), violations, 0).sum((1, 2))
    if reduction == "none":
        return losses if input.dim() > 1 else losses.reshape(())
    return losses.mean() if reduction == "mean" else losses.sum()


# As torch has it, also where this is first imported under `autogen.patch`.
_FORMULAS: dict[Any, Callable[..., Any]] = {inspect.unwrap(F.multilabel_margin_loss): _multilabel_margin_loss}


def _linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **others: Any,
) -> Any:
    """`torch.linspace` of numbers: from both ends, so that each is met."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if others or isinstance(start, Tensor) or isinstance(end, Tensor) or not dtype.is_floating_point or steps < 2:
        return NotImplemented
    place = torch.arange(steps, dtype=torch.promote_types(dtype, torch.float32), device=device)
    step = (end - start) / (steps - 1)
    return torch.where(place < steps // 2, start + step * place, end - step * (steps - 1 - place)).to(dtype)


def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **options: Any) -> Any:
    """`torch.logspace` of numbers."""
    exponents = _linspace(start, end, steps, **options)
    return NotImplemented if exponents is NotImplemented else torch.pow(base, exponents)


def _fftfreq(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, device: Any = None, **others: Any) -> Any:
    """`torch.fft.fftfreq`: 0, 1, ..., -2, -1, of n d."""
    if others:
        return NotImplemented
    place = torch.arange(n, device=device)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return torch.where(place < (n + 1) // 2, place, place - n).to(dtype) * (1 / (n * d))


def _rfftfreq(n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, device: Any = None, **others: Any) -> Any:
    """`torch.fft.rfftfreq`: 0, 1, ..., n // 2, of n d."""
    if others:
        return NotImplemented
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return torch.arange(n // 2 + 1, dtype=dtype, device=device) * (1 / (n * d))


def _gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> Any:
    """`torch.gradient` between places that are equally far from each other."""
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    steps = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(dims)
    if len(steps) != len(dims) or any(isinstance(each, Tensor) for each in steps) or edge_order not in (1, 2):
        return NotImplemented
    found = []
    for axis, step in zip(dims, steps, strict=True):
        size = input.shape[axis]
        if size <= edge_order:
            return NotImplemented
        slopes = (input.narrow(axis, 1, size - 1) - input.narrow(axis, 0, size - 1)) / step
        first, last = slopes.narrow(axis, 0, 1), slopes.narrow(axis, size - 2, 1)
        between = (input.narrow(axis, 2, size - 2) - input.narrow(axis, 0, size - 2)) / (2 * step)
        if edge_order == 2:
            first = 1.5 * first - 0.5 * slopes.narrow(axis, 1, 1)
            last = 1.5 * last - 0.5 * slopes.narrow(axis, size - 3, 1)
        found.append(torch.cat((first, between, last), axis))
    return tuple(found)


def _kron(input: Tensor, other: Tensor) -> Any:
    """`torch.kron`: each element of the one times all of the other."""
    rank = max(input.dim(), other.dim())
    one = (1,) * (rank - input.dim()) + tuple(input.shape)
    two = (1,) * (rank - other.dim()) + tuple(other.shape)
    outer = [n for size in one for n in (size, 1)]
    inner = [n for size in two for n in (1, size)]
    product = input.reshape(outer) * other.reshape(inner)
    return product.reshape([a * b for a, b in zip(one, two, strict=True)])


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    """`torch.take_along_dim` of tensors that fit, or are broadcast to each other in the other dimensions."""
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim() or indices.dtype != torch.int64:
        return NotImplemented
    axis = dim % input.dim()
    shape = torch.broadcast_shapes(input.narrow(axis, 0, 1).shape, indices.narrow(axis, 0, 1).shape)
    before, after = shape[:axis], shape[axis + 1 :]
    whole = input.expand(*before, input.shape[axis], *after)
    return whole.gather(axis, indices.expand(*before, indices.shape[axis], *after))


def _affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Any:
    """`torch.nn.functional.affine_grid`: where the places of an image, or of a volume, come from."""
    rank = len(size) - 2
    if theta.dim() != 3 or theta.shape[1:] != (rank, rank + 1) or not theta.is_floating_point():
        return NotImplemented
    if align_corners is None or any(each < 2 for each in size[2:]):  # of which torch warns
        return NotImplemented
    grid = theta[:, :, -1].reshape(-1, *(1,) * rank, rank)
    for axis in range(rank):
        count = size[-1 - axis]
        place = 2 * torch.arange(count, dtype=theta.dtype, device=theta.device)
        place = place / (count - 1) - 1 if align_corners else (place + 1) / count - 1
        factors = theta[:, :, axis].reshape(-1, *(1,) * rank, rank)
        grid = grid + place.reshape(-1, *(1,) * axis, 1) * factors
    return grid


OF_SIZES: dict[Any, Callable[..., Any]] = {
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.fft.fftfreq: _fftfreq,
    torch.fft.rfftfreq: _rfftfreq,
    torch.gradient: _gradient,
    torch.kron: _kron,
    torch.take_along_dim: _take_along_dim,
    F.affine_grid: _affine_grid,
}
