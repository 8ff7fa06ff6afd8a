"""Constants beside tensors: in all digits of double precision, and as torch has them in a narrow dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss
from tests.interpret.launches import Launches

Loss = Callable[[Tensor], Tensor]

AT = torch.tensor([0.1, 0.3, 0.7, 0.9], dtype=torch.float64)
OF_DOUBLES: dict[str, Loss] = {
    "greater or equal": lambda x: x >= 0.1,
    "less": lambda x: x < 0.3,
    "equal": lambda x: x == 0.7,
    "not equal": lambda x: x != 0.9,
    "the other way round": lambda x: 0.1 <= x,  # noqa: SIM300
    "where": lambda x: torch.where(x == 0.9, 2.0, 1.0) * x,
    "clamp": lambda x: x.clamp(0.1, 0.9),
    "maximum": lambda x: torch.maximum(x, x.new_tensor(0.3)),
    "of single precision": lambda x: x.float() > torch.tensor(0.1, dtype=torch.float64),
    "sums": lambda x: (x >= 0.1).sum() + 0.1 * x.sum(),
}


@pytest.mark.parametrize("case", OF_DOUBLES)
def test_of_doubles(case: str, launches: Launches) -> None:
    """Each bound itself, and its neighbours."""
    loss = OF_DOUBLES[case]
    around = torch.cat([AT, torch.nextafter(AT, torch.tensor(0.0).double()), torch.nextafter(AT, 2 * AT), AT.float()])
    results = []
    for each in (autogen_loss(loss, policy="mandatory"), loss):
        x = around.clone().requires_grad_()
        value = each(x)
        gradient = torch.autograd.grad(value.sum(), x)[0] if value.requires_grad else torch.zeros(())
        results.append((value.detach(), gradient))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-15, atol=0)
    assert launches.take() > 0


OF_INTEGERS: dict[str, Loss] = {
    "not -1": lambda t: t != -1,
    "not 255": lambda t: t != 255,
    "less than 300": lambda t: t < 300,
    "at least -5": lambda t: t.clamp(min=-5),
    "plus": lambda t: t + 300,
    "minus": lambda t: 300 - t,
    "times": lambda t: t * 300,
    "divided": lambda t: t // 300,
    "remainder": lambda t: t % 300,
    "bits": lambda t: t & 0x1FF,
    "where": lambda t: torch.where(t == 255, -1, t),
    "filled": lambda t: t.masked_fill(t > 5, 3),
    "beyond 32 bits": lambda t: t + (2**31 + 3),
    "compared beyond 32 bits": lambda t: t < 2**31 + 7,
    "a mask": lambda t: (t != -1).sum() + (t == 255).sum(),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("case", OF_INTEGERS)
def test_of_integers(case: str, dtype: torch.dtype) -> None:
    """What a dtype has not is another number there, as in torch."""
    loss = OF_INTEGERS[case]
    t = torch.tensor([-1, 0, 5, 7, 100, 127]).to(dtype)
    try:
        expected = loss(t)
    except RuntimeError:  # of a bound that torch refuses
        return
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(t), expected, rtol=0, atol=0)


MASKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows": lambda x, m: (m[:, None] * x).sum(1).mean(),
    "differences": lambda x, m: (m[:, None] * (x - 1).abs()).sum() / m.sum(),
    "two at once": lambda x, m: (torch.cat([x, x], 1) * m[:, None]).sum(1),
    "pieces": lambda x, m: (torch.nn.functional.smooth_l1_loss(x, x * 0, reduction="none") * m[:, None]).mean(),
}


@pytest.mark.parametrize("case", MASKED)
def test_a_mask_of_0_keeps_out_the_least_number(case: str) -> None:
    """A sum of several of these is infinite."""
    loss = MASKED[case]
    x = torch.full((3, 4), torch.finfo(torch.float32).min)
    x[1] = torch.arange(4.0)
    mask = torch.tensor([0.0, 1.0, 0.0])
    results = []
    for each in (autogen_loss(loss, policy="mandatory"), loss):
        given = x.clone().requires_grad_()
        value = each(given, mask)
        results.append((value.detach(), torch.autograd.grad(value.sum(), given)[0]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


BEYOND_SINGLE: dict[str, Loss] = {
    "normalised": lambda x: torch.nn.functional.normalize(x, eps=1e-40),
    "clamped": lambda x: x.clamp(min=1e-40),
    "maximum": lambda x: torch.maximum(x, x.new_tensor(-1e-40)),
    "sign of": lambda x: x.copysign(torch.tensor(-1e-40)),
    "remainder": lambda x: x % 1e-40,
    "angle": lambda x: torch.atan2(x, torch.tensor(1e-40)),
    "logarithm of the greatest": lambda x: torch.xlogy(x, 1e300),
    "logarithm of the least": lambda x: torch.xlogy(x, 1e-39),
    "power": lambda x: torch.pow(1e39, x),
    "compared": lambda x: (x > 1e300) | (x > -1e39),
    "times": lambda x: x * 1e300 + x * 1e-60,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", BEYOND_SINGLE)
def test_beyond_single_precision(case: str, dtype: torch.dtype) -> None:
    """What single precision has not, or of fewer bits, is rounded to it, as in torch."""
    loss = BEYOND_SINGLE[case]
    x = torch.tensor([[0.5, -1.25, 2.0, -3.0]], dtype=dtype)
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(x), loss(x))
