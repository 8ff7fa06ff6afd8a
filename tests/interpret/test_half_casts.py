"""Casts to half precision that the loss asks for round as torch's do.

So do numbers that tensors of it are compared with or filled with; what is stored in half precision does not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain
from tests.interpret.agreement import draw

HALVES = [torch.float16, torch.bfloat16]
POINTS = [1 / 3, -1 / 3, 70000.0, -1e30, 1e-6, 6e-8, -2e-8, 65519.9, 65520.0, torch.inf, -torch.inf, torch.nan, 0.0]
POINTS += [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 3.3895e38]


def both(loss: Callable[..., Tensor], *inputs: Tensor) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Value and gradients, ours and torch's."""
    found: list[list[Tensor | None]] = []
    wanted = [each for each in inputs if each.requires_grad]
    for function in (autogen_loss(loss, policy="mandatory"), loss):
        value = function(*inputs)
        gradients = torch.autograd.grad(value.sum(), wanted) if value.requires_grad else ()
        found.append([value.detach(), *gradients])
    return found[0], found[1]


def same(loss: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Ours is torch's to the bit."""
    torch.testing.assert_close(*both(loss, *inputs), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_there_and_back(half: torch.dtype, wide: torch.dtype) -> None:
    x = torch.cat([torch.tensor(POINTS, dtype=wide), draw("real", 50, dtype=wide).detach()]).requires_grad_()
    same(lambda x: x.to(half).to(wide) * 0.37, x)
    same(lambda x: (x.to(half).float() - x.float()).abs(), x)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool], ids=str)
def test_integers(half: torch.dtype, dtype: torch.dtype) -> None:
    numbers = torch.tensor([0, 1, -1, 127, 255, 257, 2049, 2051, 65519, 70000, 2**31 - 1], dtype=torch.int64).to(dtype)
    same(lambda n: n.to(half).float() * 3, numbers)


def test_one_half_precision_to_the_other() -> None:
    x = torch.tensor([1e30, -3.0, 1e-7, 70000.0, torch.nan]).bfloat16()
    same(lambda x: x.half().float() * 3, x)
    same(lambda x: x.bfloat16().float() * 3, torch.tensor([1 / 3, 65504.0, 1e-7, torch.inf]).half())


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_beside_tensors_in_half_precision(half: torch.dtype) -> None:
    x, h = draw("real", 6, 8), (2.0 ** torch.arange(-2, 6)).to(half)
    same(lambda x, h: (x.to(half) * h).float(), x, h)
    same(lambda x, h: torch.empty_like(h).expand(6, 8).clone().copy_(x).float() * 3, x, h)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_in_a_reduction(half: torch.dtype) -> None:
    x = draw("real", 6, 40)

    def loss(x: Tensor) -> Tensor:
        return x.to(half).float().logsumexp(1).mean() + (x.type(half) != x).float().mean()

    torch.testing.assert_close(*both(loss, x), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_gradients_in_half_precision_on_their_way(half: torch.dtype) -> None:
    """The gradient of a cast to single precision is a cast to half precision, and rounds."""
    h, x = draw("real", 40, dtype=half), draw("real", 40)

    def loss(x: Tensor, h: Tensor) -> Tensor:
        return (x.to(half) * 2).float() * 0.37 + (h * 0.5).float() * 0.37

    ours, theirs = both(loss, x, h)
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=0, atol=0)
    torch.testing.assert_close(ours[2], theirs[2], rtol=torch.finfo(half).eps, atol=0)  # bfloat16 stored is cut here


MADE: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "full": lambda x, d: torch.full((3,), 0.1, dtype=d),
    "full_like": lambda x, d: torch.full_like(x, 1 / 3, dtype=d),
    "new_full": lambda x, d: x.new_full((3,), -0.7, dtype=d),
    "scalar_tensor": lambda x, d: torch.scalar_tensor(0.1, dtype=d),
    "fill": lambda x, d: torch.empty_like(x, dtype=d).fill_(1e-6),
    "fill of a tensor": lambda x, d: torch.empty_like(x, dtype=d).fill_(x[0].detach()),
    "where": lambda x, d: torch.where(x > 0, x.to(d), 0.1),
    "of a size": lambda x, d: torch.full((3,), 1 / (3 * len(x)), dtype=d),
}


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", MADE)
def test_numbers_that_are_made_in_a_dtype_have_its_precision(name: str, dtype: torch.dtype) -> None:
    same(lambda x: x * MADE[name](x, dtype).double(), draw("real", 3, dtype=torch.float64))


BESIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "equal": lambda x: x * (x == 0.7) + x * (x != 0.1),
    "less": lambda x: x * (x < 0.7) + x * (x <= 0.1) + x * (x < 1e-8),
    "greater": lambda x: x * (x > 0.1) + x * (x >= 0.7) + x * (torch.tensor(0.1) < x),
    "an integer": lambda x: x * (x == 2049) + x * (x < torch.arange(2047, 2047 + len(x))),
    "a rest": lambda x: torch.fmod(x, 0.1) + x % 0.7,
    "clamped": lambda x: x.clamp(0.1, 0.7) + x.clamp(max=torch.tensor(0.3)),
    "clamped and compared": lambda x: x * (x.clamp(0.1, 0.7) == 0.7) + x * (x.clamp(max=0.1) == x),
    "the greater": lambda x: torch.maximum(x, torch.tensor(0.1)) + torch.minimum(x, torch.tensor(0.7)),
    "shrunk": lambda x: F.hardshrink(x, 0.7) + F.hardshrink(x, 0.1),
    "softly shrunk": lambda x: F.softshrink(x, 0.7) + F.softshrink(x, 0.1),
    "filled": lambda x: x.masked_fill(x > 0.5, 0.7).double() + x.masked_fill(x > 0.5, torch.tensor(0.1)).double(),
    "next to nothing": lambda x: x.masked_fill(x > 0.5, 1e-8).sign() + x.clamp(min=1e-8).sign(),
    "a choice": lambda x: torch.where(x > 0.5, x, 0.7).double() + torch.where(x > 0.5, torch.tensor(0.1), x).double(),
    "padded": lambda x: F.pad(x, (1, 1), value=0.7).double(),
    "scattered": lambda x: x.scatter(0, torch.tensor([0, 1]), 0.7).double(),
    "at places": lambda x: x.index_fill(0, torch.tensor([1]), 0.7).double(),
    "in the place of nan": lambda x: (x / 0).nan_to_num(0.7, 0.7, 0.7).double() + x,
}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_numbers_beside_half_precision_are_rounded_where_torch_rounds_them(name: str, half: torch.dtype) -> None:
    near = torch.tensor([0.7, 0.1, 0.3, -0.7, -0.1, 0.0, 0.5, 2048.0, 2.0]).to(half)
    infinity, eps = torch.tensor(torch.inf, dtype=half), torch.finfo(half).eps
    x = torch.cat([near, near.nextafter(infinity), near.nextafter(-infinity)]).requires_grad_()
    torch.testing.assert_close(*both(BESIDE[name], x), rtol=eps, atol=eps, equal_nan=True)


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", ["filled", "a choice", "padded", "scattered", "at places"])
def test_numbers_that_become_elements_are_those_of_half_precision(name: str, half: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 9).to(half)
    assert torch.equal(autogen_loss(BESIDE[name])(x), BESIDE[name](x))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in single precision": lambda x, t: F.mse_loss(x.float(), t.float()),
    "and back": lambda x, t: F.log_softmax(x.float(), 1).to(x.dtype),
    "as it is": lambda x, t: F.huber_loss(x, t),
    "by formulas of torch": lambda x, t: (F.gelu(x) * F.softplus(t) + F.silu(t)).mean(),
    "one hot": lambda x, t: (x * F.one_hot(t.argmax(1), 8).to(x.dtype)).sum(),
    "a mask": lambda x, t: (x * (t > 0).to(x.dtype)).sum(),
    "a cast to itself": lambda x, t: (x.float().to(x.dtype) * t).sum(),
    "a choice": lambda x, t: (t * torch.where(t > 0, x.float(), 0.0).to(x.dtype)).sum(),
}


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_what_is_stored_in_half_precision_is_computed_in_single(name: str, half: torch.dtype) -> None:
    x, t = draw("real", 6, 8, dtype=half), draw("real", 6, 8, dtype=half, seed=1).detach()
    report = explain(LOSSES[name], x, t)
    assert report.path == "generated" and "round_to" not in str(report)
    torch.testing.assert_close(*both(LOSSES[name], x, t), rtol=0.03, atol=0.02)


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_results_are_the_nearest(half: torch.dtype) -> None:
    """Denormals are read and written, too."""
    x = torch.cat([draw("real", 1000).detach(), 2.0 ** torch.arange(-140.0, -120)]).to(half)
    y = torch.cat([draw("real", 1000, seed=1).detach(), torch.zeros(20)]).to(half)
    ours = autogen_loss(lambda x, y: (x - y).abs() * 0.75, policy="mandatory")(x, y)
    assert torch.equal(ours, ((x.float() - y.float()).abs() * 0.75).to(half))
