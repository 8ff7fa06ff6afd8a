"""Places along a dimension that sizes decide: counted from the end, beyond it, and rounded down as Python does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from autogen import autogen_loss

Loss = Callable[[Tensor], Tensor]


def cleared(x: Tensor) -> Tensor:
    y = x.clone()
    y[-3:] = 0
    return y * x


def doubled(x: Tensor) -> Tensor:
    y = x.clone()
    y[-(x.shape[0] // 2)] *= 2
    return y * x


def increased(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, -x.shape[0] : -1] += 1
    return y.exp()


LOSSES: dict[str, Loss] = {
    "the last third": lambda x: x[-(x.shape[0] // 3) :].sum(),
    "all but the first": lambda x: x[-x.shape[0] + 1 :] * 2,
    "the hardest quarter": lambda x: x.flatten().sort()[0][-max(1, x.numel() // 4) :].mean(),
    "one and all before the last": lambda x: x[:, -5:-1].square().sum(),
    "the last three of fewer": lambda x: x[:, -3:].logsumexp(1),
    "a size less another": lambda x: x[:, x.shape[1] - x.shape[0] :].square().sum(),
    "as many as another dimension": lambda x: x[:, -x.shape[0] : -1].sum(),
    "beyond the end": lambda x: x[x.shape[1] :].sum() + x.sum(),
    "one of them": lambda x: x[-(x.shape[0] // 2)] + x[x.shape[0] // 2],
    "one and a size": lambda x: x.select(1, -x.shape[1] + x.shape[1] // 2).sum(),
    "one before the first": lambda x: x[-x.shape[1]] * x[x.shape[0] - x.shape[1] - 1],
    "one before the first, by its name": lambda x: x.select(1, -x.shape[0]) * 2,
    "narrow": lambda x: x.narrow(1, -(x.shape[1] // 2) - x.shape[1] % 2, 1),
    "cleared": cleared,
    "doubled": doubled,
    "increased": increased,
    "rolled further": lambda x: x.roll((x.shape[0] + 3, -7), (0, 1)) * x,
    "rolled flat": lambda x: x.roll(9) * x,
    "padded": lambda x: functional.pad(x, (-(x.shape[1] // 3), 1)) * 2,
    "halves, rounded up": lambda x: x - (-x.shape[1] // 2),
    "up to a multiple": lambda x: x * ((-x.shape[0]) % x.shape[1]),
    "a difference divided": lambda x: x.sum(1) * ((x.shape[0] - x.shape[1]) // 4),
    "by a negative number": lambda x: x * (x.shape[1] // -2) + x.shape[1] % -5,
    "by what may be 0": lambda x: x * (3 // (x.shape[0] % x.shape[1])),
    "filled": lambda x: torch.full((2,), -x.shape[0] // 4) * x.sum(),
    "of a range": lambda x: x * ((torch.arange(x.shape[1]) - x.shape[0]) // 3),
    "picked from the end": lambda x: x[:, (torch.arange(x.shape[1]) - x.shape[0]) % x.shape[1]],
}


@pytest.mark.parametrize("case", LOSSES)
def test_places(case: str) -> None:
    """Values and gradients, and errors, of sizes that follow each other."""
    loss = LOSSES[case]
    ours = autogen_loss(loss, policy="default")
    for shape in ((6, 7), (2, 4), (4, 4), (1, 1), (3, 2), (1, 5), (5, 1), (2, 9), (8, 8)):
        x = torch.linspace(-1, 1, shape[0] * shape[1]).reshape(shape)
        found: list[object] = []
        for each in (ours, loss):
            given = x.clone().requires_grad_()
            try:
                value = each(given)
            except (IndexError, RuntimeError, ZeroDivisionError) as error:
                found.append(type(error))
                continue
            weight = torch.linspace(0.5, 1, value.numel()).reshape(value.shape)
            found.append((value.detach(), *torch.autograd.grad((value * weight).sum(), given)))
        if isinstance(found[1], type):
            assert found[0] is found[1]
        else:
            torch.testing.assert_close(*found)


def test_strides_of_0() -> None:
    """No guard divides by one."""
    loss = autogen_loss(lambda x: x.clone() * 2, policy="mandatory")
    for strides in ((3, 20), (0, 0), (0, 1), (1, 0)):
        x = torch.randn(400).as_strided((4, 6), strides)
        torch.testing.assert_close(loss(x), x * 2)
