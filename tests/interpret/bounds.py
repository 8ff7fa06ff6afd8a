"""Check that every access of a kernel is inside a tensor that it was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

# The methods that reach memory, and where their pointers and masks are among the arguments.
_ACCESSES = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}


class OutOfBoundsError(Exception):
    """A kernel reached beyond the tensors that it was given."""


class Bounds:
    """The memory of the tensors that the running kernel was given."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Check from now on."""
        prepare = GridExecutor._init_args_hst

        def noted(executor: GridExecutor, args: Any, kwargs: Any) -> Any:
            prepared = prepare(executor, args, kwargs)
            self._spans = [_span(tensor) for tensor in _tensors([prepared[0], prepared[1].values()])]
            return prepared

        monkeypatch.setattr(GridExecutor, "_init_args_hst", noted)
        for name, (pointers, mask) in _ACCESSES.items():
            self._patch_access(monkeypatch, name, pointers, mask)

    def _patch_access(self, monkeypatch: pytest.MonkeyPatch, name: str, pointers: int, mask: int) -> None:
        access = getattr(InterpreterBuilder, name)

        def checked(builder: InterpreterBuilder, *args: Any) -> Any:
            self._check(name, args[pointers], args[mask])
            return access(builder, *args)

        monkeypatch.setattr(InterpreterBuilder, name, checked)

    def _check(self, name: str, pointers: TensorHandle, mask: TensorHandle) -> None:
        reached = pointers.data[mask.data.astype(bool)].astype(np.uint64)
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        outside = np.ones(reached.shape, bool)
        for first, end in self._spans:
            outside &= (reached < first) | (reached + np.uint64(width) > end)
        if outside.any():
            raise OutOfBoundsError(
                f"{name.removeprefix('create_').removeprefix('masked_')}: {outside.sum()} of {reached.size} elements"
            )


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Iterable) and not isinstance(value, str):
            yield from _tensors(value)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor's elements, and the one after the last."""
    if not tensor.numel():
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
