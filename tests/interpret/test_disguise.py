"""What a loss asks of sizes and of floats that vary, it hears as if no symbol stood in their place."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen
from autogen import autogen_loss, explain, trace_count
from tests.interpret.launches import Launches

Loss = Callable[..., Tensor]


def size(x: Tensor) -> Tensor:
    return x.sum() * (2 if isinstance(x.shape[0], int) else 3)


def length(x: Tensor) -> Tensor:
    return x.sum() * (2 if isinstance(len(x), (str, numbers.Integral)) else 3)


def count(x: Tensor) -> Tensor:
    return x.sum() * (2 if isinstance(x.numel(), numbers.Number) else 3)


def quotient(x: Tensor) -> Tensor:
    return x.sum() * (2 if isinstance(1 / x.shape[0], float) else 3)


def comparison(x: Tensor) -> Tensor:
    return x.sum() * (2 if isinstance(x.shape[0] > x.shape[1], bool) else 3)


def exact_type(x: Tensor) -> Tensor:
    return x.sum() * (2 if type(x.shape[0]) is int else 3)


def one_of_types(x: Tensor) -> Tensor:
    return x.sum() * (2 if type(x.shape[0]) in (float, int) else 3)


def no_type(x: Tensor) -> Tensor:
    return x.sum() * (2 if isinstance(x.shape[0], (float, Tensor)) else 3)


NUMBERS, INT, FACTORS = (int, float), int, {int: 2}


def one_of_global_types(x: Tensor) -> Tensor:
    return x.sum() * (2 if type(x.shape[0]) in NUMBERS else 3)


def one_of_default_types(x: Tensor, kinds: tuple[type, ...] = (int,)) -> Tensor:
    n = x.shape[0]
    return x.sum() * (2 if n.__class__ in kinds else 3)


def type_of_another(x: Tensor) -> Tensor:
    return x.sum() * (2 if type(x.shape[0]) == type(1) else 3)  # noqa: E721, UP003


def renamed_type(x: Tensor) -> Tensor:
    kind = type(x.shape[0])
    return x.sum() * (2 if kind is INT else 3)


def subclass(x: Tensor) -> Tensor:
    return x.sum() * (2 if issubclass(type(x.shape[0]), int) else 3)


def name_of_type(x: Tensor) -> Tensor:
    return x.sum() * (2 if type(x.shape[0]).__name__ == "int" else 3)


def looked_up_by_type(x: Tensor) -> Tensor:
    return x.sum() * FACTORS.get(type(x.shape[0]), 3)


def matched(x: Tensor) -> Tensor:
    match x.shape[0]:
        case int():
            return x.sum() * 2
    return x.sum() * 3


def digits(x: Tensor) -> Tensor:
    return x.sum() * len(str(x.shape[0]))


def printed(x: Tensor) -> Tensor:
    return x.sum() * {"7": 2.0, "12": 3.0}.get("%s" % x.shape[0], 4.0)  # noqa: UP031


def represented(x: Tensor) -> Tensor:
    return x.sum() * len(f"{x.shape[0]!r}, {x.shape[0] > 9!s}")


OF_SIZES = (
    size, length, count, quotient, comparison, exact_type, one_of_types, no_type, one_of_global_types,
    one_of_default_types, type_of_another, renamed_type, subclass, name_of_type, looked_up_by_type, matched, digits,
    printed, represented,
)  # fmt: skip


@pytest.mark.parametrize("loss", OF_SIZES)
def test_sizes(loss: Loss) -> None:
    decorated = autogen_loss(loss)
    for n in (7, 12, 9, 123):
        x = torch.linspace(0, 1, 5 * n).reshape(n, 5)
        torch.testing.assert_close(decorated(x), loss(x))


@dataclass
class Options:
    factor: float = 2.0


OPTIONS = Options()


class Checked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if type(x) is nn.Parameter or isinstance(x, type) or type(self) is Focal or Options() != OPTIONS:
            raise TypeError(f"{type(self).__name__} takes tensors, not {type(x).__name__}")
        return x.sum() / x.shape[0]


def test_types_that_no_number_has(launches: Launches) -> None:
    """Where these alone are asked for, sizes stay symbols."""
    loss = autogen_loss(Checked())
    for n in (7, 12, 9):
        torch.testing.assert_close(loss(torch.ones(n, 5)), torch.tensor(5.0))
    assert launches.take() == 3 and trace_count(loss) == 1


def scaled(x: Tensor, m: Any) -> Tensor:
    return (x * m if isinstance(m, (int, float)) else x * m * 100).sum()


def scaled_by_type(x: Tensor, m: Any) -> Tensor:
    return (x * m if type(m) is float else x * m * 100).sum()


def scaled_by_match(x: Tensor, m: Any) -> Tensor:
    match m:
        case float():
            return (x * m).sum()
        case _:
            return (x * m * 100).sum()


def scaled_by_text(x: Tensor, m: Any) -> Tensor:
    return (x * len(str(m))).sum() * m


def scaled_by_one_of_types(x: Tensor, m: Any) -> Tensor:
    return (x * m if type(m) in NUMBERS else x * m * 100).sum()


@pytest.mark.parametrize("loss", [scaled, scaled_by_type, scaled_by_one_of_types, scaled_by_match, scaled_by_text])
def test_floats_that_vary(loss: Loss) -> None:
    decorated = autogen_loss(loss)
    x = torch.linspace(0, 1, 12).reshape(3, 4)
    for m in (0.5, 0.25, 0.7, 0.95, 0.125):
        torch.testing.assert_close(decorated(x, m), loss(x, m))


class Focal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha: Any = 0.25

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(x, t, reduction="none")
        if isinstance(self.alpha, float):
            loss = loss * torch.where(t > 0.5, self.alpha, 1 - self.alpha)
        return loss.mean()


def test_an_attribute_that_is_annealed(launches: Launches) -> None:
    """It becomes an argument of the kernels, and is a float to the loss all the same."""
    loss, own = autogen_loss(Focal()), Focal()
    x, t = torch.linspace(-2, 2, 12), torch.linspace(0, 1, 12).round()
    for alpha in (0.25, 0.3, 0.35, 0.4, 0.45):
        loss.alpha = own.alpha = alpha
        torch.testing.assert_close(loss(x, t), own(x, t))
    assert launches.take() == 5 and explain(loss, x, t).path == "generated"


def test_losses_of_ours() -> None:
    query, positive = torch.randn(2, 5, 300, generator=torch.Generator().manual_seed(0))
    for temperature in (0.1, 0.2, 0.3, 0.4, 0.5):
        ours, theirs = (autogen.losses.InfoNCELoss(temperature, use_autogen=use) for use in (True, False))
        torch.testing.assert_close(ours(query, positive), theirs(query, positive))
