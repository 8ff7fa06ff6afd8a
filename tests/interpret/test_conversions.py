"""What a loss converts by functions of Python is no reason for another trace, nor to leave the kernels."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, explain, trace_count
from tests.interpret.test_numbers import outcome


def _squares(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).square()


def _one_hot(y: Tensor) -> Tensor:
    """A one in each row."""
    ones = torch.zeros_like(y)
    ones[range(y.shape[0]), y.argmax(1)] = 1
    return ones


# Losses of which sizes, or what is read of their tensors, is converted.
CONVERTED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "float(size)": lambda x, y: _squares(x, y).sum() / float(len(x)),
    "int(size)": lambda x, y: _squares(x, y)[: int(x.shape[0] * 0.3)].mean(),
    "int(quotient)": lambda x, y: _squares(x, y)[: max(int(x.shape[0] / 2), 1)].mean(),
    "range": lambda x, y: _squares(x, y).sum() * torch.arange(int(x.shape[0]), dtype=x.dtype).mean(),
    "math.sqrt(size)": lambda x, y: _squares(x, y).sum() / math.sqrt(x.shape[0]) + sqrt(x.numel()),
    "math.log(size, base)": lambda x, y: _squares(x, y).mean() * math.log(x.shape[0], 3) + log(x.numel()),
    "math.exp, math.pow": lambda x, y: _squares(x, y).mean() * math.exp(-x.shape[0] / 9) * math.pow(len(x), 0.7),
    "math.log2, math.ceil": lambda x, y: _squares(x, y).mean() * math.ceil(math.log2(x.shape[0] + 3)),
    "np.sqrt(size), np.minimum": lambda x, y: _squares(x, y).sum() / np.sqrt(x.shape[0]) * np.minimum(len(x) / 20, 1.0),
    "np.log(number)": lambda x, y: _squares(x, y).sum() * np.log((y > 0).sum().item() + 2.0),
    "map(int, sizes)": lambda x, y: _squares(x, y).sum() / math.prod(map(int, x.shape)),
    "truth of a size": lambda x, y: _squares(x, y).sum() / (float(len(x)) or 1.0),
    "float(tensor)": lambda x, y: _squares(x, y).sum() / max(float((y > 0).sum()), 1.0),
    "int(tensor)": lambda x, y: _squares(x, y).sum() / max(int((y > 0).sum()), 1),
    "int(number)": lambda x, y: _squares(x, y).sum() / (int((y > 0).float().sum()) + 1),
    "math.log(number)": lambda x, y: _squares(x, y).sum() * math.log((y > 0).sum().item() + 2),
    "float(tensor) in a condition": lambda x, y: torch.where(y > 0.5 * float(y.max()), x.abs(), x.square()).mean(),
    "a metric": lambda x, y: (_squares(x, y).mean(), {"mae": float((x - y).abs().mean()), "n": int(x.shape[0])}),
    "isinstance": lambda x, y: _squares(x, y).sum() * (2 if isinstance(float(len(x)), (int, float)) else 3),
    "math.isfinite(float(tensor))": lambda x, y: (
        _squares(x, y).mean() if math.isfinite(float(y.sum())) else x.exp().sum()
    ),
    "torch.tensor(size)": lambda x, y: _squares(x, y).sum() / torch.tensor(x.shape[0]),
    "torch.tensor(float(size))": lambda x, y: _squares(x, y).sum() / torch.as_tensor(float(x.shape[0])),
    "torch.tensor(sizes)": lambda x, y: (x / torch.tensor([x.shape[0], 2 * x.shape[1]])).square().mean() + y.mean(),
    "new_tensor(sizes)": lambda x, y: (x / x.new_tensor([[x.shape[0], 4]])).square().mean() + y.mean(),
    "a place": lambda x, y: _squares(x[x.shape[0] - 1], y[len(y) // 2]).mean(),
    "range(size) as an index": lambda x, y: (
        -x.log_softmax(1)[range(len(x)), y.argmax(1)].mean() + y[range(len(y))].sum()
    ),
    "range(size) as a place of a write": lambda x, y: (_one_hot(y) * x).square().mean(),
    "a place among slices": lambda x, y: _squares(x[None, ..., x.shape[0] // 2, :1, None], y[x.shape[0] - 2, 1]).mean(),
}


before_311 = pytest.mark.skipif(sys.version_info < (3, 11), reason="what is only called is not known")


@before_311
@pytest.mark.parametrize("case", CONVERTED)
def test_one_trace_for_all_sizes_and_values(case: str) -> None:
    loss = CONVERTED[case]
    ours = autogen_loss(lambda x, y: loss(x, y))
    for rows in (12, 7, 23, 30):
        x, y = torch.randn(rows, 2, requires_grad=True), torch.randn(rows, 2)
        expected, found = loss(x, y), ours(x, y)
        if isinstance(expected, tuple):
            (expected, metrics), (found, numbers) = expected, found
            assert {name: type(each) for name, each in numbers.items()} == {"mae": float, "n": int}
            assert numbers == pytest.approx(metrics, rel=1e-6)
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-7)
        gradients = [torch.autograd.grad(each, x)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=2e-6, atol=1e-7)
    assert explain(ours, x, y).path == "generated"
    assert trace_count(ours) == 1


# Python's functions where they may fail, of the sum of a tensor.
OF_A_SUM: dict[str, Callable[[Tensor], Any]] = {
    "math.log": lambda total: math.log(total.item()),
    "math.sqrt": lambda total: math.sqrt(float(total)),
    "math.exp": lambda total: math.exp(total.item()),
    "int": lambda total: int(float(total)),
    "division": lambda total: 1 / float(total),
    "math.isinf of what is computed": lambda total: math.isinf(float(total) * 1e300),
    "math.isnan": lambda total: math.isnan(float(total)),
    "of a tensor": lambda total: math.log(total),
    "np.log": lambda total: np.log(total.item()),
    "np.exp": lambda total: np.exp(total.item()),
}


# Weights of a step, as NumPy computes them.
SCHEDULES: dict[str, Callable[[int], Any]] = {
    "sigmoid": lambda step: float(np.exp(-5.0 * (1.0 - np.clip(step, 0.0, 6) / 6) ** 2)),
    "cosine": lambda step: 0.5 * (1 + np.cos(np.pi * min(step / 9, 1.0))),
    "linear": lambda step: np.minimum(step / 6, 1.0) + np.maximum(0.0, 1 - step / 5),
    "decay": lambda step: np.float64(0.9) ** step,
    "root": lambda step: 3 / np.sqrt(step),
    "of the bounds": lambda step: np.clip(2.5, 0.0, step / 2),
    "an option": lambda step: np.exp(-step, dtype=np.float64),
    "reduced": lambda step: np.multiply.reduce([step, 2.0]),
    "of an array": lambda step: (np.linspace(0.0, 1.0, 3) * step).sum(),
    "integers": lambda step: int(np.clip(step, 2, 6)),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    weight = SCHEDULES[schedule]

    def loss(x: Tensor, step: int) -> Tensor:
        return x.square().sum() * weight(step)

    ours = autogen_loss(loss)
    for step in range(2, 12):
        x = torch.randn(4)
        torch.testing.assert_close(ours(x, step), loss(x, step), rtol=5e-7, atol=0)
    fixed = ("of the bounds", "an option", "reduced", "of an array", "integers")
    assert schedule in fixed or trace_count(ours) <= 4


# What NumPy computes of its own numbers where Python would raise.
BY_ZERO: dict[str, Callable[[float], Any]] = {
    "/": lambda step: 1 / np.exp(-step),
    "/, the other way": lambda step: np.exp(-step) / (step - 1000.0),
    "%": lambda step: 7.0 % np.maximum(0.0, 3.0 - step),
    "//": lambda step: 7.0 // np.exp(-step),
    "**": lambda step: np.exp(step / 2) ** 3,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("at", [2, 4])  # where it is traced, and later
@pytest.mark.parametrize("case", BY_ZERO)
def test_numbers_of_numpy_divide_by_zero(case: str, at: int) -> None:
    weight = BY_ZERO[case]

    def loss(x: Tensor, step: float) -> Tensor:
        return x.sum() * weight(step)

    ours, x = autogen_loss(loss), torch.ones(3)
    steps = [1.0, 2.0, 2.5, 2.75, 2.875]
    steps.insert(at, 1000.0)
    for step in steps:
        torch.testing.assert_close(ours(x, step), loss(x, step), rtol=5e-7, atol=0, equal_nan=True)
    assert trace_count(ours) <= 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy's functions
@pytest.mark.parametrize("case", OF_A_SUM)
def test_errors_are_pythons(case: str) -> None:
    number = OF_A_SUM[case]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() * number(y.sum())

    ours, x = autogen_loss(loss), torch.ones(3)
    for total in (2.5, 0.0, -1.0, math.inf, 7.0, math.nan, 800.0, 1e38):
        y = torch.tensor([total, 0.0])
        (error, found), (expected_error, expected) = outcome(ours, x, y), outcome(loss, x, y)
        assert error == expected_error
        torch.testing.assert_close(found, expected, rtol=3e-7, atol=0, equal_nan=True)


def test_a_class_that_is_more_than_called_stays_what_it_is() -> None:
    def loss(x: Tensor) -> Tensor:
        return x.to(float).mean() * float(len(x)) * {int: 2, float: 3}[float]

    ours = autogen_loss(loss)
    for rows in (4, 9):
        x = torch.randn(rows)
        torch.testing.assert_close(ours(x), loss(x))
    assert explain(ours, x).path == "generated"
    assert trace_count(ours) == 2


@before_311
def test_ranges_are_what_they_are() -> None:
    def loss(x: Tensor) -> Tensor:
        places = range(x.shape[0])
        backwards = [*places[::-1], *reversed(places)]
        picked = x[[k for k in places if k % 2], 0].sum() + x[torch.tensor(places[1:]), 0].exp().sum()
        weight = len(places) + places.index(1) + (2 in places) + (places == range(3)) + places[-1] + places.count(0)
        return (picked + sum(x[k, 0] * j for k, j in zip(places, backwards, strict=False))) * weight

    ours = autogen_loss(loss)
    for n in (3, 4, 3):
        x = torch.linspace(-1, 2, 2 * n).reshape(n, 2).requires_grad_()
        torch.testing.assert_close(ours(x), loss(x))
        torch.testing.assert_close(torch.autograd.grad(ours(x), x), torch.autograd.grad(loss(x), x))
    assert explain(ours, x).path == "generated"


def test_a_size_as_a_key() -> None:
    scales = {3: 2.0, 5: 4.0}

    def loss(x: Tensor) -> Tensor:
        return x.square().mean() * scales[int(x.shape[0])] * {x.shape[0]: 2}.get(3, 1)

    ours = autogen_loss(loss)
    for rows in (3, 5, 3):
        x = torch.randn(rows)
        torch.testing.assert_close(ours(x), loss(x))
    assert explain(ours, x).path == "generated"
    with pytest.raises(KeyError, match="4"):
        ours(torch.ones(4))


def test_what_others_see_while_a_loss_is_traced() -> None:
    seen: list[Any] = []

    def ask() -> None:
        seen.append((float("2.5"), int("ff", base=16), isinstance(1.0, float), math.log(8, 2), math.isnan(1.0)))

    def loss(x: Tensor) -> Tensor:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return x.mean() / float(len(x))

    autogen_loss(loss)(torch.ones(3))
    assert seen[0] == seen[-1] == (2.5, 255, True, 3.0, False)
    assert "float" not in globals()
    assert "int" not in globals()
