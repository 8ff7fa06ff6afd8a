"""Numbers that a loss reads from tensors: what is computed with them is what Python computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, explain


def outcome(loss: Callable[..., Tensor], *args: Any) -> Tensor | str:
    """What a call gives, or the error that it raises."""
    try:
        return loss(*args)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def agree(loss: Callable[..., Tensor], calls: Sequence[tuple[Any, ...]]) -> None:
    """Compare a loss with itself in torch, over calls in either order."""
    for order in (calls, calls[::-1]):
        ours = autogen_loss(loss)
        for args in order:
            torch.testing.assert_close(outcome(ours, *args), outcome(loss, *args), rtol=3e-7, atol=0, equal_nan=True)


# What a kernel computes of numbers that it reads itself, in double precision and of exact integers.
READ: dict[str, tuple[Callable[[Tensor], Tensor], list[list[Any]]]] = {
    "class balance": (
        lambda t: torch.ones(3).sum() * ((1 - 0.9999) / (1 - 0.9999 ** (t == 1).sum().item())),
        [[1], [1, 1, 0], [1, 1, 1, 1, 0]],
    ),
    "n - 2**24": (lambda t: torch.ones(1).sum() * (t.sum().item() - 2**24), [[2**24, 1], [2**40, 5, 0]]),
    "m ** 8 * 1e-40": (lambda t: t.sum() * (t.sum().item() ** 8 * 1e-40), [[1e6, 1e5], [1e6, -1e5]]),
    "m ** 2, negative": (lambda t: t.sum() * t[0].item() ** 2, [[-3.0, 1.0], [0.5, 2.0]]),
    "m - 1": (lambda t: t.sum() * (t[0].item() * 1e-9 + 1 - 1), [[1.0, 2.0], [3.0, 4.0]]),
}


@pytest.mark.parametrize("case", READ)
def test_arithmetic_on_a_number_that_a_kernel_reads(case: str) -> None:
    loss, values = READ[case]
    agree(loss, [(torch.tensor(each),) for each in values])
    report = explain(autogen_loss(loss), torch.tensor(values[0]))
    assert report.path == "generated" and "number" not in report.forward.source
