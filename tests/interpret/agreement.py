"""Compare one call of any loss with torch: value, gradients and launches, by torch in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autogen import autogen_loss, policy
from tests.interpret.launches import LAUNCHES

# An error may be as many times torch's largest, and as many ulps of an element or of 0.1.
_AS_TORCH, _ULPS = 4, 32

_RANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "real": lambda n: n * 1.5,
    "positive": lambda n: n.abs() + 0.1,
    "above one": lambda n: n.abs() + 1.1,
    "unit": lambda n: n.sigmoid(),
    "within": lambda n: n.tanh() * 0.95,
}


def draw(kind: str, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Numbers of a range that ask for their gradient."""
    normal = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return _RANGES[kind](normal).to(dtype).requires_grad_()


def labels(classes: int, *shape: int, seed: int = 5) -> Tensor:
    """Integers from 0 to `classes` - 1."""
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def agree(
    loss: Callable[..., Tensor],
    *tensors: Tensor,
    launches: Sequence[int] | None = (1, 1),
    as_torch: float = _AS_TORCH,
    **options: Any,
) -> None:
    """Compare a loss with itself in torch, the tensors that are floats asking for their gradient.

    `launches` is how many kernels forward and backward take; None does not count them. An error may be `as_torch` times
    torch's largest. `options` are those of `autogen_loss`.
    """
    exact = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
    wide = [t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in tensors]
    truth, _ = _run(exact, wide)
    theirs, _ = _run(loss, tensors)
    LAUNCHES.take()
    with policy("mandatory"):
        decorated = autogen_loss(loss, **options)
        for _ in range(1 + bool(options)):  # the second call is host code's
            ours, counted = _run(decorated, tensors)
    names = ["value", *(f"gradient {k}" for k in range(len(ours) - 1))]
    for what, own, their, true in zip(names, ours, theirs, truth, strict=True):
        assert (own is None) == (their is None), f"{what}: {own}, torch {their}"
        if own is not None and their is not None and true is not None:
            _compare(what, own, their, true, as_torch)
    assert launches is None or counted == tuple(launches)


def _run(loss: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[list[Tensor | None], tuple[int, int]]:
    value = loss(*tensors)
    forward = LAUNCHES.take()
    upstream = torch.randint(-8, 9, value.shape, generator=torch.Generator().manual_seed(99)).to(value.dtype) / 4
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    if not value.requires_grad:
        return [value], (forward, 0)
    gradients = torch.autograd.grad(value, wanted, upstream, allow_unused=True)
    return [value.detach(), *gradients], (forward, LAUNCHES.take())


def _compare(what: str, own: Tensor, their: Tensor, true: Tensor, as_torch: float) -> None:
    assert own.dtype == their.dtype and own.shape == their.shape, (
        f"{what}: {own.dtype} {own.shape}, torch {their.shape}"
    )
    eps = torch.finfo(own.dtype).eps if own.dtype.is_floating_point else 0.0
    own, their, true = own.double(), their.double(), true.double()
    scale = true.abs().nan_to_num(0, 0, 0) + 0.1
    same = (own == their) | (own.isnan() & their.isnan())
    error = torch.where(same, 0, (own - true).abs() / scale)
    allowed = as_torch * ((their - true).abs() / scale).nan_to_num(0, 0, 0).max() if true.numel() else error
    bound = allowed + _ULPS * eps
    assert bool((error <= bound).all()), f"{what}: off by {error.max()}, allowed {bound}"
