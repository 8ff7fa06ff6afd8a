"""Nodes that are the same but for the names of their axes."""

from __future__ import annotations

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Buffer, Node
from autogen.ir.substitution import substitute
from autogen.scheduling.rewrites.equivalence import Equivalents, limits_of, table_of

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
    assert substitute(first, {Axis("n", N): found[1][Axis("n", N)]}).axes == second.axes


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


ROW, COLUMN = Axis("row", N), Axis("column", C)
IS_SHORT = ir.apply("lt", ir.index(ROW), ir.index(N - 1))
ZERO = ir.const(0, torch.float32)


def test_a_shorter_one_is_found_within_a_limit() -> None:
    known = Equivalents()
    shorter = row_sum(Axis("n", N - 1), Axis("c", C))
    known.add(shorter)
    node = row_sum(ROW, COLUMN)
    assert known.find(node) is None
    assert known.find_within(node, []) is None
    assert known.find_within(node, [(ROW, N - 2)]) is None
    found = known.find_within(node, [(ROW, N - 1)])
    assert found is not None and found[0] is shorter
    assert found[1][Axis("n", N - 1)] is ir.index(ROW)


def test_a_limit_holds_where_a_value_is_chosen_under_it() -> None:
    node = row_sum(ROW, COLUMN)
    chosen = ir.apply("where", IS_SHORT, ir.apply("exp", node), ZERO)
    assert limits_of([chosen])[node] == {(ROW, N - 1)}
    both = ir.apply("logical_and", ir.apply("gt", ir.load(X, (ROW, 0)), ZERO), IS_SHORT)
    assert limits_of([ir.apply("where", both, node, ZERO)])[node] == {(ROW, N - 1)}


def test_an_axis_that_a_sum_runs_along_has_no_limit_from_outside() -> None:
    node = row_sum(ROW, COLUMN)
    total = ir.reduce("sum", [ROW], node)
    chosen = ir.apply("where", IS_SHORT, total, ZERO)
    assert limits_of([chosen])[total] == {(ROW, N - 1)}
    assert limits_of([chosen])[node] == frozenset()
    within = ir.reduce("sum", [ROW], ir.apply("where", IS_SHORT, node, ZERO))
    assert limits_of([within])[node] == {(ROW, N - 1)}


def test_along_an_axis_that_a_scan_runs_along_nothing_shorter_is_found() -> None:
    """From the end, it has other values."""
    along = Axis("n", N - 1)
    for reverse in (False, True):
        known = Equivalents()
        known.add(ir.scan("sum", along, row_sum(along, Axis("c", C)), reverse=reverse))
        assert known.find_within(ir.scan("sum", ROW, row_sum(ROW, COLUMN), reverse=reverse), [(ROW, N - 1)]) is None
    other = Axis("m", N - 1)
    assert known.find(ir.scan("sum", other, row_sum(other, Axis("d", C)), reverse=True)) is not None


def test_of_two_limits_the_same_is_taken_in_every_process() -> None:
    known = Equivalents()
    for size in (N - 1, N - 2):
        known.add(row_sum(Axis("n", size), Axis("c", C)))
    node, limits = row_sum(ROW, COLUMN), [(ROW, N - 1), (ROW, N - 2)]
    assert known.find_within(node, limits) == known.find_within(node, limits[::-1])


def test_no_limit_holds_where_a_value_is_needed_beyond_it_too() -> None:
    node = row_sum(ROW, COLUMN)
    chosen = ir.apply("where", IS_SHORT, node, ZERO)
    assert limits_of([ir.apply("add", chosen, node)])[node] == frozenset()
    assert limits_of([chosen, node])[node] == frozenset()
    assert limits_of([ir.apply("where", IS_SHORT, ZERO, node)])[node] == frozenset()
    assert limits_of([ir.apply("where", ir.apply("gt", node, ZERO), node, ZERO)])[node] == frozenset()


class TestTables:
    """Rows of chunks, shifts and slices, as rows of whole tensors."""

    SIZE = sympy.Integer(8)
    COLUMN = Axis("c", C)
    BUFFER = Buffer("x", torch.float32, (SIZE, C), (C, sympy.S.One), "input")

    def largest(self, at: sympy.Expr | Node) -> Node:
        return ir.reduce("max", [self.COLUMN], ir.load(self.BUFFER, [at, self.COLUMN]))

    def test_what_is_read_at_other_rows_is_a_table(self) -> None:
        half = Axis("i", sympy.Integer(4))
        whole = Axis("n", self.SIZE)
        _table, places = table_of(self.largest(half + 4))
        ((row, place),) = places.items()
        assert row.size == self.SIZE and place == half + 4
        known = Equivalents()
        known.add(self.largest(whole))
        for at, wanted in ((half, half), (half + 4, half + 4)):
            own, under = known.enter(self.largest(at))
            assert own is self.largest(whole) and under[whole] == wanted

    def test_a_computed_row_is_checked_where_it_is_read(self) -> None:
        whole = Axis("n", self.SIZE)
        at = ir.index(whole - 4)
        _, places = table_of(self.largest(at))
        assert list(places.values()) == [at]

    def test_rows_of_all_are_no_table_of_others(self) -> None:
        whole = Axis("n", self.SIZE)
        node = self.largest(whole)
        assert table_of(node) == (node, {})
        twice = ir.apply("add", self.largest(whole), self.largest(whole + 1))
        assert table_of(twice)[0] is twice
