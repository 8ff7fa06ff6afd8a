"""What a loss returns beside tensors, in what structure."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from autogen import ResultError, autogen_loss, explain, policy
from tests.interpret.launches import Launches


@dataclass
class Metrics:
    value: float
    n: int
    rest: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Output:
    loss: Tensor
    metrics: Metrics | None = None


class Stage(enum.Enum):
    FIRST = 1


def check(loss: Callable[[Tensor], Any]) -> None:
    """As in torch, with kernels, in calls of other sizes."""
    ours = autogen_loss(loss)
    for n in (3, 4, 5, 3):
        x = torch.full((n, 2), float(n), requires_grad=True)
        with policy("mandatory"):
            assert repr(ours(x)).replace("_FusedBackward", "_ShortBackward") == repr(loss(x)).replace(
                "MeanBackward0", "_ShortBackward"
            )


def test_dataclasses() -> None:
    check(lambda x: Output(x.mean()))
    check(lambda x: (x.mean(), Metrics(x.detach().sum().item(), len(x), [x.shape, {"a": x.numel() / 2}])))
    check(lambda x: Output(x.mean(), Metrics(0.5, x.shape[0])))


def test_each_call_has_its_own() -> None:
    ours = autogen_loss(lambda x: (x.mean(), Metrics(0.5, 1), [], {}))
    for _ in range(4):
        _, metrics, rest, logs = ours(torch.ones(3))
        assert (metrics, rest, logs) == (Metrics(0.5, 1), [], {})
        metrics.rest.append(1)
        metrics.n += 1
        rest.append(1)
        logs["n"] = 1


def with_logits(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
    error = (x - y).pow(3)
    return error.mean(), {"logits": x, "parts": [error, y], "again": error}


def test_what_is_given_is_returned_as_it_is(launches: Launches) -> None:
    ours = autogen_loss(with_logits)
    for n in (3, 4, 4, 4):
        x, y = torch.linspace(-1, 1, n, requires_grad=True), torch.linspace(0, 2, n)
        with policy("mandatory"):
            loss, rest = ours(x, y)
        assert rest["logits"] is x
        assert rest["parts"][1] is y
        assert rest["parts"][0] is rest["again"]
        torch.testing.assert_close((loss, rest), with_logits(x, y))
        (found,), (wanted,) = (
            torch.autograd.grad(value + given["logits"].sum() + given["again"].exp().sum(), x)
            for value, given in ((loss, rest), with_logits(x, y))
        )
        torch.testing.assert_close(found, wanted)
        with torch.no_grad():
            assert ours(x, y)[1]["logits"].requires_grad
        assert launches.take() == 3
    report = explain(ours, torch.zeros(4096), torch.zeros(4096))
    assert report.forward is not None
    assert report.forward.bytes_moved < 4 * 4096 * 4  # two tensors are read, one is written


def test_second_derivatives_in_a_dataclass() -> None:
    def cubed(x: Tensor) -> Output:
        return Output(x.pow(3).sum())

    x = torch.linspace(-1, 1, 5, requires_grad=True)
    (slope,) = torch.autograd.grad(autogen_loss(cubed)(x).loss, x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach())


def test_shapes_stay_shapes() -> None:
    check(lambda x: (x.mean(), x.shape, [x[0].size()]))


def test_what_nobody_can_change() -> None:
    check(lambda x: (x.mean(), None, True, "a", b"b", 1.5, 2j, x.dtype, Stage.FIRST, int, frozenset([1]), range(2)))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: collections.Counter(),
        lambda x: {1},
        lambda x: bytearray(2),
        lambda x: types.SimpleNamespace(n=x.numel()),
        lambda x: ValueError(x.shape[0]),
        lambda x: slice(0, len(x)),
        lambda x: frozenset([x.detach() * 2]),
        lambda x: functools.partial(torch.mul, x.detach() * 2),
        lambda x: (x * 2).detach().mean,
        lambda x: (each for each in [x.detach() * 2]),
    ],
)
def test_what_only_running_the_loss_can_make(other: Callable[[Tensor], Any]) -> None:
    """A trace would give all calls one object, or symbols and tensors that have no values."""
    ours = autogen_loss(lambda x: (x.mean(), other(x)))
    for n in (3, 4, 5):
        x = torch.ones(n, requires_grad=True)
        first, second = ours(x)[1], ours(x)[1]
        assert type(first) is type(other(x))
        assert first is not second
        assert "Fake" not in repr(first) and "Sym" not in repr(first)
    assert f"an object of the class {type(other(x)).__name__}" in explain(ours, x).reason
    with policy("mandatory"), pytest.raises(ResultError, match="named tuples and dataclasses"):
        ours(x)


def test_a_loss_that_returns_no_tensor() -> None:
    for loss in (lambda x: 3.0, lambda x: x.sum().item() * 2, lambda x: (None, len(x))):
        with policy("mandatory"), pytest.raises(ResultError, match="returns no tensor"):
            autogen_loss(loss)(torch.ones(3))
