"""Ops by which torch joins lists of tensors before the kernels, and splits their gradients.

These are linear maps that are each other's gradient, of as many tensors as there are, at the cost of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autogen import compat

Places = Sequence[Sequence[Any]]
"""Where each part is in a whole: indices of ints and slices, the first into the whole, each other into what came."""


def taken(whole: Tensor, places: Places) -> Sequence[Tensor]:
    """The parts of a tensor at some `places`. Their gradients are written to one tensor of zeros."""
    parts: Sequence[Tensor] = _Take.apply(places, whole)
    return parts


def padded(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """`torch.nn.utils.rnn.pad_sequence`, whose gradients are views of one tensor."""
    longest = max(len(each) for each in sequences)
    first = sequences[0]
    if any(each.shape[1:] != first.shape[1:] or each.dtype != first.dtype for each in sequences):
        return torch.nn.utils.rnn.pad_sequence(list(sequences), batch_first, padding_value, padding_side)
    shape = (len(sequences), longest) if batch_first else (longest, len(sequences))
    is_left = padding_side == "left"
    places = [
        [(k, slice(longest - len(each), None) if is_left else slice(len(each)))[:: 1 if batch_first else -1]]
        for k, each in enumerate(sequences)
    ]
    whole: Tensor = _Place.apply(places, first, (*shape, *first.shape[1:]), padding_value, *sequences)
    return whole


def _parts_of(whole: Tensor, places: Places) -> list[Tensor]:
    parts = []
    for place in places:
        part = whole
        for index in place:
            part = part[index]
        parts.append(part)
    return parts


class _Take(torch.autograd.Function):
    """Parts of a whole: `apply(places, whole)`."""

    @staticmethod
    def forward(ctx: Any, places: Places, whole: Tensor) -> tuple[Tensor, ...]:
        ctx.places, ctx.shape = places, whole.shape
        ctx.set_materialize_grads(False)
        return tuple(_parts_of(whole.detach(), places))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, Tensor | None]:
        pairs = [(p, g) for p, g in zip(ctx.places, gradients, strict=True) if g is not None]
        if not pairs:
            return None, None
        places, given = zip(*pairs, strict=True)
        return None, _Place.apply(places, given[0], ctx.shape, 0.0, *given)


class _Place(torch.autograd.Function):
    """A new tensor like another one, of a shape and a value, with parts added to it at places:
    `apply(places, like, shape, value, *parts)`.
    """

    @staticmethod
    def forward(ctx: Any, places: Places, like: Tensor, shape: Sequence[int], value: float, *parts: Tensor) -> Tensor:
        ctx.places = places
        whole = like.new_full(shape, value)
        views = _parts_of(whole, places)
        if _are_apart(places):
            compat.copy_each(views, parts)
        else:
            for view, part in zip(views, parts, strict=True):
                view.add_(part)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return (None, None, None, None, *_Take.apply(ctx.places, gradient))


def _are_apart(places: Places) -> bool:
    """Whether parts surely have no element in common, as they are at different places of one dimension."""
    columns = zip(*(first if isinstance(first, tuple) else (first,) for first, *_ in places), strict=False)
    for column in columns:
        if all(type(each) is int and each >= 0 for each in column) and len(set(column)) == len(places):
            return True
        if not all(isinstance(each, (int, slice)) for each in column):
            return False
    return False
