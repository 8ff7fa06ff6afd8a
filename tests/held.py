"""Record which memory a launch may access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autogen.runtime.scratch import Scratch


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among values, in containers and in a launch's scratch memory too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Scratch):
            yield from (value._partials, value._counter)
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(list(value.values()))


def memories(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Where the memories of tensors begin, and how many bytes they have."""
    return {each.data_ptr(): each.nbytes() for each in (tensor.untyped_storage() for tensor in tensors)}
