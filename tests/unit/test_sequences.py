"""Sequences of many lengths in the IR: searches, windows, and what is known once per sequence."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Buffer, Node, apply, const
from autogen.ir.substitution import replace_nodes
from autogen.lowering.sequences import at_sequence, sequence_of, within
from autogen.scheduling.launches.windows import window_of
from autogen.scheduling.rewrites.folding import fold
from autogen.scheduling.rewrites.sequences import by_sequence, fold_all, table_of_sequences
from tests.unit.evaluate import evaluate

T, B = sympy.symbols("T B", integer=True, positive=True)
t, u, b = Axis("t", T), Axis("u", T), Axis("b", B)
OFFSETS = Buffer("offsets", torch.int64, (B + 1,), (sympy.S.One,), "input")
X = Buffer("x", torch.float64, (T,), (sympy.S.One,), "input")
ONE, ZERO = const(1, torch.int64), const(0, torch.float64)


def own(item: Axis) -> Node:
    """The sequence that an item belongs to."""
    return apply("sub", ir.search(ir.load(OFFSETS, [0]), 0, B + 1, ir.index(item)), ONE)


def total(place: Node | sympy.Expr) -> Node:
    """The sum of the items of a sequence."""
    inside = within(own(u), place)
    assert inside is not None
    return ir.reduce("sum", [u], apply("where", inside, ir.load(X, [u]), ZERO))


def values(nodes: Sequence[Node], lengths: Sequence[int]) -> list[torch.Tensor]:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    x = torch.arange(1.0, sum(lengths) + 1, dtype=torch.float64)
    return evaluate(nodes, {"offsets": offsets, "x": x}, {"T": sum(lengths), "B": len(lengths)})


class TestSearch:
    def test_it_finds_the_sequence_of_an_item(self) -> None:
        (found,) = values([own(t)], [2, 0, 3, 1])
        assert found.flatten().tolist() == [0, 0, 2, 2, 2, 3]

    def test_it_is_printed(self) -> None:
        assert "search %0 from %1 on, along dimension 0" in ir.format_nodes([own(t)])

    def test_it_is_told_apart_from_other_places(self) -> None:
        search = own(t).args[0]
        assert sequence_of(own(t)) == (search, -1)
        negative = apply("lt", own(t), const(0, torch.int64))
        assert sequence_of(apply("where", negative, apply("add", own(t), ir.index(B)), own(t))) == (search, -1)
        assert sequence_of(ir.index(t)) is None

    def test_it_is_not_negative(self) -> None:
        search = own(t).args[0]
        assert fold(apply("lt", search, const(0, torch.int64))) is const(False, torch.bool)


class TestWithin:
    def test_a_sequence_lies_between_two_offsets(self) -> None:
        inside = within(own(t), b)
        assert inside is not None
        (found,) = values([inside], [2, 0, 3])
        assert found.squeeze().long().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]
        assert within(ir.index(t), b) is None

    def test_what_is_read_of_the_sequence_is_read_there(self) -> None:
        length = apply("sub", total(own(t)), ir.load(X, [t]))
        there = at_sequence(length, own(t), b)
        assert fold_all(there) is fold_all(apply("sub", total(b), ir.load(X, [t])))


class TestReplaceNodes:
    def test_what_a_reduction_binds_is_another_of_the_same_name(self) -> None:
        assert replace_nodes(total(b), {ir.load(X, [u]): ir.load(X, [t])}) is total(b)

    def test_a_bound_axis_makes_way(self) -> None:
        body = ir.reduce("sum", [u], apply("mul", ir.load(X, [u]), ir.load(X, [t])))
        found = replace_nodes(body, {ir.load(X, [t]): ir.load(X, [u])})
        assert found.axes == {u} and found.attrs[1] != (u,)


class TestOncePerSequence:
    def test_what_each_item_asks_of_its_sequence_is_a_table(self) -> None:
        found = table_of_sequences(total(own(t)))
        assert found is not None
        table, places = found
        ((row, place),) = places.items()
        assert table.axes == {row} and row.size == B
        known, at = values([table, place], [2, 0, 3])
        (wanted,) = values([total(own(t))], [2, 0, 3])
        assert torch.equal(known.flatten()[at.flatten()], wanted.flatten())

    def test_a_table_needs_no_place_but_the_sequence(self) -> None:
        assert table_of_sequences(ir.reduce("sum", [u], apply("mul", ir.load(X, [u]), ir.load(X, [t])))) is None
        assert table_of_sequences(total(b)) is None

    def test_a_sum_of_items_becomes_one_of_sequences(self) -> None:
        centered = apply("sub", ir.load(X, [t]), total(own(t)))
        whole = ir.reduce("sum", [t], apply("mul", centered, centered))
        found = by_sequence(whole)
        (outer,) = found.attrs[1]
        assert outer.size == B
        for lengths in ([2, 0, 3], [1], [0, 0, 4]):
            assert torch.allclose(*values([whole, found], lengths))

    def test_a_plain_sum_stays(self) -> None:
        plain = ir.reduce("sum", [t], ir.load(X, [t]))
        assert by_sequence(plain) is plain


class TestWindow:
    def test_a_row_asks_for_its_sequence(self) -> None:
        window = window_of([total(b)], [b], [u])
        assert window is not None and window.end is ir.load(OFFSETS, [b + 1])
        assert window.start is not None and window.start.axes == {b}

    def test_a_length_is_an_end(self) -> None:
        lengths = Buffer("lengths", torch.int64, (B,), (sympy.S.One,), "input")
        inside = apply("lt", ir.index(u), ir.load(lengths, [b]))
        counted = ir.reduce("sum", [u], ir.cast(inside, torch.float64))
        window = window_of([counted], [b], [u])
        assert window is not None and window.start is None and window.end is ir.load(lengths, [b])

    def test_all_reductions_have_to_ask_for_it(self) -> None:
        everywhere = ir.reduce("sum", [u], apply("mul", ir.load(X, [u]), ir.cast(ir.load(OFFSETS, [b]), torch.float64)))
        assert window_of([total(b), everywhere], [b], [u]) is None
        assert window_of([], [b], [u]) is None
        assert window_of([total(b)], [], [u]) is None

    def test_what_is_chosen_elsewhere_has_to_count_for_nothing(self) -> None:
        inside = within(own(u), b)
        assert inside is not None
        ones = apply("where", inside, ir.load(X, [u]), const(1, torch.float64))
        assert window_of([ir.reduce("sum", [u], ones)], [b], [u]) is None
