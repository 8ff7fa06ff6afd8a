"""Geometry: all of tensors, but their values, that decides what is launched for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

ATTRIBUTES = (
    *("__class__", "shape", "stride()", "dtype", "layout", "device"),
    *("requires_grad", "is_neg()", "_is_zerotensor()", "is_inference()"),
)
"""What it consists of, as Python asks a tensor for it."""

_COUNT, _SHAPE = len(ATTRIBUTES), ATTRIBUTES.index("shape")


MOST_LAYOUTS = 64
"""Of upstream gradients for which backward is prepared, before the oldest is forgotten."""


def kinds_of(attributes: Sequence[Any]) -> tuple[Any, ...]:
    """The geometry of tensors but for their strides, and for their sizes if these are not 0 or 1."""
    kinds: list[Any] = []
    for first in range(0, len(attributes), _COUNT):
        kinds.append(tuple([size if size < 2 else 2 for size in attributes[first + _SHAPE]]))
        kinds.append(attributes[first])
        kinds += attributes[first + _SHAPE + 2 : first + _COUNT]  # the strides are next to the shape
    return tuple(kinds)


Alike = Callable[..., bool]
"""Whether the tensors that it is called with have a certain geometry. It may say no to some that have.

None of them may be nested: torch's test ends the process if a tensor has no strides.
"""


def alike(tensors: Sequence[torch.Tensor]) -> Alike | None:
    """A test for the geometry of some tensors that is much faster than to ask for it; None where torch has none.

    It is that of Dynamo's guards, which is not public, and which says no where autocast or inference mode have changed,
    or a tensor comes twice.
    """
    return _guard(tensors) if _is_thorough() else None


def _guard(tensors: Sequence[torch.Tensor]) -> Alike:
    from torch._C._dynamo.guards import TensorGuards

    check: Alike = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


@functools.cache
def _is_thorough() -> bool:
    """Whether this torch's test finds every difference."""
    with torch.device("cpu"):  # whichever is the default
        like = torch.zeros(2, 3)
        with torch.inference_mode(not torch.is_inference_mode_enabled()):
            made_elsewhere = torch.zeros(2, 3)
        others: list[Any] = [
            torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
            torch.zeros(3, 2),
            torch.zeros(3, 2).t(),
            torch.zeros(2, 3, dtype=torch.int32),
            torch.zeros(2, 3, device="meta"),
            torch.zeros(2, 3, requires_grad=True),
            torch._neg_view(like),
            torch._efficientzerotensor(2, 3),
            like.to_sparse(),
            made_elsewhere,
        ]
    try:
        check = _guard([like])
        return check(like) and check(like + 1) and not any(map(check, others))
    except (ImportError, TypeError):
        return False


def make_room(most: int, table: dict[Any, Any], *others: dict[Any, Any]) -> None:
    """Drop the oldest of a table's entries, and what others have under their keys, if there are too many."""
    if len(table) >= most:
        for oldest in list(table)[: max(most // 8, 1)]:
            for each in (table, *others):
                each.pop(oldest, None)
