"""Simplification: no rewrite changes a value, and the ones that save work do so."""

from __future__ import annotations

import pytest
import sympy
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from autogen import ir
from autogen.ir import Axis, Buffer, Node, apply, const, index, reduce
from autogen.scheduling.rewrites.simplify import PASSES, simplify
from autogen.scheduling.rewrites.softmax import is_log_softmax
from tests.tiers import examples
from tests.unit.evaluate import evaluate
from tests.unit.verify import verify

F64, I64 = torch.float64, torch.int64
N_SIZE, C_SIZE, D_SIZE = sympy.symbols("N C D", integer=True, positive=True)
N, C, D = Axis("n", N_SIZE), Axis("c", C_SIZE), Axis("d", D_SIZE)


def load(name: str, *axes: Axis, dtype: torch.dtype = F64) -> Node:
    shape = tuple(axis.size for axis in axes)
    return ir.load(Buffer(name, dtype, shape, ir.contiguous_strides(shape), "input"), axes)


X, Y, Z = load("x", N, C), load("y", N, C), load("z", N, C, D)
ROW, COLUMN = load("row", N), load("column", C)
LABEL = load("label", N, dtype=I64)
DEEP_LABEL = load("deep_label", N, D, dtype=I64)
ZERO, ONE = const(0, F64), const(1, F64)

SIZES = {"N": 2, "C": 3, "D": 2}
# Dyadic numbers, most sums and products of which are exact, so that the order of a sum does not show.
TENSORS = {
    "x": torch.tensor([[1.5, -2.0, 0.5], [0.25, 3.0, -1.0]], dtype=F64),
    "y": torch.tensor([[-1.0, 0.5, 2.0], [4.0, -0.5, 1.0]], dtype=F64),
    "z": torch.arange(12, dtype=F64).reshape(2, 3, 2) / 4 - 1.5,
    "row": torch.tensor([2.0, -0.5], dtype=F64),
    "column": torch.tensor([1.0, -2.0, 4.0], dtype=F64),
    "upstream": torch.tensor(-1.5, dtype=F64),
    "label": torch.tensor([2, -1]),  # the second is no column
    "deep_label": torch.tensor([[0, 2], [3, 1]]),
}


def ops(node: Node) -> list[str]:
    return [each.op for each in ir.topological([node])]


def softmax_parts(x: Node, exponential: str = "exp") -> tuple[Node, Node]:
    """`x - max(x)` over c, and the logarithm of the sum of its exponential."""
    shifted = apply("sub", x, reduce("max", [C], x))
    return shifted, apply("log", reduce("sum", [C], apply(exponential, shifted)))


def log_softmax(x: Node) -> Node:
    return apply("sub", *softmax_parts(x))


def one_hot(label: Node, value: Node) -> Node:
    return apply("where", apply("eq", index(C), label), value, ZERO)


def values_of(*nodes: Node) -> tuple[torch.Tensor, ...]:
    return tuple(torch.broadcast_tensors(*evaluate(nodes, TENSORS, SIZES)))


def simplified(node: Node) -> Node:
    """`node`, simplified to something of the same value."""
    (after,) = simplify([node])
    verify([after])
    assert after.axes <= node.axes and after.dtype == node.dtype
    torch.testing.assert_close(*values_of(after, node))
    reductions = [each for each in ir.topological([after]) if each.op == "reduce"]
    assert all(each.args[0].axes.issuperset(each.attrs[1]) for each in reductions)  # a kernel has no loop for others
    return after


# Any graph.

LEAVES = st.sampled_from([
    X, Y, Z, ROW, COLUMN, ir.cast(index(C), F64), ZERO, ONE, const(-1, F64), const(0.5, F64), const(-0.0, F64)
])  # fmt: skip
AXES = st.sets(st.sampled_from([N, C, D]), min_size=1)


def _larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    conditions = st.one_of(
        st.sampled_from([apply("eq", index(C), LABEL), apply("eq", DEEP_LABEL, index(C)), apply("gt", ROW, ZERO)]),
        st.builds(apply, st.sampled_from(["gt", "eq", "ne"]), inner, inner),
    )
    conditions |= st.builds(lambda a, b: apply("logical_and", a, b), conditions, conditions)
    conditions |= st.builds(lambda a: apply("logical_not", a), conditions)
    return st.one_of(
        st.builds(apply, st.sampled_from(["add", "sub", "mul", "div", "maximum"]), inner, inner),
        st.builds(apply, st.sampled_from(["neg", "abs"]), inner),
        st.builds(apply, st.just("where"), conditions, inner, inner),
        st.builds(one_hot, st.sampled_from([LABEL, DEEP_LABEL]), inner),
        st.builds(reduce, st.sampled_from(["sum", "sum", "prod", "max", "min"]), AXES, inner),
        st.builds(lambda x: reduce("max", [C], x) if C in x.axes else x, inner),
        st.builds(lambda x: log_softmax(x) if C in x.axes else x, inner),
    )


GRAPHS = st.recursive(LEAVES, _larger, max_leaves=10)


@settings(max_examples=examples(300))
@given(GRAPHS)
@example(reduce("sum", [N, C], apply("mul", ROW, apply("neg", X))))
@example(reduce("prod", [N, C], apply("mul", ROW, const(0.5, F64))))
@example(reduce("sum", [C, D], one_hot(LABEL, X)))
@example(reduce("sum", [C], apply("sub", one_hot(LABEL, X), Y)))
@example(apply("where", apply("eq", X, X), ONE, ZERO))
def test_values_stay(graph: Node) -> None:
    before, *others = evaluate(ir.topological([graph])[::-1], TENSORS, SIZES)
    # A sum that meets infinity may meet it elsewhere.
    assume(all(bool(torch.isfinite(value.to(F64)).all()) and value.abs().max() < 1e6 for value in [before, *others]
               if value.dtype != torch.bool))  # fmt: skip
    simplified(graph)


def test_a_one_hot_row_of_inner_sums_keeps_its_value() -> None:
    simplified(reduce("sum", [C], one_hot(DEEP_LABEL, reduce("sum", [D], Z))))


def test_tells_what_became_of_a_node() -> None:
    doubled = apply("mul", X, ONE)
    moves: dict[Node, Node] = {}
    simplify([apply("exp", doubled)], lambda old, new: moves.__setitem__(old, new))
    assert moves == {doubled: X, apply("exp", doubled): apply("exp", X)}


def test_the_passes_are_named() -> None:
    assert [rule.__name__ for rule in PASSES] == ["fold", "by_sequence", "softmax", "sums", "once_per_row", "settled"]


# Arithmetic that does nothing.


def test_folds() -> None:
    half = const(0.5, F64)
    for before, after in [
        (apply("sub", X, ZERO), X),
        (apply("add", X, const(-0.0, F64)), X),
        (apply("mul", ONE, X), X),
        (apply("mul", X, const(-1, F64)), apply("neg", X)),
        (apply("div", X, ONE), X),
        (apply("neg", apply("neg", X)), X),
        (apply("add", X, apply("neg", Y)), apply("sub", X, Y)),
        (apply("sub", X, apply("neg", Y)), apply("add", X, Y)),
        (apply("mul", half, const(3, F64)), const(1.5, F64)),
        (apply("where", const(True, torch.bool), X, Y), X),
        (apply("where", apply("gt", X, Y), X, X), X),
        (apply("logical_not", apply("eq", X, Y)), apply("ne", X, Y)),
    ]:
        assert simplified(before) is after


def test_a_zero_is_added_where_it_may_be_seen() -> None:
    """-0.0 + 0.0 is 0.0."""
    more = apply("add", X, ZERO)
    for kept in (more, apply("div", ONE, more), apply("atan2", more, Y), apply("mul", more, Y)):
        assert simplified(kept) is kept
    assert simplified(apply("sub", X, const(-0.0, F64))) is more
    chosen = apply("where", apply("gt", X, Y), apply("neg", ROW), ZERO)  # the zero is added once per row
    assert simplified(apply("add", chosen, ZERO)) is apply("where", apply("gt", X, Y), apply("sub", ZERO, ROW), ZERO)


def test_a_zero_is_not_added_to_what_is_never_minus_zero() -> None:
    for never in (
        apply("mul", X, X),
        apply("exp", X),
        apply("abs", X),
        reduce("sum", [C], X),
        ir.cast(LABEL, F64),
        apply("sub", ONE, X),
    ):
        assert simplified(apply("add", never, ZERO)) is simplified(never)
    count = ir.load(LABEL.attrs[0], (N,))
    assert simplified(apply("add", count, const(0, I64))) is count


def test_does_not_fold_what_nan_forbids() -> None:
    for kept in (apply("mul", X, ZERO), apply("sub", X, X), apply("div", X, X)):
        assert simplified(kept) is kept
    less = apply("logical_not", apply("lt", X, Y))  # a nan is neither less nor at least
    assert simplified(less) is less


def test_a_constant_is_rounded_as_the_kernel_would() -> None:
    third = apply("div", const(1, torch.float32), const(3, torch.float32))
    assert simplify([third])[0] is const(torch.tensor(1 / 3, dtype=torch.float32).item(), torch.float32)


# Sums.


def test_a_sum_over_an_axis_that_is_not_there_is_a_product() -> None:
    assert simplified(reduce("sum", [C], ROW)) is apply("mul", ir.cast(index(C_SIZE), F64), ROW)


def test_a_maximum_over_an_axis_that_is_not_there_is_none() -> None:
    assert simplified(reduce("max", [C], ROW)) is ROW


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_an_axis_goes_with_a_choice_between_equals(kind: str) -> None:
    """A row that is everywhere what it is at its first place, as in an expanded tensor."""
    first = apply("eq", index(C), ir.cast(index(0), I64))
    row = apply("where", first, reduce("max", [C], ROW), ROW)
    assert simplified(reduce(kind, [C], row)) is simplified(reduce(kind, [C], ROW))


def test_factors_per_row_leave_the_sum() -> None:
    grown = apply("exp", X)
    total = reduce("sum", [C], grown)
    for factored in (
        apply("mul", ROW, grown),
        apply("mul", grown, ROW),
        apply("mul", apply("mul", ROW, grown), ONE),
        apply("mul", apply("mul", grown, ROW), ONE),
    ):
        assert simplified(reduce("sum", [C], factored)) is apply("mul", ROW, total)
    above = apply("maximum", ROW, ONE)
    assert simplified(reduce("sum", [C], apply("div", grown, above))) is apply("div", total, above)
    assert simplified(reduce("sum", [C], apply("neg", X))) is apply("neg", reduce("sum", [C], X))


def stays(op: str, *args: Node) -> bool:
    """Whether no sum over c is multiplied or divided."""
    found = ir.topological([simplified(reduce("sum", [C], apply(op, *args)))])
    return all(arg.op != "reduce" for node in found if node.op in ("mul", "div") for arg in node.args)


def test_a_mask_keeps_what_is_read_out_of_a_sum() -> None:
    """The sum of what it keeps out may be infinite."""
    count = ir.cast(reduce("sum", [C], ir.cast(apply("gt", X, Y), I64)), F64)
    place = ir.cast(apply("ne", index(N), const(1, I64)), F64)
    chosen = apply("where", apply("lt", X, Y), X, ONE)
    for body in (X, apply("neg", X), apply("abs", apply("sub", X, Y)), chosen, apply("div", X, Y)):
        for mask in (ROW, count, place, const(0, F64), const(0.5, F64)):
            assert stays("mul", mask, body)
        assert not stays("mul", const(2, F64), body)
        assert stays("div", body, const(2, F64)) and not stays("div", body, const(0.5, F64))
    square, exponential = apply("mul", X, X), apply("exp", apply("mul", X, Y))
    for body in (square, exponential):  # which are infinite themselves
        assert not stays("mul", ROW, body) and not stays("div", body, const(2, F64))


def test_what_is_waited_for_leaves_a_sum() -> None:
    """Else it would take another walk, or another launch."""
    norm = apply("sqrt", reduce("sum", [C], apply("mul", Y, Y)))
    upstream = ir.load(Buffer("upstream", F64, (), (), "upstream"), ())
    count = ir.cast(reduce("sum", [C], ir.cast(apply("gt", X, Y), I64)), F64)
    for factor in (norm, upstream):
        assert not stays("mul", factor, X) and not stays("div", X, factor)
    assert not stays("div", X, count)


def test_a_mask_leaves_a_one_hot_row() -> None:
    """Its sum is one number."""
    for factor in (ROW, const(0.5, F64)):
        picked = simplified(reduce("sum", [C], apply("mul", factor, one_hot(LABEL, X))))
        assert "reduce" not in ops(picked)


def test_what_may_be_0_divides_each_summand() -> None:
    square, magnitude, grown = apply("mul", X, X), apply("abs", ROW), apply("exp", ROW)
    for divisor in (
        ROW,
        apply("mul", ROW, ROW),
        magnitude,
        apply("sub", ROW, ONE),
        apply("add", magnitude, apply("sqrt", magnitude)),
        apply("mul", magnitude, grown),
        apply("minimum", magnitude, grown),
    ):
        assert stays("div", square, divisor) and stays("mul", square, apply("reciprocal", divisor))
    for divisor in (
        apply("add", apply("mul", ROW, ROW), ONE),
        apply("maximum", ROW, ONE),
        grown,
        apply("minimum", grown, ONE),
        const(-2, F64),
    ):
        assert not stays("div", square, divisor)


def test_factors_per_row_leave_the_sum_from_any_depth() -> None:
    grown, above = apply("exp", X), apply("maximum", ROW, ONE)
    total = reduce("sum", [C], apply("mul", grown, apply("exp", Y)))
    for deep in (
        apply("mul", apply("mul", apply("mul", ROW, grown), ONE), apply("exp", Y)),
        apply("mul", apply("mul", grown, apply("mul", ONE, ROW)), apply("exp", Y)),
    ):
        assert simplified(reduce("sum", [C], deep)) is apply("mul", ROW, total)
    divided = apply("mul", apply("div", apply("neg", grown), above), apply("exp", Y))
    assert simplified(reduce("sum", [C], divided)) is apply("neg", apply("div", total, above))
    over = apply("div", apply("mul", grown, ROW), Y)
    assert simplified(reduce("sum", [C], over)) is apply("mul", ROW, reduce("sum", [C], apply("div", grown, Y)))


def test_a_sum_that_would_cancel_is_not_split() -> None:
    for body in (apply("sub", ONE, X), apply("sub", X, Y), apply("add", X, ROW)):
        assert simplified(reduce("sum", [C], body)) is reduce("sum", [C], body)


def test_a_one_hot_sum_is_read_at_its_place() -> None:
    picked = simplified(reduce("sum", [C], one_hot(LABEL, X)))
    assert "reduce" not in ops(picked)
    assert ir.load(X.attrs[0], (N, LABEL)) in ir.topological([picked])


def test_a_one_hot_sum_is_read_whichever_way_round_it_is_written() -> None:
    hot = apply("where", apply("eq", LABEL, index(C)), apply("mul", X, COLUMN), ZERO)
    assert "reduce" not in ops(simplified(reduce("sum", [C], hot)))


def test_a_one_hot_row_within_a_sum_leaves_it() -> None:
    """The backward of cross entropy: `sum(one_hot - probability)` needs no walk for the first part."""
    total = simplified(reduce("sum", [C], apply("sub", one_hot(LABEL, ROW), X)))
    assert [node.args[0] for node in ir.topological([total]) if node.op == "reduce"] == [X]


def test_a_one_hot_sum_over_more_axes_still_sums_the_others() -> None:
    total = simplified(reduce("sum", [N, C], one_hot(LABEL, X)))
    assert [node.attrs[1] for node in ir.topological([total]) if node.op == "reduce"] == [(N,)]


def test_a_choice_by_another_question_is_no_one_hot_row() -> None:
    for question in (apply("ge", index(C), LABEL), apply("eq", index(C), index(C * 2)), apply("eq", X, ROW)):
        body = apply("where", question, X, ZERO)
        assert simplified(reduce("sum", [C], body)) is reduce("sum", [C], body)


def test_a_value_per_row_under_conditions_is_counted() -> None:
    above, below = apply("gt", X, ZERO), apply("lt", Y, COLUMN)
    body = apply("where", above, apply("where", below, ROW, ZERO), ZERO)
    total = simplified(reduce("sum", [C], body))
    assert [ROW in ir.topological([node]) for node in ir.topological([total]) if node.op == "reduce"] == [False]
    for row in (TENSORS["row"], torch.tensor([float("nan"), float("inf")], dtype=F64)):
        for x in (TENSORS["x"], TENSORS["x"].abs().neg()):  # where nothing is counted it is 0, even of nan
            tensors = {**TENSORS, "row": row, "x": x}
            own, exact = evaluate([total, reduce("sum", [C], body)], tensors, SIZES)
            torch.testing.assert_close(own, exact, rtol=0, atol=0, equal_nan=True)


def test_a_weighted_log_softmax_is_split() -> None:
    shifted, log_total = softmax_parts(X)
    weighted = simplified(reduce("sum", [C], apply("mul", Y, log_softmax(X))))
    assert weighted is apply(
        "sub",
        reduce("sum", [C], apply("mul", Y, shifted)),
        apply("mul", log_total, reduce("sum", [C], Y)),
    )


def test_a_log_softmax_is_split_however_deep_it_is_in_a_product() -> None:
    shifted, log_total = softmax_parts(X)
    inner, weight = apply("mul", Y, log_softmax(X)), apply("mul", Y, ROW)
    for deep in (apply("mul", inner, ROW), apply("mul", ROW, inner)):
        assert simplified(reduce("sum", [C], deep)) is apply(
            "sub",
            reduce("sum", [C], apply("mul", weight, shifted)),
            apply("mul", log_total, reduce("sum", [C], weight)),
        )


def test_a_bare_log_softmax_is_split() -> None:
    shifted, log_total = softmax_parts(X)
    total = simplified(reduce("sum", [C], log_softmax(X)))
    count = ir.cast(index(C_SIZE), F64)
    assert total is apply("sub", reduce("sum", [C], shifted), apply("mul", log_total, count))


def test_recognises_log_softmax_only() -> None:
    axes = frozenset({C})
    shifted, log_total = softmax_parts(X)
    other, other_total = softmax_parts(Y)
    assert is_log_softmax(log_softmax(X), axes)
    assert not is_log_softmax(apply("sub", shifted, other_total), axes)
    assert not is_log_softmax(apply("sub", X, log_total), axes)
    assert not is_log_softmax(apply("add", shifted, log_total), axes)
    assert not is_log_softmax(log_softmax(X), frozenset({N}))
    assert not is_log_softmax(apply("sub", other, reduce("max", [C], Y)), axes)


def test_a_log_softmax_has_the_maximum_of_its_own_row() -> None:
    """Else its sum may be next to 0, and what is split would cancel."""
    for of_maximum, of_sum, is_one in (([C], [N, C], True), ([N, C], [C], False), ([N], [C], False)):
        shifted = apply("sub", X, reduce("max", of_maximum, X))
        node = apply("sub", shifted, apply("log", reduce("sum", of_sum, apply("exp", shifted))))
        assert is_log_softmax(node, frozenset({N, C})) == is_one


def test_one_hot_of_log_softmax_needs_the_row_once() -> None:
    """Cross entropy: the log-softmax at the label, with maximum and sum from one walk over the row."""
    loss = simplified(reduce("sum", [C], one_hot(LABEL, log_softmax(X))))
    assert ops(loss).count("reduce") == 2


# What there is one of per row is computed there.


def test_a_factor_per_row_is_divided_before_it_meets_elements() -> None:
    size = ir.cast(index(N_SIZE * C_SIZE), F64)
    once = apply("mul", X, apply("div", ROW, size))
    for product in (apply("mul", X, ROW), apply("mul", ROW, X)):
        assert simplified(apply("div", product, size)) is once
    scalar = reduce("sum", [N, C], Y)
    assert simplified(apply("div", apply("mul", ROW, scalar), size)) is apply("mul", ROW, apply("div", scalar, size))


def test_what_may_be_no_size_divides_where_it_stands() -> None:
    for divisor in (reduce("sum", [N], ROW), COLUMN, const(0.5, F64)):  # which may be tiny
        quotient = apply("div", apply("mul", X, ROW), divisor)
        assert simplified(quotient) is quotient
    equal = apply("div", apply("mul", X, Y), ir.cast(index(N_SIZE), F64))
    assert simplified(equal) is equal


# Exponentials that cannot overflow.


def test_exponentials_of_anything_else_stay() -> None:
    shift, _ = softmax_parts(Y)
    finite = apply("where", apply("isinf", reduce("max", [C], X)), ZERO, reduce("max", [C], X))
    for exponent in (
        X,
        apply("neg", apply("mul", X, Y)),
        apply("sub", X, reduce("max", [C], Y)),
        apply("sub", X, reduce("min", [C], X)),
        apply("sub", reduce("max", [C], X), X),
        apply("sub", X, finite),  # where the maximum is infinite, so is this
        apply("neg", apply("add", apply("abs", X), const(-1, F64))),
        apply("sub", apply("sub", X, reduce("max", [C], X)), apply("log", reduce("sum", [C], apply("exp", shift)))),
    ):
        assert simplified(apply("exp", exponent)).op == "exp"


class TestSoftmax:
    def test_the_exponential_of_a_log_softmax_has_one_division_per_row(self) -> None:
        after = simplified(apply("exp", log_softmax(X)))
        assert ops(after).count("exp") == 1 and "log" not in ops(after)
        (division,) = [node for node in ir.topological([after]) if node.op == "reciprocal"]
        assert division.axes == {N}

    def test_its_sum_needs_no_other_exponential(self) -> None:
        after = simplified(reduce("sum", [C], apply("mul", ROW, apply("exp", log_softmax(X)))))
        assert ops(after).count("reduce") == 2


def test_sigmoids_of_a_number_and_its_negative_share_what_they_are_made_of() -> None:
    for op in ("sigmoid", "log_sigmoid"):
        assert ops(simplified(apply(op, apply("neg", X)))) == ["load", f"{op}_neg"]


def test_the_complement_of_a_sigmoid_of_the_negative_is_exact_where_it_is_small() -> None:
    complement = apply("sub", ONE, apply("sigmoid", apply("neg", X)))
    assert simplified(complement) is apply("sigmoid", X)
    x = torch.tensor([-80.0, -30.0, -17.0, -1.0, 0.0, 1.0, 17.0, 90.0])
    exact, eager, folded = torch.sigmoid(x.double()), 1 - torch.sigmoid(-x), torch.sigmoid(x)
    assert ((folded - exact).abs() <= 2**-23 * exact).all()
    assert eager[1] == 0 and (eager[2] - exact[2]).abs() > 0.5 * exact[2]


def test_a_choice_by_a_label_is_made_once() -> None:
    ignored, weight = const(-1, I64), load("column", C).attrs[0]
    counted, uncounted = apply("ne", LABEL, ignored), apply("eq", LABEL, ignored)
    plain = apply("where", counted, ir.load(weight, [LABEL]), ZERO)
    safe = apply("where", uncounted, const(0, I64), LABEL)
    for choice in (apply("where", uncounted, ZERO, ir.load(weight, [safe])), apply("where", counted, plain, ZERO)):
        assert simplified(choice) is plain
