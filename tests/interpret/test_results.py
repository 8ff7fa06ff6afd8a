"""What a loss returns beside tensors, in what structure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from autogen import autogen_loss, explain, policy
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
            assert repr(ours(x)) == repr(loss(x)).replace("MeanBackward0", "<lambda>Backward")


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
