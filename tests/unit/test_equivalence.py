"""Nodes that are the same but for the names of their axes."""

from __future__ import annotations

import sympy
import torch

from autogen import ir
from autogen.equivalence import Equivalents
from autogen.ir import Axis, Buffer, Node

N, C = sympy.symbols("N C", integer=True, positive=True)
X = Buffer("x", torch.float32, (N, C), (C, sympy.S.One), "input")
SQUARE = Buffer("square", torch.float32, (N, N), (N, sympy.S.One), "input")


def row_sum(row: Axis, column: Axis, buffer: Buffer = X) -> Node:
    value = ir.load(buffer, (row, column))
    return ir.reduce("sum", [column], ir.apply("mul", value, value))


def test_is_found_under_other_axes() -> None:
    known = Equivalents()
    first, second = row_sum(Axis("n", N), Axis("c", C)), row_sum(Axis("m", N), Axis("d", C))
    assert first is not second
    known.add(first)
    found = known.find(second)
    assert found is not None and found[0] is first
    assert found[1][Axis("n", N)] == Axis("m", N)
    assert ir.substitute(first, {Axis("n", N): found[1][Axis("n", N)]}).axes == second.axes


def test_the_first_is_kept() -> None:
    known = Equivalents()
    first, second = row_sum(Axis("n", N), Axis("c", C)), row_sum(Axis("m", N), Axis("d", C))
    known.add(first)
    known.add(second)
    found = known.find(second)
    assert found is not None and found[0] is first


def test_other_sums_differ() -> None:
    n, m = Axis("n", N), Axis("m", N)
    known = Equivalents()
    known.add(row_sum(n, m, SQUARE))
    assert known.find(ir.reduce("max", [m], ir.load(SQUARE, (n, m)))) is None
    columns = ir.load(SQUARE, (n, m))
    assert known.find(ir.reduce("sum", [n], ir.apply("mul", columns, columns))) is None  # of columns, not of rows


def test_axes_of_one_entry_are_told_apart_by_their_steps() -> None:
    a, b = Axis("a", N), Axis("b", C)
    line = Buffer("line", torch.float32, (N * C,), (sympy.S.One,), "input")
    known = Equivalents()
    known.add(ir.load(line, (a * C + b,)))
    found = known.find(ir.load(line, (Axis("z", N) * C + Axis("y", C),)))
    assert found is not None and found[1] == {a: Axis("z", N), b: Axis("y", C)}
    assert known.find(ir.load(line, (a + b * N,))) is None


def test_an_axis_used_twice_is_not_two_axes() -> None:
    n, m = Axis("n", N), Axis("m", N)
    known = Equivalents()
    known.add(ir.load(SQUARE, (n, n)))
    assert known.find(ir.load(SQUARE, (n, m))) is None
    assert known.find(ir.load(SQUARE, (m, m))) is not None
