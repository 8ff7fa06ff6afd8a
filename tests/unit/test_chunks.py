"""Chunks of rows: how many rows, which row a value is of, and products of some rows at a time."""

from __future__ import annotations

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogen import ir
from autogen.ir import Axis
from autogen.scheduling.chunks import matrices
from autogen.scheduling.chunks.rows import Rows, expression_of, rows_of
from autogen.scheduling.chunks.size import LEAST_ROWS, WORKSPACE, ChunkSize, rows_per_chunk

B, T, N = sympy.symbols("B T N", integer=True, positive=True)
b, t, n = Axis("b", B), Axis("t", T - 1), Axis("n", N)


@given(st.integers(1, 2**20), st.integers(1, 2**22))
def test_chunks_fit_into_the_workspace(rows: int, row_bytes: int) -> None:
    chunk = rows_per_chunk(rows, row_bytes)
    most = max(WORKSPACE // row_bytes, LEAST_ROWS)
    assert 1 <= chunk <= min(rows, most + 63)
    assert chunk == rows or chunk % 64 == 0
    assert -(-rows // chunk) <= -(-rows // most)  # no more of them than are needed


def test_chunks_that_are_asked_for() -> None:
    size = ChunkSize(N, sympy.Integer(4), 16)
    assert size.of({"N": 100}) == 16 and size.is_less_than_all({"N": 17})
    assert size.of({"N": 5}) == 5 and not size.is_less_than_all({"N": 16})


def _at(rows: Rows, row: int, sizes: dict[sympy.Symbol, int]) -> dict[str, int]:
    place = Axis("row", rows.count)
    return {str(axis): int(e.subs({place: row, **sizes})) for axis, e in rows.places(place).items()}


def test_rows_as_digits() -> None:
    """Of the tokens of sequences but the first: the token after it has the next label."""
    rows = rows_of(T * b + t + 1, B * T)
    assert rows is not None and not rows.is_all and rows.axes == {b, t}
    assert [digit.axis for digit in rows.digits] == [b, t]
    assert _at(rows, 17, {B: 4, T: 7}) == {"b": 2, "t": 2}
    whole = rows_of(n, N)
    assert whole is not None and whole.is_all and whole.is_one(Axis("row", N)) is None


def test_rows_of_the_second_half() -> None:
    """Which begin in the middle of a sequence, if the number of tokens is odd."""
    rows, sizes = rows_of(T * b + Axis("t", T) + (B * T + 1) // 2, B * T), {B: 3, T: 5}
    assert rows is not None and not rows.is_all and rows.first == (B * T + 1) // 2
    assert _at(rows, 14, sizes) == {"b": 1, "t": 1}


@pytest.mark.parametrize(("row", "count"), [(2 * n, 2 * N), (n * n, N * N), (n + b, N), (sympy.Integer(3), N)], ids=str)
def test_rows_that_are_no_digits(row: sympy.Expr, count: sympy.Expr) -> None:
    assert rows_of(row, count) is None


def test_what_lies_outside_is_checked() -> None:
    """The second half of the rows: those of the first have no place in it."""
    rows, row = rows_of(n + N, 2 * N), Axis("row", 2 * N)
    assert rows is not None
    scores = ir.Buffer("scores", torch.float32, (N,), (sympy.S.One,), "input")
    node = rows.at(ir.load(scores, [n]), row)
    assert node.op == "where" and ir.loads([node])[0].args[0].attrs[0] == row - N


def test_arithmetic_on_indices_is_an_expression() -> None:
    node = ir.apply("add", ir.apply("mul", ir.index(T), ir.index(b)), ir.index(t))
    assert sympy.expand(expression_of(node) - (T * b + t)) == 0
    labels = ir.Buffer("labels", torch.int64, (N,), (sympy.S.One,), "input")
    assert expression_of(ir.load(labels, [n])) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("is_turned", [False, True])
def test_products_are_added_up_in_single_precision(
    dtype: torch.dtype, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "_SLAB", 3)
    torch.manual_seed(0)
    total = torch.zeros(8, 5, dtype=ir.compute_dtype(dtype))
    expected = torch.zeros(8, 5, dtype=torch.float64)
    for _ in range(20):
        left, right = torch.randn(8, 6).to(dtype), torch.randn(6, 5).to(dtype)
        assert matrices.add_product(total, left.t().contiguous() if is_turned else left, right, is_turned) is total
        expected += left.double() @ right.double()
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)
