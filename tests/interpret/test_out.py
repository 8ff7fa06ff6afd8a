"""Ops that write what they return to an argument, `out`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import autogen_loss, explain

Write = Callable[[Tensor, Tensor], object]

GENERATED: dict[str, Write] = {
    "div": lambda b, t: torch.div(t, t.abs() + 1, out=b),
    "in place": lambda b, t: torch.where(b > t, b, t, out=b),
    "row": lambda b, t: torch.mean(t, 0, out=b[1]),
    "transposed": lambda b, t: torch.softmax(t, 1, out=b.t()),
    "normalized": lambda b, t: F.normalize(t, dim=1, out=b),
}
# Sums of halves in single precision; what torch refuses, or does not say.
TORCHS: dict[str, Write] = {
    "dtype": lambda b, t: torch.sum(t.half() * 3e4, 0, out=b[0]),
    "size": lambda b, t: torch.add(t, 1, out=b[:2]),
    "part": lambda b, t: torch.add(b[1:], t[1:], out=b[:-1]),
    "transposed": lambda b, t: torch.add(b.t(), t, out=b),
    "sum": lambda b, t: torch.sum(b, 0, out=b[0]),
    "product": lambda b, t: torch.mm(b, t, out=b),
    "draw": lambda b, t: torch.bernoulli(t.sigmoid(), out=b),
}


class Written(nn.Module):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("buffer", torch.linspace(-1, 1, 9).view(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self.buffer, x.detach())
        return (x * self.buffer).sum()


@pytest.mark.parametrize(
    ("write", "path"),
    [*((each, "generated") for each in GENERATED.values()), *((each, "eager") for each in TORCHS.values())],
    ids=[*GENERATED, *(f"torch's {name}" for name in TORCHS)],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out(write: Write, path: str) -> None:
    both = Written(write), autogen_loss(Written(write))
    for seed in range(3):
        x = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        assert explain(both[1], x).path == path
        found: list[object] = []
        for loss in both:
            torch.manual_seed(seed)
            try:
                value = loss(x)
            except RuntimeError as error:
                found.append(type(error))
            else:
                found.append((value.detach(), *torch.autograd.grad(value, x), loss.buffer.clone()))
        if isinstance(found[0], type):
            assert found[0] is found[1]
        else:
            torch.testing.assert_close(found[1], found[0])
