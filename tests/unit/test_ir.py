"""The IR: equal nodes are one object, axes follow from the arguments, the verifier sees what is broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from autogen import ir
from autogen.ir import Axis, Buffer, Node
from autogen.ir.substitution import substitute
from tests.unit.evaluate import evaluate
from tests.unit.verify import verify

F32, F64, I64 = torch.float32, torch.float64, torch.int64
N_SIZE, C_SIZE = sympy.symbols("N C", integer=True, positive=True)
N, C = Axis("n", N_SIZE), Axis("c", C_SIZE)


def buffer(name: str, *shape: sympy.Expr, dtype: torch.dtype = F64, role: str = "input") -> Buffer:
    return Buffer(name, dtype, shape, ir.contiguous_strides(shape), role)


X = ir.load(buffer("x", N_SIZE, C_SIZE), (N, C))
Y = ir.load(buffer("y", N_SIZE, C_SIZE), (N, C))
ROW = ir.load(buffer("row", N_SIZE), (N,))
LABEL = ir.load(buffer("label", N_SIZE, dtype=I64), (N,))
SIZES = {"N": 3, "C": 4}
TENSORS = {
    "x": torch.arange(12.0, dtype=F64).reshape(3, 4).sin(),
    "y": torch.arange(12.0, dtype=F64).reshape(3, 4).cos(),
    "row": torch.tensor([1.0, -2.0, 3.0], dtype=F64),
    "label": torch.tensor([3, 0, 2]),
}


def per_row(node: Node) -> torch.Tensor:
    """The values of a node that mentions n alone."""
    assert node.axes == {N}
    return evaluate([node], TENSORS, SIZES)[0].flatten()


# Building nodes.


class TestHashConsing:
    @given(st.recursive(
        st.sampled_from(["x", "y", "row", "one"]),
        lambda inner: st.tuples(st.sampled_from(["add", "mul", "maximum", "neg", "sum"]), inner, inner),
        max_leaves=8,
    ))  # fmt: skip
    def test_building_twice_gives_one_object(self, recipe: Any) -> None:
        leaves = {"x": X, "y": Y, "row": ROW}

        def build(recipe: Any) -> Node:
            if isinstance(recipe, str):
                return leaves[recipe] if recipe in leaves else ir.const(1, F64)
            op, left, right = recipe
            if op == "neg":
                return ir.apply("neg", build(left))
            if op == "sum":
                return ir.reduce("sum", [C], build(left))
            return ir.apply(op, build(left), build(right))

        assert build(recipe) is build(recipe)
        verify([build(recipe)])

    @pytest.mark.parametrize("number", [0.0, -0.0, math.nan, math.inf, 1.5])
    def test_a_constant_is_one_object(self, number: float) -> None:
        assert ir.const(number, F64) is ir.const(number, F64)

    def test_constants_that_differ_in_sign_of_zero_or_dtype_are_two(self) -> None:
        zeros = [ir.const(0.0, F64), ir.const(-0.0, F64), ir.const(0.0, F32), ir.const(0, I64)]
        zeros.append(ir.const(False, torch.bool))
        assert len({id(zero) for zero in zeros}) == len(zeros)

    def test_axes_of_one_name_but_different_sizes_are_two(self) -> None:
        assert Axis("n", N_SIZE) == N
        assert Axis("n", C_SIZE) != N
        assert ir.index(Axis("n", C_SIZE)) is not ir.index(N)

    def test_the_order_of_reduced_axes_does_not_matter(self) -> None:
        assert ir.reduce("sum", [N, C], X) is ir.reduce("sum", [C, N], X)


class TestAxes:
    def test_of_leaves(self) -> None:
        assert ir.const(1, F64).axes == set()
        assert ir.index(N * 2 + C_SIZE).axes == {N}
        assert X.axes == {N, C}

    def test_of_a_computed_index_are_those_of_the_index(self) -> None:
        assert ir.load(X.attrs[0], (sympy.S.Zero, LABEL)).axes == {N}

    def test_along_a_dimension_of_stride_0_a_computed_index_is_checked_beside_the_load(self) -> None:
        expanded = Buffer("x", F64, (N_SIZE, C_SIZE), (sympy.S.Zero, sympy.S.One), "input")
        read = ir.load(expanded, (LABEL, C))
        assert read.op == "where" and read.axes == {N, C}
        assert read.args[1] is ir.load(expanded, (sympy.S.Zero, C))

    def test_of_an_op_are_those_of_its_arguments(self) -> None:
        assert ir.apply("add", ROW, X).axes == {N, C}

    def test_a_reduction_binds_its_axes(self) -> None:
        assert ir.reduce("sum", [C], X).axes == {N}
        assert ir.reduce("max", [N, C], X).axes == set()

    def test_a_scan_keeps_its_axis(self) -> None:
        assert ir.scan("sum", C, X).axes == {N, C}


class TestScans:
    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("kind", ir.SCANS)
    def test_of_the_same_all_along(self, kind: str, reverse: bool) -> None:
        body = ir.apply("mul", ROW, ir.const(0.5, F64))
        whole = ir.apply("mul", body, ir.cast(ir.apply("gt", Y, ir.const(-2.0, F64)), F64))  # the same, along C
        found, expected = (ir.scan(kind, C, each, reverse=reverse) for each in (body, whole))
        assert (found.op == "scan") == (kind == "prod") and expected.op == "scan"
        verify([found])
        values = evaluate([found, expected], TENSORS, SIZES)
        torch.testing.assert_close(*torch.broadcast_tensors(*values))

    def test_is_built_anew_of_another_body_and_along_another_axis(self) -> None:
        scan = ir.scan("logaddexp", C, X, reverse=True)
        assert ir.rebuild(scan, [Y]) is ir.scan("logaddexp", C, Y, reverse=True)
        assert ir.along(scan, [N], X) is ir.scan("logaddexp", N, X, reverse=True)
        assert ir.replace([scan], {X: ROW})[0].op == "add"  # of what is the same all along


class TestDtypes:
    def test_half_precision_is_a_storage_format(self) -> None:
        half = ir.load(buffer("h", N_SIZE, dtype=torch.float16), (N,))
        assert half.dtype == F32
        assert ir.cast(half, torch.bfloat16) is half

    def test_a_cast_of_a_constant_is_a_constant(self) -> None:
        assert ir.cast(ir.const(2, I64), F32) is ir.const(2.0, F32)
        assert ir.cast(ir.const(0.5, F64), torch.bool) is ir.const(True, torch.bool)

    @pytest.mark.parametrize("number", [math.nan, math.inf])
    def test_a_cast_that_python_refuses_is_left_to_the_kernel(self, number: float) -> None:
        assert ir.cast(ir.const(number, F64), I64).op == "cast"

    def test_a_constant_index_is_a_number(self) -> None:
        assert ir.index(sympy.Integer(3)) is ir.const(3, I64)

    def test_an_op_refuses_dtypes_against_its_rule(self) -> None:
        with pytest.raises(TypeError):
            ir.apply("add", X, LABEL)

    def test_reducing_over_nothing_is_nothing(self) -> None:
        assert ir.reduce("sum", [], X) is X


class TestBuffer:
    def test_offset_is_the_sum_of_index_times_stride(self) -> None:
        assert buffer("x", N_SIZE, C_SIZE).offset((N, C)) == N * C_SIZE + C

    def test_contiguous_strides_are_torchs(self) -> None:
        shape = (2, 3, 4)
        assert ir.contiguous_strides([sympy.Integer(n) for n in shape]) == torch.empty(shape).stride()

    def test_a_dimension_of_size_one_is_never_stepped(self) -> None:
        assert ir.contiguous_strides([N_SIZE, sympy.S.One, C_SIZE]) == (C_SIZE, 0, 1)

    @pytest.mark.parametrize(
        ("shape", "strides", "text"),
        [
            ((), (), "float32 scalar"),
            ((N_SIZE,), (1,), "float32 (N,)"),
            ((N_SIZE, C_SIZE), (C_SIZE, 1), "float32 (N, C)"),
            ((N_SIZE, C_SIZE), (1, N_SIZE), "float32 (N, C), strides (1, N)"),
        ],
    )
    def test_describes_itself(self, shape: Any, strides: Any, text: str) -> None:
        assert Buffer("x", F32, shape, tuple(map(sympy.sympify, strides)), "input").describe() == text


# Changing graphs.


class TestTopological:
    def test_arguments_come_first_and_nodes_once(self) -> None:
        root = ir.apply("mul", ir.apply("add", X, Y), ir.apply("neg", X))
        order = ir.topological([root, X])
        assert len(order) == len(set(order)) == 5
        for node in order:
            assert all(order.index(arg) < order.index(node) for arg in node.args)

    def test_a_deep_graph_needs_no_deep_stack(self) -> None:
        node = X
        for _ in range(5000):
            node = ir.apply("add", node, Y)
        assert len(ir.topological([node])) == 5002
        assert ir.transform([node], lambda each: each) == [node]
        assert ir.replace([node], {Y: ROW})[0] is not node


class TestTransform:
    def test_applies_the_rule_from_the_leaves_up(self) -> None:
        seen: list[Node] = []

        def rule(node: Node) -> Node:
            seen.append(node)
            return Y if node is X else node

        (result,) = ir.transform([ir.apply("add", X, X)], rule)
        assert result is ir.apply("add", Y, Y)
        assert seen == [X, ir.apply("add", Y, Y)]

    def test_tells_what_moved(self) -> None:
        moves: list[tuple[Node, Node]] = []
        before = ir.apply("add", X, ROW)
        (after,) = ir.transform([before], lambda n: Y if n is X else n, lambda old, new: moves.append((old, new)))
        assert moves == [(X, Y), (before, after)]


class TestReplace:
    def test_rebuilds_what_is_above(self) -> None:
        total = ir.reduce("sum", [C], X)
        kept = ir.load(buffer("total", N_SIZE, role="saved"), (N,))
        (result,) = ir.replace([ir.apply("div", ROW, ir.apply("exp", total))], {total: kept})
        assert result is ir.apply("div", ROW, ir.apply("exp", kept))

    def test_does_not_look_below_a_replaced_node(self) -> None:
        inner, outer = ir.apply("exp", X), ir.apply("neg", ir.apply("exp", X))
        assert ir.replace([outer], {outer: ROW, inner: Y}) == [ROW]

    def test_leaves_a_graph_without_the_node_alone(self) -> None:
        root = ir.apply("neg", X)
        assert ir.replace([root], {Y: ROW}) == [root]


class TestSubstitute:
    def test_an_expression_for_an_axis(self) -> None:
        assert substitute(X, {C: sympy.Integer(2)}) is ir.load(X.attrs[0], (N, sympy.Integer(2)))
        assert substitute(ir.index(C + 1), {C: N}) is ir.index(N + 1)

    def test_two_axes_at_once_may_be_exchanged(self) -> None:
        square = ir.load(buffer("square", N_SIZE, N_SIZE), (N, C))
        assert substitute(square, {N: C, C: N}) is ir.load(square.attrs[0], (C, N))

    def test_a_computed_index_for_an_axis(self) -> None:
        picked = substitute(ir.apply("add", X, ir.cast(ir.index(C), F64)), {C: LABEL})
        expected = ir.apply("add", ir.load(X.attrs[0], (N, LABEL)), ir.cast(LABEL, F64))
        assert picked is expected

    @pytest.mark.parametrize("place", [ir.index(C + 1), ir.load(X.attrs[0], (N, C * 2))], ids=["index", "load"])
    def test_a_computed_index_inside_an_expression_is_refused(self, place: Node) -> None:
        with pytest.raises(NotImplementedError, match="computed index"):
            substitute(place, {C: LABEL})

    def test_a_computed_index_keeps_the_ones_that_were_there(self) -> None:
        cube = ir.load(buffer("cube", N_SIZE, C_SIZE, C_SIZE), (N, LABEL, C))
        both = substitute(cube, {C: LABEL})
        assert both is ir.load(cube.attrs[0], (N, LABEL, LABEL))
        verify([both])

    def test_what_a_reduction_binds_stays(self) -> None:
        centred = ir.apply("sub", X, ir.reduce("max", [C], X))
        picked = substitute(centred, {C: LABEL})
        expected = (TENSORS["x"] - TENSORS["x"].amax(1, keepdim=True))[torch.arange(3), TENSORS["label"]]
        torch.testing.assert_close(per_row(picked), expected)

    def test_an_axis_of_the_new_index_is_not_captured(self) -> None:
        rows = ir.reduce("sum", [N], X)  # per column
        with pytest.raises(NotImplementedError, match="is bound in"):
            substitute(rows, {C: LABEL})  # per row: the column sum at its label

    def test_an_axis_that_is_bound_beside_one_that_is_not(self) -> None:
        rows = ir.reduce("sum", [C], X)  # whose loop over the columns is its own
        with pytest.raises(NotImplementedError, match="is bound in"):
            substitute(ir.apply("sub", X, rows), {N: sympy.Integer(0), C: sympy.Integer(1)})

    @pytest.mark.parametrize("values", [{C: sympy.Integer(1)}, {C: N}, {N: C}, {C: LABEL}], ids=str)
    def test_a_scan_is_not_read_in_another_order(self, values: Any) -> None:
        with pytest.raises(NotImplementedError, match="is bound in"):
            substitute(ir.scan("sum", C, X), values)


# Verifying and printing.


def broken(op: str, args: tuple[Node, ...], dtype: torch.dtype, *attrs: Any, axes: Any = frozenset()) -> Node:
    """A node as no function of the IR would build it."""
    node = Node()
    node.op, node.args, node.dtype, node.attrs, node.axes, node.reduces = op, args, dtype, attrs, frozenset(axes), False
    return node


X_BUFFER = X.attrs[0]
BROKEN: dict[str, Callable[[], Node]] = {
    "storage dtype": lambda: broken("const", (), torch.float16, 1.0, "1.0"),
    "constant of an axis": lambda: broken("const", (), F64, 1.0, "1.0", axes=[N]),
    "index of another dtype": lambda: broken("index", (), F64, N),
    "index with an argument": lambda: broken("index", (X,), I64, N),
    "rank of a load": lambda: broken("load", (), F64, X_BUFFER, (N,)),
    "argument without a place": lambda: broken("load", (LABEL,), F64, X_BUFFER, (N, C)),
    "argument in two places": lambda: broken("load", (LABEL,), F64, X_BUFFER, (ir.hole(0), ir.hole(0))),
    "index that is no integer": lambda: broken("load", (ROW,), F64, X_BUFFER, (N, ir.hole(0))),
    "cast to itself": lambda: broken("cast", (X,), F64),
    "unknown reduction": lambda: broken("reduce", (X,), F64, "mean", (C,), axes=[N]),
    "reduction over nothing": lambda: broken("reduce", (X,), F64, "sum", (), axes=[N, C]),
    "reduced axis that is free": lambda: broken("reduce", (X,), F64, "sum", (C,), axes=[N, C]),
    "reduction that changes dtype": lambda: broken("reduce", (X,), F32, "sum", (C,), axes=[N]),
    "unknown scan": lambda: broken("scan", (X,), F64, "max", (C,), False, axes=[N, C]),
    "scan along an axis that is not there": lambda: broken("scan", (ROW,), F64, "sum", (C,), False, axes=[N, C]),
    "scan that changes dtype": lambda: broken("scan", (X,), F32, "sum", (C,), False, axes=[N, C]),
    "unknown op": lambda: broken("frobnicate", (X,), F64, axes=[N, C]),
    "dtype against the rule": lambda: broken("eq", (X, Y), F64, axes=[N, C]),
    "arguments against the rule": lambda: broken("add", (X, LABEL), F64, axes=[N, C]),
}


class TestVerify:
    @pytest.mark.parametrize("kind", BROKEN)
    def test_rejects(self, kind: str) -> None:
        with pytest.raises((AssertionError, TypeError)):
            verify([BROKEN[kind]()])

    def test_rejects_a_place_without_an_argument(self) -> None:
        with pytest.raises(AssertionError):
            verify([broken("load", (), F64, X_BUFFER, (N, ir.hole(0)), axes=[N])])

    def test_rejects_what_is_broken_deep_inside(self) -> None:
        root = broken("neg", (broken("const", (), torch.float16, 1.0, "1.0"),), torch.float16)
        with pytest.raises(AssertionError, match="storage dtype"):
            verify([X, root])

    def test_accepts_every_kind_of_node(self) -> None:
        picked = ir.load(X.attrs[0], (N, LABEL))
        one_hot = ir.apply("where", ir.apply("eq", ir.index(C), LABEL), X, ir.const(0, F64))
        scan = ir.scan("sum", C, X)
        verify([picked, ir.reduce("sum", [C], one_hot), scan, ir.cast(X, F32), ir.const(math.nan, F64)])


def test_downward_ends_where_it_is_told_to() -> None:
    below = ir.const(1.0, torch.float32)
    left, right = ir.apply("exp", below), ir.apply("log", below)
    root = ir.apply("add", left, ir.apply("mul", right, left))
    met = ir.downward([root], lambda node: node in (left, right))
    assert met == [root, left, root.args[1], right]
    assert set(ir.downward([root], lambda node: False)) == set(ir.topological([root]))


def test_prints_one_node_a_line_arguments_first() -> None:
    centred = ir.apply("sub", X, ir.reduce("max", [C], X))
    lines = [" ".join(line.split()) for line in ir.format_nodes([centred]).splitlines()]
    assert lines == [
        "%0 = load x[n, c] f64 {c, n}",
        "%1 = reduce max over c (%0) f64 {n}",
        "%2 = sub(%0, %1) f64 {c, n}",
    ]
    assert " ".join(repr(centred).split()) == lines[-1]


def test_prints_the_direction_of_a_scan() -> None:
    lines = ir.format_nodes([ir.scan("sum", C, X), ir.scan("sum", C, X, reverse=True)]).splitlines()
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "%1 = scan sum along c (%0) f64 {c, n}",
        "%2 = scan sum along c from the end (%0) f64 {c, n}",
    ]


def test_prints_computed_indices_numbers_and_casts() -> None:
    node = ir.cast(ir.apply("mul", ir.load(X.attrs[0], (N, LABEL)), ir.const(0.5, F64)), F32)
    lines = [" ".join(line.split()) for line in ir.format_nodes([node]).splitlines()]
    assert lines == [
        "%0 = load label[n] i64 {n}",
        "%1 = load x[n, %0] f64 {n}",
        "%2 = const 0.5 f64 {}",
        "%3 = mul(%1, %2) f64 {n}",
        "%4 = cast(%3) f32 {n}",
    ]
