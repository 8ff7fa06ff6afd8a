"""Losses of pairs: one launch each way, whatever the number of coordinates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autogen import autogen_loss, explain, policy
from bench.losses import chamfer, discrepancy, ranked
from tests.interpret.agreement import agree, draw
from tests.interpret.launches import LAUNCHES
from tests.tiers import examples


def nearest(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b).abs().sum(-1).amin(1).mean()


@pytest.mark.parametrize("coordinates", [1, 2, 3, 8])
@pytest.mark.parametrize("points", [(1, 30), (300, 17), (17, 300)], ids=str)
def test_points_and_their_nearest(points: tuple[int, int], coordinates: int) -> None:
    a, b = (draw("real", count, coordinates, seed=k) for k, count in enumerate(points))
    agree(nearest, a, b)


@pytest.mark.parametrize(
    ("points", "dtype"),
    [
        pytest.param((150, 200), torch.float32, marks=pytest.mark.slow),
        pytest.param((130, 150), torch.float64, marks=pytest.mark.slow),
        ((37, 41), torch.float32),
        ((37, 41), torch.float64),
    ],
    ids=str,
)
def test_chamfer(points: tuple[int, int], dtype: torch.dtype) -> None:
    a, b = (draw("real", 2, count, 3, dtype=dtype, seed=k) for k, count in enumerate(points))
    agree(chamfer, a, b)


@pytest.mark.slow
def test_kernels_of_pairs() -> None:
    agree(discrepancy, draw("real", 300, 3), draw("real", 200, 3, seed=1))
    report = explain(discrepancy, draw("real", 8000, 3), draw("real", 9000, 3))
    assert (report.forward.launches, report.backward.launches) == (1, 1)
    assert report.forward.bytes_moved < 10 * 2**20  # of 288 MB that one element per pair would be


@pytest.mark.parametrize("shape", [(3, 40), pytest.param((2, 700), marks=pytest.mark.slow)], ids=str)
def test_ranks(shape: tuple[int, int]) -> None:
    agree(ranked, draw("real", *shape), draw("real", *shape, seed=1).detach())


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 10), st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision(rows: int, columns: int, coordinates: int, dtype: torch.dtype) -> None:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-(a[:, None].float() - b.float()).square().sum(-1)).sum(1)

    agree(loss, draw("real", rows, coordinates, dtype=dtype), draw("real", columns, coordinates, dtype=dtype, seed=1),
          launches=None)  # fmt: skip


@pytest.mark.slow
def test_another_number_of_coordinates_is_another_kernel() -> None:
    loss = autogen_loss(nearest, policy="mandatory")
    for coordinates in (3, 2, 3, 4, 9, 2, 3):
        a, b = (draw("real", 20 + k, coordinates, seed=k) for k in range(2))
        found, true = loss(a, b), nearest(a, b)
        torch.testing.assert_close(found, true)
        torch.testing.assert_close(torch.autograd.grad(found, (a, b)), torch.autograd.grad(true, (a, b)))
    sources = {explain(nearest, draw("real", 20, n), draw("real", 21, n)).forward.source for n in (2, 3)}
    assert len(sources) == 2


def test_another_number_of_points_is_not() -> None:
    loss = autogen_loss(nearest, policy="mandatory")
    text = {explain(loss, draw("real", n, 3), draw("real", n + 200, 3)).forward.source for n in (30, 40)}
    assert len(text) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_in_compiled_code(dynamic: bool | None) -> None:
    compiled = torch.compile(autogen_loss(nearest), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    with policy("mandatory"):
        for points, coordinates in ((30, 3), (41, 3), (41, 2), (30, 3)):
            a, b = draw("real", points, coordinates), draw("real", 300, coordinates, seed=1)
            LAUNCHES.take()
            found = compiled(a, b)
            gradients = torch.autograd.grad(found, (a, b))
            assert LAUNCHES.take() == 2
            true = nearest(a, b)
            torch.testing.assert_close((found, *gradients), (true, *torch.autograd.grad(true, (a, b))))


def test_what_all_rows_of_a_tile_share_is_read_once() -> None:
    a, b = draw("real", 3, 40, 2), draw("real", 3, 300, 2, seed=1)
    source = explain(lambda a, b: (a[:, :, None] - b[:, None]).square().sum(-1).amin(2), a, b).forward.source
    assert "0 * row" not in source and "mask=col_mask[None, :]" in source
