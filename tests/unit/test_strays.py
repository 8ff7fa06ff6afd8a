"""Tensors of a trace are taken out of whatever holds them, with any version of Python."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from autogen.tracing.python.strays import remove


def test_out_of_lists_and_tuples() -> None:
    tensor = torch.zeros(1)
    made = [weakref.ref(tensor)]
    kept: dict[str, Any] = {"rest": [tensor, 1], "pairs": {"first": (tensor, 2), "second": (3, 4)}}
    del tensor
    assert remove(made)
    assert made[0]() is None
    assert kept == {"rest": [1], "pairs": {"second": (3, 4)}}
    assert not remove(made)
