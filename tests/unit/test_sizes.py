"""Size expressions evaluated at launch are what sympy says they are."""

from __future__ import annotations

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._sympy.functions import (
    FloatPow,
    FloatTrueDiv,
    FloorDiv,
    IntTrueDiv,
    Mod,
    OpaqueUnaryFn_sqrt,
    ToFloat,
)

from autogen.ir.sizes import Evaluator

N, C, D1 = sympy.symbols("N C D1", integer=True, positive=True)

POSITIVE = st.recursive(
    st.one_of(st.sampled_from([N, C, D1]), st.integers(1, 9).map(sympy.Integer)),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a: a**2, inner),
        st.builds(sympy.Max, inner, inner),
    ),
    max_leaves=4,
)
EXPRESSIONS = st.one_of(POSITIVE, st.builds(FloorDiv, POSITIVE, POSITIVE), st.builds(Mod, POSITIVE, POSITIVE))


@given(st.lists(EXPRESSIONS, max_size=4), st.tuples(*[st.integers(1, 2**40)] * 3))
def test_equals_substitution(expressions: list[sympy.Expr], numbers: tuple[int, int, int]) -> None:
    sizes = dict(zip(("N", "C", "D1"), numbers, strict=True))
    known = dict(zip((N, C, D1), map(sympy.Integer, numbers), strict=True))
    # At once, as sympy simplifies what it substitutes into: `Mod(Max(6*N, 8), 6)` is 0 to it.
    assert Evaluator(expressions)(sizes) == tuple(int(e.xreplace(known)) for e in expressions)


def test_gives_integers_exact_beyond_64_bits() -> None:
    (product,) = Evaluator([N * C * D1])({"N": 2**31, "C": 2**31, "D1": 3})
    assert type(product) is int and product == 3 * 2**62


def test_needs_only_the_sizes_that_occur() -> None:
    assert Evaluator([N + 1, sympy.Integer(7)])({"N": 2, "unused": 5}) == (3, 7)
    with pytest.raises(KeyError, match="N"):
        Evaluator([N])({"C": 1})


def test_floats_have_all_their_digits() -> None:
    s = sympy.Symbol("s", real=True)
    assert Evaluator([s - 0.1234567890123456, s * sympy.oo])({"s": 1.0}) == (1 - 0.1234567890123456, math.inf)


def test_refuses_what_python_has_no_function_for() -> None:
    with pytest.raises(NotImplementedError, match="lgamma"):
        Evaluator([sympy.Function("lgamma")(N)])


def test_of_nothing_is_nothing() -> None:
    assert Evaluator([])({}) == ()


def test_is_compiled_when_it_is_first_run() -> None:
    evaluator = Evaluator([N * C])
    assert "run" not in vars(evaluator)
    assert evaluator({"N": 3, "C": 4}) == (12,) and "run" in vars(evaluator)


def test_functions_of_torch() -> None:
    """What Dynamo makes of `math.sqrt` and of quotients, of sizes and of numbers."""
    s = sympy.Symbol("s", real=True)
    expressions = [OpaqueUnaryFn_sqrt(N), IntTrueDiv(1, N), FloatPow(s, ToFloat(N)), FloatTrueDiv(s, 3.0)]
    assert Evaluator(expressions)({"N": 2, "s": 0.1}) == (math.sqrt(2), 0.5, 0.1**2.0, 0.1 / 3.0)
