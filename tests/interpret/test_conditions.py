"""What is compared in Python, of sizes, of floats that vary and of numbers that were read, as a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, losses, policy

Loss = Callable[[Tensor, float, Tensor], Tensor]

LOSSES: dict[str, Loss] = {
    "a size": lambda x, w, m: x * (x.shape[0] > 4),
    "two sizes": lambda x, w, m: x + (x.shape[0] == x.shape[1]),
    "both of two": lambda x, w, m: x * (x.shape[0] == 5 and x.shape[1] == 3),
    "a half": lambda x, w, m: x * (x.shape[0] // 2 == 2),
    "a choice": lambda x, w, m: x * torch.where(m, x.shape[0] > 4, False),
    "filled": lambda x, w, m: x.sum() * torch.full((2,), x.shape[0] > 4),
    "where a range begins": lambda x, w, m: x.sum() + torch.arange(x.shape[0] > 4, 7),
    "a float": lambda x, w, m: x.sum() + (w > 0.5) * x.mean(),
    "a range of floats": lambda x, w, m: x * ((w > 0.5) & (w < 0.9)),
    "outside of a range": lambda x, w, m: x * ((w <= 0.5) | (w >= 0.9)),
    "not a float": lambda x, w, m: x * (not w > 0.5),
    "equal to its integer": lambda x, w, m: x * w.is_integer(),
    "beside the float": lambda x, w, m: x + (w > 0.5) * w,
    "beside booleans": lambda x, w, m: x * (m & (w > 0.5)),
    "what is filled in": lambda x, w, m: x.masked_fill(m, w > 0.5),
    "a bound": lambda x, w, m: x.clamp(min=w > 0.5),
    "is it so": lambda x, w, m: x * ((w > 0.5) is True),
    "one of two": lambda x, w, m: x * ((m is None) != (w == 0.3)),
    "two alike": lambda x, w, m: x * ((w > 0.2) == (x.shape[0] > 4)),
    "two compared": lambda x, w, m: x * ((w > 0.2) > (x.shape[0] > 4)),
    "a place in a list": lambda x, w, m: x * [1, 2, 3][(w > 0.2) + (w > 0.5)],
    "a key": lambda x, w, m: x * {True: 2.0, False: -1.0}[x.shape[0] > 4],
    "negated": lambda x, w, m: x * -(w > 0.2) + (2 ** (w > 0.5)) / (1 + (w > 0.9)),
    "of a type": lambda x, w, m: x * (type(w > 0.2) is bool),
    "a count": lambda x, w, m: x * (m.sum().item() > 3),
    "a count in a range": lambda x, w, m: x * ((m.sum().item() > 3) & (m.sum().item() != 6)),
    "a sum": lambda x, w, m: x * (x.sum().item() > 0),
    "a sum in range": lambda x, w, m: x * ((x.sum().item() <= 1) | (x.sum().item() >= w)),
    "a rounded quotient": lambda x, w, m: x * round(m.sum().item() / 3),
}


@pytest.mark.parametrize("case", LOSSES)
def test_agrees_with_torch(case: str) -> None:
    loss = LOSSES[case]
    ours = autogen_loss(loss, policy="mandatory" if case != "a rounded quotient" else "default")
    generator = torch.Generator().manual_seed(0)
    for step, weight in enumerate((0.1, 0.7, 0.3, 0.8, 1.0, 0.95)):
        for rows, columns in ((5, 3), (4, 4)):
            x = torch.randn(rows, columns, generator=generator).requires_grad_()
            mask = torch.rand(rows, columns, generator=generator) < step / 5
            results = []
            for each in (ours, loss):
                value = each(x, weight, mask)
                results.append((value.detach(), torch.autograd.grad(value.sum(), x)[0]))
            torch.testing.assert_close(*results)


def test_weights_that_are_annealed() -> None:
    """What a loss of the library asks of its options does not keep these from changing."""
    grpo, distillation = losses.GRPOLoss(), losses.DistillationLoss()
    expected = losses.GRPOLoss(use_autogen=False), losses.DistillationLoss(use_autogen=False)
    generator = torch.Generator().manual_seed(0)
    for weight in (0.1, 0.13, 0.07, 0.09, 0.0):
        x, other = torch.randn(2, 3, 5, generator=generator)
        arguments = (x, other, torch.randn(3, generator=generator), torch.ones(3, 5))
        reference = other if weight else None
        grpo.beta = expected[0].beta = weight
        with policy("mandatory"):
            ours = grpo(*arguments, reference)
        torch.testing.assert_close(ours, expected[0](*arguments, reference))
        distillation.hard = expected[1].hard = weight
        target = torch.tensor([0, 4, 2]) if weight else None
        with policy("mandatory"):
            ours = distillation(x, other, target)
        torch.testing.assert_close(ours, expected[1](x, other, target))
