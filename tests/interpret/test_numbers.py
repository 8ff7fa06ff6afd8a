"""Numbers that a loss reads from tensors, sizes, and floats that vary: Python computes and compares them as ever."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, explain

NAN, INF = math.nan, math.inf


def outcome(loss: Callable[..., Tensor], *args: Any) -> tuple[str, Any]:
    """The error that a call raises, and what it gives else."""
    try:
        return "", loss(*args)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}", 0


def agree(loss: Callable[..., Tensor], calls: Sequence[tuple[Any, ...]]) -> None:
    """Compare a loss with itself in torch, over calls in either order."""
    for order in (calls, calls[::-1]):
        ours = autogen_loss(loss)
        for args in order:
            (own, found), (error, expected) = outcome(ours, *args), outcome(loss, *args)
            assert own == error
            torch.testing.assert_close(found, expected, rtol=3e-7, atol=0, equal_nan=True)


# What is true of a number, and what it decides.
BRANCHES: dict[str, Callable[[float], Any]] = {
    "abs(m) == inf": lambda m: abs(m) == INF,
    "m == inf": lambda m: m == INF,
    "m < inf": lambda m: m < INF,
    "-inf < m < inf": lambda m: -INF < m < INF,
    "m in (1, 2)": lambda m: m in (1.0, 2.0),
    "m": bool,
    "math.isnan(m)": math.isnan,
    "math.isinf(m)": math.isinf,
    "math.isfinite(m)": math.isfinite,
}


@pytest.mark.parametrize("asked", BRANCHES)
def test_a_branch_on_a_number_that_may_not_be_finite(asked: str) -> None:
    holds = BRANCHES[asked]

    def loss(x: Tensor) -> Tensor:
        return x.nan_to_num(0.0).sum() * 10 if holds(x.mean().item()) else x.sum()

    agree(loss, [(torch.tensor([value, 2.0]),) for value in (NAN, 2.0, INF, 0.0, -INF, 3.5)])


def test_a_comparison_as_a_number() -> None:
    agree(
        lambda x: x.nan_to_num(0.0).sum() * (x.mean().item() != x.mean().item()),
        [(torch.tensor([value, 2.0]),) for value in (NAN, 2.0)],
    )


# What Python computes with a float: nothing cancels, and each step is rounded.
OF_FLOATS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda m: sum([m, m, 0.1]),
    "(m - 1) ** 3": lambda m: (m - 1) ** 3,
    "(m - 1) ** 0.5": lambda m: (m - 1) ** 0.5 if m >= 1 else type((m - 1) ** 0.5) is complex,
    "m % 1": lambda m: m % 1,
    "divmod(m, 0.1)": lambda m: divmod(m, 0.1)[1],
}


@pytest.mark.parametrize("formula", OF_FLOATS)
def test_a_float_from_a_tensor(formula: str) -> None:
    agree(
        lambda x: x.nan_to_num(0.5, 1.0, 1.0).sum() * OF_FLOATS[formula](x.mean().item()),
        [(torch.tensor(values),) for values in ([NAN, 2.0], [1.0, 2.0], [INF, 2.0], [0.1, 0.2], [0.25, 0.5])],
    )


@pytest.mark.parametrize("formula", OF_FLOATS)
def test_a_float_that_varies(formula: str) -> None:
    agree(lambda x, m: x.sum() * OF_FLOATS[formula](m), [(torch.ones(7), m) for m in (0.9, 0.1, 0.7, 1e16, 12.5)])


@pytest.mark.parametrize("formula", OF_FLOATS)
def test_a_size_with_floats(formula: str) -> None:
    agree(lambda x: x.sum() * OF_FLOATS[formula](x.shape[0]), [(torch.ones(n),) for n in (7, 12, 9, 123)])


def test_sizes_that_floats_decide() -> None:
    def loss(x: Tensor) -> Tensor:
        return x[: int(x.shape[0] * 0.3) + 1].exp().sum() + torch.ones(round(x.shape[0] * 0.31)).sum()

    agree(loss, [(torch.ones(n),) for n in (7, 12, 9, 123)])


def test_a_size_of_a_float_that_a_tensor_has() -> None:
    def loss(x: Tensor) -> Tensor:
        return x[: int(x.sum()) % 3 + 1].exp().sum()

    ours = autogen_loss(loss, policy="mandatory")
    for total in (0.5, 1.5, 2.5, 7.5):
        x = torch.full((5,), total / 5, requires_grad=True)
        value, expected = ours(x), loss(x)
        torch.testing.assert_close(value, expected, rtol=3e-7, atol=0)
        torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (value, expected)), rtol=3e-7, atol=0)


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


# What Python cannot compute of a count, and of a mean.
BY_ZERO: dict[str, Callable[[Any, Any], Any]] = {
    "1 / n": lambda n, m: 1 / n,
    "n / n": lambda n, m: n / n,
    "n // n": lambda n, m: n // n,
    "n % n": lambda n, m: n % n,
    "1 / m": lambda n, m: 1.0 / m,
    "m // m": lambda n, m: m // m,
    "n % m": lambda n, m: n % m,
    "m ** -1": lambda n, m: m**-1,
    "n ** -2": lambda n, m: n**-2,
}


def test_a_tensor_is_divided_by_zero() -> None:
    agree(lambda x: x.sum() / (x > 2).sum().item(), [(torch.tensor(values),) for values in ([1.0, 3.0], [1.0, 2.0])])
