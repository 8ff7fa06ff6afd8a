"""Running sums of any length, in kernels, wherever they are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain, policy
from autogen.scheduling.launches.kernel import MAX_IN_ONE_PROGRAM
from tests.interpret.agreement import agree, draw

# Of two tensors, and how many launches each way are theirs.
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, int]]] = {
    "squared earth mover's": (lambda p, q: (p.softmax(-1).cumsum(-1) - q.cumsum(-1)).square().mean(), (1, 1)),
    "per element": (lambda p, q: p.cumsum(1) * q, (1, 1)),
    "down columns": (lambda p, q: (p.cumsum(0) - q).square().mean(), (1, 1)),
    "from the end": (lambda p, q: (p.flip(-1).cumsum(-1).flip(-1) * q).mean(), (1, 1)),
    "of others alone": (lambda p, q: (F.pad(p.cumsum(-1)[:, :-1], (1, 0)) * q).mean(), (1, 1)),
    "padded at the end": (lambda p, q: (F.pad(p.cumsum(-1), (0, 2)) * F.pad(q, (0, 2), value=1.0)).mean(), (1, 1)),
    "from the second on": (lambda p, q: (p.cumsum(-1)[:, 1:] * q[:, :-1].cumsum(-1)).mean(), (1, 1)),
    "at the end": (lambda p, q: (p.cumsum(-1)[:, -1] * q[:, 0]).mean(), (1, 1)),
    "in the middle": (lambda p, q: (p.cumsum(-1)[:, 3] * q[:, 0]).mean(), (1, 1)),
    "picked": (lambda p, q: (p.cumsum(1).gather(1, q.argmax(1, True)) * q).mean(), (1, 1)),
    "a diagonal": (lambda p, q: p[:, : len(p)].cumsum(1).diagonal().square().mean(), (1, 2)),
    "transmittance": (lambda p, q: ((1 - p).cumprod(-1) * p * q).sum(-1).square().mean(), (1, 1)),
    "noisy or": (lambda p, q: F.binary_cross_entropy(1 - (1 - p / 4).prod(-1), q[:, 0]), (1, 1)),
    "all but one": (lambda p, q: (p.prod(-1, keepdim=True) * q).mean(), (1, 1)),
    "twice": (lambda p, q: (p.cumsum(1).cumsum(1) * q).mean(), (1, 1)),
    "of the same in a row": (lambda p, q: (p[:, :1].expand_as(q).cumsum(1) * q).mean(), (1, 1)),
    "how many": (lambda p, q: ((p > 0.4).cumsum(1) * q).mean(), (1, 1)),
    "how few are to come": (lambda p, q: ((p > 0.4).flip(1).cumsum(1).flip(1) * q).mean(), (1, 1)),
    # What is compared with its own extreme is stored, and so is what is not read in the order in which it runs.
    "its largest": (lambda p, q: ((p - 0.5).cumsum(1).amax(1) * q[:, 0]).mean(), (2, 1)),
    "each second": (lambda p, q: (p.cumsum(1)[:, ::2] * q[:, ::2]).mean(), (2, 1)),
    "picked, several of a row": (lambda p, q: p.cumsum(1).gather(1, q.argsort(1)[:, :2]).mean(), (2, 1)),
    "picked, as many as there are": (
        lambda p, q: p.cumsum(1)[(q * len(q)).long().flatten(), (q * q.shape[1]).long().flatten()].mean(),
        (2, 2),
    ),
    "weights of a survivor": (lambda p, q: ((p - p.logcumsumexp(1)) * q).mean(), (1, 1)),
    "a list's likelihood": (lambda p, q: ((p.flip(1).logcumsumexp(1).flip(1) - p) * q).mean(), (1, 1)),
    "of exponentials at the end": (lambda p, q: (p.logcumsumexp(1)[:, -1] * q[:, 0]).mean(), (2, 1)),
}

# Triton's interpreter takes 50 µs for each element of a scan that is neither a sum nor a product.
SLOW = ("weights of a survivor", "a list's likelihood", "of exponentials at the end")


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("shape", [(4, 10), (3, 129), (130, 9)], ids=str)
def test_as_torch(name: str, shape: tuple[int, int]) -> None:
    loss, launches = LOSSES[name]
    if name == "a diagonal" and shape[0] > shape[1]:
        shape = shape[::-1]
    if name in SLOW:
        shape = min(shape[0], 34), shape[1]
    agree(loss, draw("unit", *shape), draw("unit", *shape, seed=1), launches=launches)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    """Half precision is added up in single precision, and rounded once."""
    loss, launches = LOSSES["squared earth mover's"]
    agree(loss, draw("real", 5, 40, dtype=dtype), draw("unit", 5, 40, dtype=dtype, seed=1), launches=launches)


def test_along_two_axes() -> None:
    """One of the two is stored; a small loss has a program with both."""

    def integral(p: Tensor, q: Tensor) -> Tensor:
        return (p.cumsum(1).cumsum(0) * q).mean()

    agree(integral, draw("unit", 7, 12), draw("unit", 7, 12, seed=1), launches=(1, 1))
    agree(integral, draw("unit", 150, 200), draw("unit", 150, 200, seed=1), launches=None)


@pytest.mark.parametrize("length", [MAX_IN_ONE_PROGRAM, MAX_IN_ONE_PROGRAM + 1])
def test_rows_that_no_program_holds_are_torchs(length: int) -> None:
    def loss(p: Tensor) -> Tensor:
        return (p.cumsum(-1) * p).mean()

    agree(loss, draw("unit", 2, length), launches=None)
    report = explain(loss, draw("unit", 2, length))
    assert (str(report).count("torch runs cumsum") > 0) == (length > MAX_IN_ONE_PROGRAM)


def test_rows_of_many_lengths_in_one_loss() -> None:
    """A loss whose rows have become too long runs again where they are short."""

    @autogen_loss
    def loss(p: Tensor) -> Tensor:
        return (p.cumsum(-1) * p).mean()

    with policy("mandatory"):
        for length in (40, 20_000, 41, 1, 12):
            p = draw("unit", 3, length)
            torch.testing.assert_close(loss(p), (p.double().cumsum(-1) * p).mean().float())


def test_nothing_to_add_up() -> None:
    for shape in ((0, 20), (3, 0), (3, 1)):
        loss = autogen_loss(lambda p: p.cumsum(-1)[:, ::2].sum() + p.logcumsumexp(1).sum() * 0)
        p = torch.zeros(shape, requires_grad=True)
        loss(p).backward()
        assert loss(p) == 0 and p.grad is not None and p.grad.shape == shape
