"""Geometry: all of tensors, but their values, that decides what is launched for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autogen import compat

MOST_LAYOUTS = 64
"""Of upstream gradients for which backward is prepared, before the oldest is forgotten."""


Alike = Callable[..., bool]
"""Whether the tensors that it is called with have a certain geometry. It may say no to some that have.

None of them may be nested: torch's test ends the process if a tensor has no strides.
"""


def alike(tensors: Sequence[torch.Tensor]) -> Alike | None:
    """A test for the geometry of some tensors that is much faster than to ask for it; None where torch has none.

    It is that of Dynamo's guards, which is not public, and which says no where autocast or inference mode have changed,
    or a tensor comes twice.
    """
    return compat.tensor_guard(tensors) if _is_thorough() else None


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
            compat.neg_view(like),
            compat.zero_tensor(2, 3),
            like.to_sparse(),
            made_elsewhere,
        ]
    try:
        check = compat.tensor_guard([like])
        return check(like) and check(like + 1) and not any(map(check, others))
    except (ImportError, TypeError):
        return False


def make_room(most: int, table: dict[Any, Any], *others: dict[Any, Any]) -> None:
    """Drop the oldest of a table's entries, and what others have under their keys, if there are too many."""
    if len(table) >= most:
        for oldest in list(table)[: max(most // 8, 1)]:
            for each in (table, *others):
                each.pop(oldest, None)
