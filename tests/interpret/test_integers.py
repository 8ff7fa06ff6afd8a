"""Integers in losses: extremes of every dtype in every shell, and arithmetic that 32 bits do not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autogen.scheduling.launches.kernel
from autogen import autogen_loss, explain
from tests.interpret.agreement import agree, draw

SIGNED = [torch.int8, torch.int32, torch.int64]
CASES = [*((dtype, sign) for dtype in SIGNED for sign in (1, -1)), (torch.uint8, 1), (torch.bool, 1), (torch.bool, -1)]


def integers(dtype: torch.dtype, shape: tuple[int, int], sign: int) -> Tensor:
    """Numbers that are all on one side of 0, where there are two."""
    numbers = torch.randint(3, 100, shape, generator=torch.Generator().manual_seed(0))
    if dtype == torch.bool:
        return numbers % 7 != 0 if sign > 0 else numbers < 50
    return (numbers if dtype == torch.uint8 else sign * numbers).to(dtype)


def positions(t: Tensor) -> Tensor:
    return torch.arange(t.shape[1]).expand(t.shape).where(t.bool(), t.shape[1])


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "amin of rows": lambda t: t.amin(1),
    "amax of rows": lambda t: t.amax(1),
    "amin of columns": lambda t: t.amin(0),
    "amax of columns": lambda t: t.amax(0),
    "amin": lambda t: t.amin(),
    "amax": lambda t: t.amax(),
    "both": lambda t: torch.stack(t.aminmax()),
    "both of rows": lambda t: torch.stack(t.aminmax(dim=1)),
    "min and its place": lambda t: t.min(1).values * t.min(1).indices,
    "max and its place": lambda t: t.max(0).values * t.max(0).indices,
    "the place of the least": lambda t: t.int().argmin(1),
    "the place of the greatest": lambda t: t.int().argmax(0),
    "the first that is not 0": lambda t: positions(t).amin(1),
    "the last that is not 0": lambda t: (-positions(t)).amax(1),
    "a position": lambda t: torch.arange(t.shape[1]).expand(t.shape).amin(1) + positions(t).amax(),
    "sum": lambda t: t.sum(1) + t.sum(),
    "any and all": lambda t: t.any(1) & t.all(),
}  # fmt: skip
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "alone": lambda x, r: r * 1,
    "within others": lambda x, r: ((x - x.mean()) * r.float().mean()).exp().sum() + (x.sum() * r).sum() + r.sum(),
}


@pytest.mark.parametrize(("dtype", "sign"), CASES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction: str, dtype: torch.dtype, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [((5, 7), autogen.scheduling.launches.kernel.MAX_IN_ONE_PROGRAM), ((3, 300), 0)]
    if (CASES.index((dtype, sign)) + list(REDUCTIONS).index(reduction)) % 2:
        cases.reverse()
    for (shape, most), (name, loss) in zip(cases, LOSSES.items(), strict=True):
        monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", most)
        x, t = draw("real", *shape).detach() * 0.1, integers(dtype, shape, sign)

        def whole(x: Tensor, t: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = loss) -> Tensor:
            return loss(x, REDUCTIONS[reduction](t))

        expected = whole(x, t)
        found = autogen_loss(whole, policy="mandatory")(x, t)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def place(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])


LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    "a square": lambda x: x * (place(x) * place(x)),
    "a power": lambda x: x * (place(x) + 1) ** 2,
    "a multiple": lambda x: x * (place(x) * 50_000),
    "a multiple in steps": lambda x: x * torch.arange(0, 50_000 * x.shape[0], 50_000),
    "a number of elements": lambda x: x * (x.shape[0] * 300_000),
    "a number of pairs": lambda x: x.abs().sum() / (x.shape[0] * x.shape[0]),
    "from the end": lambda x: x * (50_000 * x.shape[0] - 50_000 * place(x)),
    "a choice": lambda x: x * (place(x).where(x > 0, 7) * place(x).where(x > 0, 7)),
    "a choice of numbers": lambda x: x * (torch.where(x > 0, 60_000, 7) * torch.where(x > 0, 60_000, 7)),
    "a choice of sizes": lambda x: x * (torch.where(x > 0, x.shape[0], 7) * torch.where(x > 0, x.shape[0], 7)),
    "negated": lambda x: x * (-place(x) * place(x)),
    "a sum": lambda x: x + place(x).sum(),
    "a sum of a row": lambda x: x.view(1, -1).softmax(1) * place(x).expand(1, -1).sum(1),
    "an outer product": lambda x: x.view(250, -1) * ((torch.arange(250) * 1000)[:, None] * torch.arange(280) * 100),
    "labels": lambda x: x * (x > 0).int().long().cumsum(0) * 50_000,
}


@pytest.mark.parametrize("name", LARGE)
def test_more_than_32_bits(name: str) -> None:
    x = torch.linspace(-1, 1, 70_000)
    torch.testing.assert_close(autogen_loss(LARGE[name])(x), LARGE[name](x), rtol=1e-5, atol=0)


def test_labels_of_64_bits() -> None:
    """The lower half of one that is no column may be that of a column."""

    def loss(x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        column = torch.arange(x.shape[1])
        return x.where(column != label[:, None], 0.0).sum(1), (x * (label[:, None] == column)).sin().sum(1)

    label = torch.tensor([3, 0, -1, -100, 2**32 + 3, -(2**32) + 3, 2**31, 2**31 + 3, 2**63 - 1, -(2**63)])
    x = draw("real", len(label), 7)
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(x, label), loss(x, label))
    assert "narrow(label)[:, None]" in explain(autogen_loss(loss), x, label).forward.source


BEYOND_64_BITS: dict[str, Callable[[Tensor], Tensor]] = {
    "times": lambda x: x * 2**63,
    "less than": lambda x: x * (x < 2**64 - 1),
    "less than, of integers": lambda x: x * (x.int() < 2**64 - 1),
    "plus": lambda x: x + 2**63,
    "from": lambda x: 2**63 - x,
    "over": lambda x: x / 2**63,
    "the rest": lambda x: x % 2**63,
    "plus a product": lambda x: torch.addcmul(x, x, x, value=2**63),
    "at most": lambda x: x.clamp(max=2**63),
    "a choice": lambda x: torch.where(x > 0, x, 2**63) * x,
    "a tensor": lambda x: x * torch.full_like(x, 2**63),
    "the last bits": lambda x: x * (x.long() * 0x9E3779B97F4A7C15),
}


@pytest.mark.parametrize("name", BEYOND_64_BITS)
def test_numbers_that_have_64_bits_without_a_sign(name: str) -> None:
    x = torch.tensor([1.5, -2.0, 3e18, 1e19], requires_grad=True)
    agree(BEYOND_64_BITS[name], x, launches=None)


@pytest.mark.parametrize("columns", [16, 64, 1024])
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_rows_that_fill_tiles(rows: int, columns: int) -> None:
    """Of some tiles not every row exists, of each every column."""
    x, label = draw("real", rows, columns).detach(), torch.arange(rows) % columns
    loss = autogen_loss(F.cross_entropy, policy="mandatory")
    given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss(given, label).backward()
    F.cross_entropy(expected, label).backward()
    torch.testing.assert_close(given.grad, expected.grad)
    torch.testing.assert_close(loss(x, label), F.cross_entropy(x, label))


def test_floats_out_of_range_of_bytes() -> None:
    """They become integers first, of which the last eight bits stay, also where a GPU's own cast would saturate."""

    def loss(x: Tensor) -> Tensor:
        return x.to(torch.uint8).float() * 2.0

    x = torch.tensor([-1.0, -1.5, -0.5, 0.0, 1.7, 255.0, 256.0, 300.0, -300.0, 70000.0])
    torch.testing.assert_close(autogen_loss(loss)(x), loss(x), rtol=0, atol=0)
    assert ".to(tl.int64).to(tl.uint8)" in explain(autogen_loss(loss), x).forward.source


DIVISIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "a number": lambda a, b: 7 % b + 9 // b,
    "fmod": torch.fmod,
    "div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "in place": lambda a, b: a.clone().remainder_(b),
    "// in place": lambda a, b: a.clone().floor_divide_(b),
}


@pytest.mark.parametrize("size", [12, 40_000])
def test_a_sum_that_wraps(size: int) -> None:
    x = torch.full((size,), 2**31 - 1, dtype=torch.int32)
    found = autogen_loss(lambda x: x.sum(dtype=torch.int32), policy="mandatory")(x)
    torch.testing.assert_close(found, torch.tensor(-size, dtype=torch.int32))
