"""Running products: torch 2.11 differentiates them by a sum for each element, where it does not know their values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOOPS_OVER_ELEMENTS = torch.__version__ < "2.12"


def cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`torch.cumprod`, with a gradient that is made of scans."""
    input = input if dtype is None else input.to(dtype)
    if not input.dtype.is_floating_point or input.dim() == 0:
        return torch.cumprod(input, dim)
    return _Cumprod.apply(input, dim)


class _Cumprod(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, dim: int) -> Tensor:
        products = input.cumprod(dim)
        ctx.dim = dim
        ctx.save_for_backward(input, products)
        return products

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Up to the first 0 a quotient, for the first 0 the products that are without it, and beyond it nothing."""
        input, products = ctx.saved_tensors
        dim = ctx.dim
        zeros = (input == 0).cumsum(dim)
        before, within = zeros == 0, zeros == 1
        is_first = within & (input == 0)
        terms = (grad * products).masked_fill(~before, 0.0)
        quotient = terms.flip(dim).cumsum(dim).flip(dim) / input.masked_fill(~before, 1.0)
        leading = input.masked_fill(~before, 1.0).prod(dim, keepdim=True)
        following = input.masked_fill(~within | is_first, 1.0).cumprod(dim)
        without = leading * (following * grad).masked_fill(~within, 0.0).sum(dim, keepdim=True)
        return quotient.where(before, without.where(is_first, 0.0)), None
