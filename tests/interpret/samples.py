"""Seeded inputs for the losses, of any dtype, with a method for each kind of tensor."""

from __future__ import annotations

import torch
from torch import Tensor


class Samples:
    """A source of tensors of one dtype."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def real(self, *shape: int) -> Tensor:
        """Normally distributed numbers."""
        return torch.randn(shape, generator=self._generator).to(self.dtype)

    def probability(self, *shape: int) -> Tensor:
        """Numbers between 0.05 and 0.95."""
        return (torch.rand(shape, generator=self._generator) * 0.9 + 0.05).to(self.dtype)

    def count(self, *shape: int) -> Tensor:
        """Numbers from 0 to 5, about a fifth of them 0 or 1."""
        return (torch.rand(shape, generator=self._generator) * 6 - 0.5).clamp(0, 5).to(self.dtype)

    def sign(self, *shape: int) -> Tensor:
        """1 or -1."""
        return (torch.randint(0, 2, shape, generator=self._generator) * 2 - 1).to(self.dtype)

    def label(self, classes: int, *shape: int) -> Tensor:
        """Integers from 0 to `classes` - 1."""
        return torch.randint(0, classes, shape, generator=self._generator)

    def log_probability(self, *shape: int) -> Tensor:
        """Logarithms of numbers that add up to 1 over dimension 1."""
        logits = torch.randn(shape, generator=self._generator)
        return logits.log_softmax(min(1, logits.dim() - 1)).to(self.dtype)
