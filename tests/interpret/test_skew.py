"""Rows that begin anywhere in memory: read and written in groups of 16 bytes, to the element at their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autogen import autogen_loss, explain
from autogen.errors import ScheduleError
from autogen.scheduling.launches import cuts
from tests.interpret.agreement import agree, draw, labels
from tests.tiers import examples

DTYPES = {torch.float32: 4, torch.bfloat16: 8, torch.float64: 2}  # and elements in 16 bytes

Loss = Callable[..., Tensor]


def sources(loss: Loss, *inputs: Tensor) -> tuple[str, str]:
    """The kernels of a call, forward and backward."""
    report = explain(autogen_loss(loss), *inputs)
    assert report.forward is not None and report.backward is not None
    return report.forward.source, report.backward.source


def log_softmax_squared(x: Tensor) -> Tensor:
    return x.log_softmax(-1).square().mean()


def weighted(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, t, pos_weight=w)


def smoothed(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
    return F.cross_entropy(x, t, w, label_smoothing=0.1)


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def dice(x: Tensor, t: Tensor) -> Tensor:
    p = x.sigmoid()
    return (1 - 2 * (p * t).sum((2, 3)) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)).mean()


CASES: dict[str, tuple[Loss, tuple[Tensor, ...]]] = {
    "short rows": (log_softmax_squared, (draw("real", 37, 21),)),
    "rows on chip": (log_softmax_squared, (draw("real", 3, 1027),)),
    "per column, one row a tile": (
        smoothed,
        (draw("real", 3, 1091), labels(1091, 3), draw("positive", 1091).detach()),
    ),
    "tiles": (weighted, (draw("real", 3, 1025), draw("unit", 3, 1025).detach(), draw("positive", 1025).detach())),
    "tiles of short rows": (
        weighted,
        (draw("real", 37, 81), draw("unit", 37, 81).detach(), draw("positive", 81).detach()),
    ),
    "tiles that are filled by several rows": (
        weighted,
        (draw("real", 21, 527), draw("unit", 21, 527).detach(), draw("positive", 527).detach()),
    ),
    "tokens": (next_token, (draw("real", 2, 5, 2503), labels(2503, 2, 5))),
    "another dtype": (
        lambda x, t: ((x - t.float()).square().sum(1) + 1).log().mean(),
        (draw("real", 5, 81), torch.arange(405).reshape(5, 81).remainder(2).bool()),
    ),
    "chunks of planes": (dice, (draw("real", 2, 2, 183, 181), draw("unit", 2, 2, 183, 181).detach())),
    "chunks of planes in two dtypes": (
        dice,
        (draw("real", 3, 1, 187, 181), draw("real", 3, 1, 187, 181).detach() > 0),
    ),
    "long rows": (smoothed, (draw("real", 2, 40_001), labels(40_001, 2), draw("positive", 40_001).detach())),
}


@pytest.fixture
def by_few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few long rows of a softmax are not split."""

    def refuse(*args: object) -> None:
        raise ScheduleError("no rows are split")

    monkeypatch.setattr(cuts, "split_rows", refuse)


@pytest.mark.usefixtures("by_few_programs")
@pytest.mark.parametrize("name", CASES)
def test_in_groups(name: str) -> None:
    loss, inputs = CASES[name]
    forward, backward = sources(loss, *inputs)
    assert all("mask=overlapping" in source for source in (forward, backward)) and "mask=inside" in backward
    assert ("chunk = " in forward) == ("chunks" in name)
    agree(loss, *inputs)


@pytest.mark.usefixtures("by_few_programs")
@pytest.mark.parametrize(
    ("loss", "inputs"),
    [
        (smoothed, (draw("real", 5, 36_863), labels(36_863, 5), draw("positive", 36_863).detach())),
        (dice, (draw("real", 5, 1, 165, 211), draw("unit", 5, 1, 165, 211).detach())),
    ],
)
def test_a_last_tile_but_one_that_reaches_the_end(loss: Loss, inputs: tuple[Tensor, ...]) -> None:
    """The fifth row begins at a multiple of 16 bytes, and has one element less than tiles; others need one more."""
    assert "mask=overlapping" in sources(loss, *inputs)[0]
    agree(loss, *inputs)


def test_chunks_of_long_rows() -> None:
    def of_sequences(x: Tensor) -> Tensor:
        return x.log_softmax(2).square().mean(2).sqrt().sum(1).sigmoid().log().mean()

    own, few_rows = autogen_loss(of_sequences), draw("real", 2, 9, 16_385)
    explain(own, draw("real", 3, 6001, 37))  # a plan for many rows, which serves few of them, too
    report = explain(own, few_rows)
    torch.testing.assert_close(own(few_rows), of_sequences(few_rows))
    torch.testing.assert_close(*(torch.autograd.grad(loss(few_rows), few_rows)[0] for loss in (own, of_sequences)))
    assert report.forward is not None
    assert all(part in report.forward.source for part in ("chunk = ", "for first_lane in", "mask=overlapping"))


def test_chunks_that_store_elements() -> None:
    @autogen_loss
    def with_map(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return (x - t).square(), dice(x, t)

    inputs = CASES["chunks of planes"][1]
    report = explain(with_map, *inputs)
    assert report.forward is not None
    assert all(part in report.forward.source for part in ("chunk = ", "mask=overlapping", "mask=inside"))
    (own, own_total), total = with_map(*inputs), dice(*inputs)
    torch.testing.assert_close((own, own_total), ((inputs[0] - inputs[1]).square(), total))


@given(
    rows=st.integers(2, 9),
    columns=st.integers(8, 300),
    offset=st.integers(0, 5),
    dtype=st.sampled_from(list(DTYPES)),
)
@settings(max_examples=examples(24), deadline=None)
def test_any_size(rows: int, columns: int, offset: int, dtype: torch.dtype) -> None:
    memory = draw("real", rows * columns + offset, dtype=torch.float64).detach()
    x = memory[offset:].view(rows, columns).to(dtype).requires_grad_()
    forward, _ = sources(log_softmax_squared, x)
    group = DTYPES[dtype]
    lanes = 1 << (columns - 1).bit_length()
    in_groups = columns % group > 0 and columns >= 4 * group and columns + group - 1 <= lanes
    assert ("overlapping" in forward) == in_groups
    agree(log_softmax_squared, x)


@pytest.mark.parametrize("columns", [67, 1027])
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_what_is_read_of_another_row_is_not_used(special: float, columns: int) -> None:
    x = draw("real", 7, columns).detach()
    x[::2] = special
    x.requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return (x.softmax(1) * x.sigmoid()).sum(1)

    assert "overlapping" in sources(loss, x)[0]
    own, their = autogen_loss(loss)(x), loss(x)
    torch.testing.assert_close(own, their, equal_nan=True)
    grads = [torch.autograd.grad(value, x, torch.ones_like(value))[0] for value in (own, their)]
    torch.testing.assert_close(*grads, equal_nan=True)


def strided(*shape: int, stride: int) -> Tensor:
    memory = draw("real", *shape[:-1], stride).detach()
    return memory[..., : shape[-1]].requires_grad_()


@pytest.mark.parametrize(
    ("why", "x"),
    [
        ("rows have gaps", strided(5, 67, stride=70)),
        ("rows overlap", draw("real", 80).detach().unfold(0, 67, 1).requires_grad_()),
        ("rows are the same", draw("real", 67).detach().expand(5, 67).requires_grad_()),
        ("of few groups", draw("real", 5, 11)),
        ("a larger tile", draw("real", 5, 127)),
        ("aligned", draw("real", 5, 68)),
        ("one row", draw("real", 67)),
    ],
)
def test_not_in_groups(why: str, x: Tensor) -> None:
    assert "overlapping" not in sources(log_softmax_squared, x)[0], why
    agree(log_softmax_squared, x)


def test_a_sum_per_column_takes_a_tile_of_one_row() -> None:
    """In more rows, the columns that it is of are in different lanes."""
    inputs: tuple[Any, ...] = draw("real", 5, 67), labels(67, 5), draw("positive", 67).detach()
    assert "overlapping" not in sources(smoothed, *inputs)[0]
    agree(smoothed, *inputs)
