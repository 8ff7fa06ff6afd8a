"""The judge of double precision has more digits than that, and knows how torch may round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.interpret import compare
from tests.interpret.compare import Call, Outcome, check, differentiable, run
from tests.interpret.precise import HAS_MORE, Precise
from tests.interpret.samples import Samples
from tests.interpret.table import ROWS

pytestmark = pytest.mark.skipif(not HAS_MORE, reason="longdouble is double here")

# The gradient of a label is p - 1, which here torch rounds as if it had many more digits.
CONFIDENT = (8, 64, 86, 93, 126)
# Where all of a row but one weighs nothing, torch's gradients are exact.
ALONE = (0, 2, 4, 6)
FIRST = {row.loss: row for row in reversed(ROWS)}


def logits_of(seed: int, rows: int, scale: float) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(rows, 3, generator=generator, dtype=torch.float64) - 0.5) * scale, generator


@pytest.mark.parametrize("seed", CONFIDENT)
def test_confident_rows(seed: int) -> None:
    logits, generator = logits_of(seed, 3, 180)
    check(Call("CrossEntropyLoss", {"reduction": "none"}, (logits, torch.randint(0, 3, (3,), generator=generator))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("seed", ALONE)
def test_where_torch_is_exact(seed: int, reduction: str, dtype: torch.dtype) -> None:
    logits, generator = logits_of(seed, 5, 24_000)
    probabilities = torch.rand(5, 3, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.rand(3, generator=generator, dtype=torch.float64) * torch.tensor([0, 0, 1])
    check(Call("CrossEntropyLoss", {"reduction": reduction, "weight": weight}, (logits, probabilities)))


@pytest.mark.parametrize("loss", FIRST)
def test_what_is_wrong_in_its_last_digits(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much torch errs by chance, an error of 2^-44 is found."""

    def wrong(home: Any, call: Call) -> Outcome:
        found = run(home, call)
        if home is nn or found.value is None:
            return found
        return replace(found, value=found.value * (1 + 2**-44))

    monkeypatch.setattr(compare, "run", wrong)
    samples = Samples(torch.float64)
    with pytest.raises(AssertionError, match="value: wrong"):
        check(Call(loss, FIRST[loss].options(samples), FIRST[loss].inputs(samples)))


def test_more_digits_than_a_double() -> None:
    logits = torch.tensor([[30.0, -4.5, 0.25]], dtype=torch.float64, requires_grad=True)
    with Precise() as digits:
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0])), logits)
    with mpmath.workdps(50):
        exponentials = [mpmath.exp(each) for each in logits[0].tolist()]
        exact = exponentials[0] / mpmath.fsum(exponentials) - 1
        found = digits.of(gradient)[0, 0], gradient[0, 0].item()
        error, torchs = (abs(mpmath.mpf(str(each)) / exact - 1) for each in found)
    assert error < 1e-5 < 1e-4 < torchs


@pytest.mark.parametrize("loss", FIRST)
def test_every_operation_is_known(loss: str) -> None:
    samples = Samples(torch.float64)
    call = differentiable(Call(loss, FIRST[loss].options(samples), FIRST[loss].inputs(samples)))
    with Precise() as digits:
        assert run(nn, call).error is None
    assert digits.unknown == ({"multi_margin_loss_backward"} if loss == "MultiMarginLoss" else set())
