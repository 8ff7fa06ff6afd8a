"""The check of bounds that all these tests run under finds what it is for."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

BLOCK = 16

pytestmark = pytest.mark.interpreted  # an emulated GPU has bounds of its own


@triton.jit
def copy(x_ptr, out_ptr, n_elements, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n_elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.jit
def count(counter_ptr, at):
    tl.atomic_add(counter_ptr + at, 1)


def test_what_lies_within_is_not_refused() -> None:
    x, out = torch.arange(10.0), torch.zeros(10)
    copy[(1,)](x, out, 10, BLOCK=BLOCK)
    torch.testing.assert_close(out, x)


@pytest.mark.parametrize(("length", "room", "what"), [(10, 11, "load: 1"), (11, 10, "store: 1")])
def test_an_access_beyond_a_tensor(length: int, room: int, what: str) -> None:
    memory = torch.zeros(100)  # beyond the tensor, not beyond what it was cut from
    with pytest.raises(InterpreterError, match=f"{what} of 11 elements"):
        copy[(1,)](memory[20 : 20 + length], memory[60 : 60 + room], 11, BLOCK=BLOCK)


def test_an_atomic_access_beyond_a_tensor() -> None:
    with pytest.raises(InterpreterError, match="atomic_rmw: 1 of 1"):
        count[(1,)](torch.zeros(3, dtype=torch.int32), -1)
