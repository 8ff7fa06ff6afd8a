"""The gradient of running products where torch has none that can be traced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogen.scheduling.schedule import backward_of
from autogen.tracing.formulas import functions as formulas
from autogen.tracing.formulas import products
from tests.unit.pipeline import plan_of


@given(
    zeros=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=3),
    dim=st.sampled_from([0, 1, -1]),
    seed=st.integers(0, 99),
)
def test_gradients_are_torchs(zeros: list[list[bool]], dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(zeros), 5)
    x = torch.randn(shape, dtype=torch.float64, generator=generator)
    x = x.masked_fill(torch.tensor(zeros), 0.0).requires_grad_()
    upstream = torch.randn(shape, dtype=torch.float64, generator=generator)
    ours, theirs = (each.cumprod(x, dim) for each in (products, torch))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    wanted = torch.autograd.grad(theirs, x, upstream)
    torch.testing.assert_close(torch.autograd.grad(ours, x, upstream), wanted, rtol=1e-12, atol=1e-12)


def test_integers_and_dtypes() -> None:
    counts = torch.arange(1, 5)
    assert torch.equal(products.cumprod(counts, 0), counts.cumprod(0))
    assert products.cumprod(counts, 0, dtype=torch.float64).dtype == torch.float64
    assert products.cumprod(torch.tensor(3.0), 0) == 3


def test_in_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many kernels as by torch's own formula where that has scans."""
    monkeypatch.setitem(formulas.FORMULAS, torch.Tensor.cumprod, products.cumprod)
    x = torch.rand(4, 30, requires_grad=True)
    plan, _ = plan_of(lambda x: (1 - x).cumprod(-1).square().mean(), x)
    assert (len(plan.forward), len(backward_of(plan))) == (1, 1)
