"""What small tensors tell of an op is what torch finds of fake ones, and symbols are asked no more than torch asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autogen.tracing.aten.probes import probed
from autogen.tracing.symbols import Symbols

aten = torch.ops.aten

UNARY: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.exp.default, ()),
    (aten.neg.default, ()),
    (aten.gt.Scalar, (0,)),
    (aten.mul.Tensor, (2.5,)),
    (aten.pow.Tensor_Scalar, (2,)),
    (aten.div.Tensor, (2,)),
    (aten.clamp.default, (0, 1.5)),
    (aten.isnan.default, ()),
    (aten.clone.default, ()),
    (aten.sum.default, ()),
    (aten.sum.dim_IntList, ([-1],)),
    (aten.sum.dim_IntList, ([0], True)),
    (aten.mean.default, ()),
    (aten.amax.default, ([-1], True)),
    (aten.any.dim, (0,)),
    (aten.argmax.default, (-1,)),
    (aten.cumsum.default, (0,)),
    (aten.var.correction, ([-1],)),
    (aten._log_softmax.default, (-1, False)),
    (aten.zeros_like.default, ()),
]
BINARY = [aten.add.Tensor, aten.div.Tensor, aten.maximum.default, aten.eq.Tensor, aten.logical_and.default]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]


def expressions(numbers: Any) -> list[Any]:
    return [each if type(each) is int else each.node.expr for each in numbers]


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.layout,
        expressions(tensor.shape),
        expressions(tensor.stride()),
    )


def asked(symbols: Symbols) -> tuple[Any, ...]:
    shapes = symbols.shapes
    return [each.expr for each in shapes.guards], dict(shapes.deferred_runtime_asserts)


def agree(symbols: Symbols, func: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the op was probed; if so, that the result is torch's, and that torch has to ask no more."""
    with symbols.mode:
        found = probed(func, args, kwargs)
        if found is None:
            return False
        before = asked(symbols)
        expected = func(*args, **kwargs)
        assert asked(symbols) == before
    both = zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, expected)), strict=True)
    assert all(described(one) == described(other) for one, other in both)
    return True


def fakes(*shape: int) -> tuple[Symbols, torch.Tensor, torch.Tensor]:
    """Two fake tensors of symbols that are known to be the same."""
    symbols = Symbols(static=False)
    one, other = (symbols.tensor(torch.zeros(shape), name) for name in "ab")
    for size, same in zip(one.shape, other.shape, strict=True):
        assert size == same
    return symbols, one, other


GEOMETRIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x,
    "a row": lambda x: x[0],
    "a column": lambda x: x[..., :1],
    "in one column": lambda x: x[..., 0],
    "an expanded row": lambda x: x[0].expand(x.shape),
    "an expanded column": lambda x: x[..., :1].expand(x.shape),
    "a number": lambda x: x.sum(),
    "an expanded number": lambda x: x.sum().expand(x.shape),
    "transposed": lambda x: x.transpose(0, -1),
    "a part": lambda x: x[1:],
    "in two columns": lambda x: x[..., 1:3],
}


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.sampled_from(sorted(GEOMETRIES)),
    st.sampled_from(sorted(GEOMETRIES)),
    st.lists(st.sampled_from(DTYPES), min_size=2, max_size=2),
)
def test_agrees_with_torch(shape: list[int], one: str, other: str, dtypes: list[torch.dtype]) -> None:
    symbols, *inputs = fakes(*shape)
    with symbols.mode:
        x, y = (
            GEOMETRIES[name](each.to(dtype)) for name, each, dtype in zip((one, other), inputs, dtypes, strict=True)
        )
    for func, args in UNARY:
        outcome(symbols, func, x, *args)
    for func in BINARY:
        outcome(symbols, func, x, y)
    outcome(symbols, aten.where.self, inputs[0] > 0, x, y)


def outcome(symbols: Symbols, func: Any, *args: Any) -> None:
    """Agree, or be refused where torch refuses."""
    try:
        agree(symbols, func, *args)
    except (RuntimeError, IndexError):
        with symbols.mode:
            assert probed(func, args, {}) is None


@pytest.mark.parametrize(("func", "args"), UNARY, ids=str)
def test_common_ops_are_probed(func: Any, args: tuple[Any, ...]) -> None:
    symbols, x, _y = fakes(6, 7)
    assert agree(symbols, func, x, *args)


@pytest.mark.parametrize("func", BINARY, ids=str)
@pytest.mark.parametrize("geometry", sorted(set(GEOMETRIES) - {"transposed", "a part", "in two columns"}))
def test_common_operands_are_probed(func: Any, geometry: str) -> None:
    symbols, x, y = fakes(6, 6)
    assert x.shape[0] == x.shape[1]
    with symbols.mode:
        other = GEOMETRIES[geometry](y)
    assert agree(symbols, func, other, other)
    assert agree(symbols, func, x, other)


def test_losses_are_probed() -> None:
    symbols, x, y = fakes(6, 7)
    target = symbols.tensor(torch.zeros(6, dtype=torch.int64), "target")
    assert target.shape[0] == x.shape[0]
    assert agree(symbols, aten.nll_loss_forward.default, x, target, None, 1, -100)
    assert agree(symbols, aten.binary_cross_entropy_with_logits.default, x, y)
    assert agree(symbols, aten.smooth_l1_loss.default, x, y, 0)
    assert agree(symbols, aten.huber_loss_backward.default, x, x, y, 1, 0.5)


def test_a_size_may_be_a_number() -> None:
    symbols, x, _y = fakes(6, 7)
    assert agree(symbols, aten.div.Tensor, x, x.shape[0])
    assert agree(symbols, aten.mul.Tensor, x, x.shape[0] * x.shape[1])


def test_dtypes_are_those_of_numbers_and_of_the_default() -> None:
    symbols, x, _y = fakes(6, 7)
    with symbols.mode:
        whole = x.long()
    assert agree(symbols, aten.mul.Tensor, whole, 2)
    assert agree(symbols, aten.mul.Tensor, whole, 2.0)
    torch.set_default_dtype(torch.float64)
    try:
        assert agree(symbols, aten.mul.Tensor, whole, 2.0)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("func", "shapes"),
    [
        (aten.add.Tensor, [(6, 7), (6, 7)]),
        (aten.add.Tensor, [(6, 1), (6, 7)]),
        (aten.add.Tensor, [(6, 7), (7,)]),
        (aten.add.Tensor, [(6, 6), (6,)]),
        (aten.add_.Tensor, [(6, 7), (6, 7)]),
        (aten.clamp.Tensor, [(1, 7), (6, 1), (6, 7)]),
    ],
)
def test_symbols_that_have_to_be_equal_become_one(func: Any, shapes: list[tuple[int, ...]]) -> None:
    """The same as those that torch finds to be equal, and nothing else is asked."""

    def met(run: Callable[..., Any]) -> tuple[Any, ...]:
        symbols = Symbols(static=False)
        given = [symbols.tensor(torch.zeros(shape), name) for shape, name in zip(shapes, "abc", strict=False)]
        with symbols.mode:
            assert run(given) is not None
        sizes = expressions([size for each in given for size in each.shape])
        guards, asserts = asked(symbols)
        return [[one == other for one in sizes] for other in sizes], {type(each) for each in guards}, asserts

    assert met(lambda given: probed(func, given, {})) == met(lambda given: func(*given))


def test_sizes_that_differ_are_left_to_torch() -> None:
    symbols = Symbols(static=False)
    x, y = symbols.tensor(torch.zeros(6, 7), "a"), symbols.tensor(torch.zeros(5, 7), "b")
    with symbols.mode:
        assert probed(aten.add.Tensor, (x, y), {}) is None
        with pytest.raises(RuntimeError, match="must match"):
            aten.add.Tensor(x, y)


def test_a_write_gives_back_what_was_written() -> None:
    symbols, x, y = fakes(6, 7)
    for func, *args in (
        (aten.add_.Tensor, y),
        (aten.clamp_.default, 0, 1.5),
        (aten.clamp_min_.default, 0),
        (aten.masked_fill_.Scalar, y > 0, 2),
        (aten.pow_.Scalar, 2),
    ):
        assert agree(symbols, func, x, *args)
        with symbols.mode:
            assert probed(func, (x, *args), {}) is x


def test_other_writes_are_left_to_torch() -> None:
    symbols, x, y = fakes(6, 7)
    with symbols.mode:
        row = y[0]
        assert probed(aten.add_.Tensor, (row, x), {}) is None  # more than it has room for
        assert probed(aten.add_.Tensor, (x.long(), y), {}) is None
        assert probed(aten.add_.Tensor, (row.expand(x.shape), y), {}) is None  # several numbers in one place


def test_ops_that_assert_are_left_to_torch() -> None:
    symbols = Symbols(static=False)
    x = symbols.tensor(torch.zeros(2, 3, 5, 4), "x")
    target = symbols.tensor(torch.zeros(2, 5, 4, dtype=torch.int64), "target")
    with symbols.mode:
        number = x.sum()
        args = number, x, target, None, 1, -100, number
        assert probed(aten.nll_loss2d_backward.default, args, {}) is None
        for size, other in zip(target.shape, (*x.shape[:1], *x.shape[2:]), strict=True):
            assert size == other
    assert agree(symbols, aten.nll_loss2d_backward.default, *args)


def test_a_size_that_may_be_one_is_left_to_torch() -> None:
    symbols, x, _y = fakes(6, 7)
    with symbols.mode:
        part = x[1:]
        assert probed(aten.exp.default, (part,), {}) is None
        assert part.shape[0] >= 2
        assert probed(aten.exp.default, (part,), {}) is not None


def test_a_size_that_depends_on_values_is_left_to_torch() -> None:
    symbols, x, _y = fakes(6, 7)
    with symbols.mode:
        unknown = x.new_empty(symbols.shapes.create_unbacked_symint())
        assert probed(aten.exp.default, (unknown,), {}) is None


def test_other_ops_and_tensors_are_left_to_torch() -> None:
    symbols, x, y = fakes(6, 7)
    with symbols.mode:
        for func, *args in (
            (aten.view.default, x, [-1]),  # of the same memory
            (aten.bernoulli.default, x),
            (aten.nonzero.default, x),
            (aten.exp.default, x.t()),
            (aten.exp.default, x.to(torch.complex64)),
            (aten.add.Tensor, x, torch.zeros(6, 7, device="meta")),
            (aten.gather.default, x, 0, y.long()),  # whose sizes may differ
        ):
            assert probed(func, tuple(args), {}) is None, func
