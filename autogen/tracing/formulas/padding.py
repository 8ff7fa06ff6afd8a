"""Formulas for padding and its gradient; where one returns NotImplemented, the op is recorded as it is.

What a formula raises, torch raises in its own words: the call then runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten


def constant_pad_nd(input: Tensor, pad: Sequence[Any], value: float = 0) -> Any:
    """Negative widths, as the gradient of padding has, take away first: of symbolic sizes, torch's fake implementation
    logs an error before it goes on with fixed ones.
    """
    if not any(width < 0 for width in pad):
        return NotImplemented
    kept = input
    for place, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        if before < 0 or after < 0:
            dim = input.dim() - 1 - place
            first, last = max(-before, 0), input.shape[dim] - max(-after, 0)
            if last < first:
                raise RuntimeError("padding takes away more than there is")
            kept = aten.slice.Tensor(kept, dim, first, last)
    rest = [max(width, 0) for width in pad]
    return aten.constant_pad_nd.default(kept, rest, value) if any(rest) else kept.clone()


def reflection_pad(op: Any) -> Callable[..., Any]:
    """torch's formula for an op, which mirrors as often as it takes, where no more is mirrored than there is."""

    def pad(input: Tensor, padding: Sequence[Any]) -> Any:
        for place, widths in enumerate(zip(padding[::2], padding[1::2], strict=True)):
            if any(width >= input.shape[-1 - place] for width in widths):
                raise RuntimeError("more is mirrored than there is")
        return decomposition_table[op](input, padding)

    return pad


def reflection_pad_backward(grad: Tensor, input: Tensor, padding: Sequence[Any]) -> Any:
    """One dimension after the other, what was mirrored is folded back: torch's formula looks at all corners together,
    which takes seconds to trace.
    """
    if not any(padding) or any(width < 0 for width in padding):
        return NotImplemented
    for place, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True)):
        dim = input.dim() - 1 - place
        size, whole = input.shape[dim], grad
        grad = whole.narrow(dim, before, size)
        for width, start, first in ((before, 0, 1), (after, before + size, size - 1 - after)):
            if width:
                folded = whole.narrow(dim, start, width).flip(dim)
                grad = grad + aten.slice_backward.default(folded, grad.shape, dim, first, first + width, 1)
    return grad
