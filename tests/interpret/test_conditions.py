"""What is compared in Python, of sizes, of floats that vary and of numbers that were read, as a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss

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
