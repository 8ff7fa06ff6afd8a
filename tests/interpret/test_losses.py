"""Every loss, every constructor option and every reduction, against torch: value, all gradients, launches."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import autogen.losses
from tests.interpret.compare import Call, check
from tests.interpret.samples import Samples
from tests.interpret.table import ELSEWHERE, ROWS, Row, reductions

DTYPES = (torch.float16, torch.bfloat16, torch.float64)


def name_of(row: Row) -> str:
    """The row as a test's name."""

    def short(value: Any) -> str:
        if isinstance(value, Tensor):
            return "x".join(map(str, value.shape)) or "scalar"
        return getattr(value, "__name__", None) or str(value).partition("(")[0]

    options = ",".join(f"{name}={short(value)}" for name, value in row.options(Samples()).items())
    inputs = ",".join(map(short, row.inputs(Samples())))
    return f"{row.loss}({options})({inputs})"


def call_of(row: Row, reduction: str, dtype: torch.dtype) -> Call:
    """The row as a call."""
    samples = Samples(dtype)
    return Call(row.loss, {**row.options(samples), "reduction": reduction}, row.inputs(samples))


FIRST = {row.loss: row for row in reversed(ROWS)}


def test_the_table_has_every_loss() -> None:
    assert set(FIRST) | ELSEWHERE == set(autogen.losses.__all__)


@pytest.mark.cases(40)
@pytest.mark.parametrize("is_reduced", [False, True])
@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_option(row: Row, is_reduced: bool) -> None:
    """Unreduced, and by one of the ways to reduce; `test_dtype` has them all, of the first row of each loss."""
    summed = [each for each in reductions(row.loss) if each != "none"]
    check(call_of(row, summed[ROWS.index(row) % len(summed)] if is_reduced else "none", torch.float32))


@pytest.mark.cases(len(FIRST))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", FIRST.values(), ids=lambda row: row.loss)
def test_dtype(row: Row, dtype: torch.dtype) -> None:
    for reduction in reductions(row.loss):
        check(call_of(row, reduction, dtype))


@pytest.mark.parametrize(("size_average", "reduce"), [(True, True), (False, True), (None, False), (False, None)])
@pytest.mark.parametrize("row", FIRST.values(), ids=lambda row: row.loss)
def test_legacy_reduction(row: Row, size_average: bool | None, reduce: bool | None) -> None:
    """The old pair of flags means what it means in torch."""
    if row.loss in ("HuberLoss", "GaussianNLLLoss", "TripletMarginWithDistanceLoss"):
        pytest.skip("younger than the flags")
    samples = Samples()
    call = Call(row.loss, {"size_average": size_average, "reduce": reduce}, row.inputs(samples))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(call)
