"""Many rows or elements: programs that have several tiles of them each, forced on few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autogen import autogen_loss, explain
from autogen.tiling import tiler as tiling
from tests.interpret.compare import Call, check
from tests.interpret.samples import Samples

COLUMNS = 160  # more than `tiling.SHORT`
ANYWHERE = COLUMNS - 3  # of rows that begin anywhere


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One program has totals, or two of one warp, until one of them would have more than four tiles."""
    monkeypatch.setattr(tiling, "MOST_PROGRAMS", 1)
    monkeypatch.setattr(tiling, "MOST_TILES", 4)
    cut = tiling.Tiler._cut
    strided = set()

    def noted(self: tiling.Tiler, *args: Any) -> tiling.Tiling:
        found = cut(self, *args)
        strided.add(found.variant.strided)
        return found

    monkeypatch.setattr(tiling.Tiler, "_cut", noted)
    yield
    assert True in strided, "no program has several tiles"


def logits(rows: int, dtype: torch.dtype = torch.float32, columns: int = COLUMNS) -> Tensor:
    return Samples(dtype).real(rows, columns)


def labels(rows: int) -> Tensor:
    found = torch.randint(0, ANYWHERE, (rows,), generator=torch.Generator().manual_seed(0))
    found[::5] = -100
    return found


@pytest.mark.parametrize("columns", [COLUMNS, ANYWHERE])
@pytest.mark.parametrize("rows", [13, 16, 23, 70])
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"label_smoothing": 0.1}], ids=str)
def test_cross_entropy(rows: int, options: dict[str, Any], columns: int, few_programs: None) -> None:
    check(Call("CrossEntropyLoss", options, (logits(rows, columns=columns), labels(rows))))


@pytest.mark.parametrize("columns", [COLUMNS, ANYWHERE])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype, columns: int, few_programs: None) -> None:
    check(Call("CrossEntropyLoss", {}, (logits(23, dtype, columns), labels(23))))


@pytest.mark.parametrize("elements", [1025, 4096, 5000, 9999])
@pytest.mark.parametrize("loss", ["MSELoss", "BCEWithLogitsLoss"])
def test_flat(loss: str, elements: int, few_programs: None) -> None:
    samples = Samples(torch.float32)
    check(Call(loss, {}, (samples.real(elements), samples.probability(elements))))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtypes_of_flat(dtype: torch.dtype, few_programs: None) -> None:
    samples = Samples(dtype)
    check(Call("SmoothL1Loss", {}, (samples.real(3001), samples.real(3001))))


def per_column(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """A sum beside a maximum."""
    return ((x - target).abs() * weight).mean() + (target * weight).amax()


def per_row(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    return ((x - target).square() * weight[:, None]).sum() / weight.sum()


@pytest.mark.parametrize("columns", [COLUMNS, ANYWHERE, 7, 1030])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("loss", [per_column, per_row])
def test_tiles(loss: Any, dtype: torch.dtype, columns: int, few_programs: None) -> None:
    samples = Samples(dtype)
    x, target = samples.real(600 if columns == 7 else 41, columns), samples.real(600 if columns == 7 else 41, columns)
    weight = samples.probability(columns if loss is per_column else len(x))
    found, expected = (x.clone().requires_grad_() for _ in range(2))
    ours = autogen_loss(loss)
    assert explain(ours, found, target, weight).path == "generated"
    value = ours(found, target, weight)
    value.backward()
    exact = loss(expected.double(), target.double(), weight.double())
    exact.backward()
    bound = {"rtol": 1e-2, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(value.double(), exact, **bound)
    torch.testing.assert_close(found.grad, expected.grad, **bound)


@pytest.mark.parametrize("loss", [per_column, nn.MSELoss()], ids=["tiles", "flat"])
def test_offsets_of_64_bits(loss: Any, few_programs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "INT32_MAX", tiling.MARGIN)
    samples = Samples(torch.float64)
    inputs = [samples.real(41, COLUMNS), samples.real(41, COLUMNS), samples.probability(COLUMNS)]
    inputs = inputs[:2] if isinstance(loss, nn.Module) else inputs
    ours = autogen_loss(loss)
    report = explain(ours, *inputs)
    assert report.forward is not None and "tl.program_id(0).to(tl.int64)" in report.forward.source
    torch.testing.assert_close(ours(*inputs), loss(*inputs))


def test_an_input_called_tile(few_programs: None) -> None:
    @autogen_loss
    def loss(tile: Tensor, program: Tensor) -> Tensor:
        return (tile - program).square().mean()

    tile, program = Samples(torch.float64).real(2, 4000)
    torch.testing.assert_close(loss(tile, program), (tile - program).square().mean())


def test_flat_gradient_in_forward(few_programs: None) -> None:
    loss = autogen_loss(nn.SmoothL1Loss(), gradient="forward")
    x, y = Samples(torch.float64).real(2, 3001)
    found, expected = (x.clone().requires_grad_() for _ in range(2))
    loss(found, y).backward()
    nn.SmoothL1Loss()(expected, y).backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_totals_of_elements_of_several_kinds(few_programs: None) -> None:
    """A sum, both extremes, a count, and a scalar that programs and the last block read."""

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        scaled = x * scale
        return (scaled.sum() + scaled.amax() * scaled.amin()) / (scale * (x > 0).sum())

    x, scale = Samples(torch.float64).real(3001), torch.tensor(0.5).double()
    assert explain(autogen_loss(loss), x, scale).path == "generated"
    torch.testing.assert_close(autogen_loss(loss)(x, scale), loss(x, scale))


def test_rows_that_are_counted_in_two_numbers(few_programs: None) -> None:
    """Rows of a slice, which lie apart; a maximum beside a sum; and a scalar that programs and the last block read."""

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        rows = (x[:, 1:, :COLUMNS] * scale).logsumexp(-1)
        return rows.sum() * rows.max() / scale

    x, scale = Samples(torch.float64).real(5, 6, 2 * COLUMNS), torch.tensor(0.5).double()
    assert explain(autogen_loss(loss), x, scale).path == "generated"
    torch.testing.assert_close(autogen_loss(loss)(x, scale), loss(x, scale))
