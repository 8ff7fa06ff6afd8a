"""MultiLabelMarginLoss, whose kernels are written by hand, against torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import autogen.functional
import autogen.losses
from autogen import autogen_loss, policy
from autogen.losses.handwritten import make_multilabel_margin
from tests.interpret.compare import Call, check
from tests.interpret.samples import Samples
from tests.interpret.strategies import DTYPES, UPSTREAMS, Draw, layouts, tensors
from tests.tiers import examples

REDUCTIONS = ("none", "mean", "sum")
inf, nan = math.inf, math.nan


def labels(n: int, c: int, most: int, seed: int = 0) -> Tensor:
    """Up to `most` targets per row, some of them twice, then -1, then anything."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-1, c, (n, c), generator=generator)
    ends = torch.randint(0, min(c, most) + 1, (n, 1), generator=generator)
    slot = torch.arange(c)
    return torch.where(slot < ends, found.clamp(min=0), torch.where(slot == ends, -1, found))


def call(*inputs: Tensor, **options: Any) -> Call:
    return Call("MultiLabelMarginLoss", options, inputs, (True, False))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
# One class; a step per row; one that is full; several steps; few targets of many classes.
@pytest.mark.parametrize(("n", "c", "most"), [(3, 1, 1), (17, 13, 13), (4, 16, 16), (3, 100, 90), (2, 5000, 9)])
def test_sizes(n: int, c: int, most: int, reduction: str, dtype: torch.dtype) -> None:
    check(call(Samples(dtype).real(n, c), labels(n, c, most), reduction=reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "target"), [((), ()), ((), (1,)), ((1,), ()), ((1,), (1,)), ((7,), (7,)), ((1, 7), (1, 7))]
)
def test_without_a_batch(shape: tuple[int, ...], target: tuple[int, ...], reduction: str) -> None:
    x = Samples().real(*shape)
    check(call(x, labels(1, max(1, x.numel()), 3).view(target), reduction=reduction))


def arguments_of(x: Tensor, target: Tensor, reduction: str = "mean") -> dict[str, Any]:
    """What the kernels are given for a call."""
    legacy = {"size_average": None, "reduce": None}
    return {"input": x, "target": target, **legacy, "reduction": reduction, "is_autocast": False}


def groups(x: Tensor) -> list[tuple[int, int]]:
    """How both kernels read rows: how far these are aligned, and in which groups they are read."""
    arguments = arguments_of(x, labels(*x.shape, 3))
    forward = make_multilabel_margin().forward(arguments)
    backward = make_multilabel_margin().backward(arguments, (), torch.ones(()), ("input",))
    launches = (*forward.launches, *backward.launches)
    return [(launch.arguments["ALIGN"], launch.arguments["GROUP"]) for launch in launches]


@pytest.mark.parametrize(("dtype", "group"), [(torch.float64, 2), (torch.float32, 4), (torch.bfloat16, 8)], ids=str)
@pytest.mark.parametrize("c", [37, 131])
def test_rows_that_begin_anywhere(c: int, dtype: torch.dtype, group: int) -> None:
    """Rows are read in groups, beyond their ends; what is there is no class."""
    x, target = Samples(dtype).real(11, c), labels(11, c, 5)
    assert groups(x) == [(1, group)] * 2
    check(call(x, target))
    # From an address that is no multiple of 16.
    check(call(torch.cat([x.new_ones(1), x.flatten()])[1:].view(11, c), target))
    # With something between the rows: gradients are without, and so begin elsewhere.
    apart = torch.cat([x, torch.full((11, 1), nan, dtype=dtype)], 1)[:, :c]
    assert groups(apart) == [(1, group), (1, 1)]
    check(call(apart, target))


def test_which_rows_are_read_in_groups() -> None:
    assert groups(torch.ones(5, 36)) == [(4, 1)] * 2
    assert groups(torch.ones(5, 63)) == [(1, 1)] * 2, "as many lanes as columns"
    assert groups(torch.ones(35, 5).t()) == [(1, 1)] * 2, "columns apart"


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "targets",
    [
        [[-1, 0, 1, 2], [-1, -1, -1, -1]],  # no targets
        [[0, 1, 2, 3], [3, 2, 1, 0]],  # no other classes
        [[2, 2, 2, 2], [2, 2, -1, 2]],  # the same target again
        [[3, 0, -1, 1], [0, -1, 1, 3]],
        [[1, 2, 3, -1], [1, 2, 1, -1]],
    ],
)
def test_targets(targets: list[list[int]], reduction: str) -> None:
    check(call(Samples().real(2, 4), torch.tensor(targets), reduction=reduction))


def test_all_but_one_are_targets() -> None:
    """One class has the hinges of all others: a long sum, which must not drift."""
    c = 1000
    target = torch.arange(c)
    target[-1] = -1
    check(call(Samples().real(c), target))


def test_long_sums_in_double_precision() -> None:
    """More exact than torch, which adds up one by one."""
    x, target = Samples(torch.float64).real(1000), torch.arange(1000)
    target[500] = -1
    with policy("mandatory"):
        loss = autogen.losses.MultiLabelMarginLoss(reduction="none")(x, target)
    hinges = (1 - x[:500, None] + x[None, 500:]).clamp(min=0)
    exact = math.fsum(hinges.flatten().tolist()) / 1000
    assert abs(loss.item() - exact) <= 4e-16 * exact
    torch.testing.assert_close(loss, torch.nn.MultiLabelMarginLoss(reduction="none")(x, target), rtol=1e-12, atol=0)


def test_ties() -> None:
    """A pair whose hinge is 0 has no gradient."""
    x = torch.tensor([[2.0, 1.0, 0.0, -1.0], [1.0, 0.0, 0.0, 0.0]])
    for dtype in DTYPES:
        for target in ([[0, -1, 0, 0]] * 2, [[0, 1, -1, 0]] * 2, [[1, 2, 3, -1]] * 2):
            check(call(x.to(dtype), torch.tensor(target), reduction="none"))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_special_values(reduction: str) -> None:
    special = torch.tensor([inf, -inf, nan, 0.0, -0.0, 1e4, -1e4, 1e-40])
    for at in range(3):
        x = Samples().real(len(special), 6)
        x[:, at] = special
        for target in ([0, 1, -1, 0, 0, 0], [2, -1, 0, 0, 0, 0], [0, 1, 2, 3, 4, -1]):
            check(call(x, torch.tensor([target] * len(special)), reduction=reduction))
        x[:, 4] = special.flip(0)
        check(call(x, torch.tensor([[0, 4, -1, 0, 0, 0]] * len(special)), reduction=reduction))
        check(call(x, torch.tensor([[4, -1, -1, 0, 0, 0]] * len(special)), reduction=reduction))


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_layouts(upstream: str, reduction: str) -> None:
    """Inputs and targets are read where they are."""
    x, target = Samples().real(9, 21), labels(9, 21, 12)
    for own, their in (
        (x.t().contiguous().t(), target.repeat_interleave(2, 1)[:, ::2]),
        (torch.cat([x, x], 1)[:, 1:22], target.t().contiguous().t()),
        (x[:1].expand(9, 21), target[3:4].expand(9, 21)),
    ):
        check(replace(call(own, their, reduction=reduction), upstream=upstream))


@pytest.mark.parametrize(("size_average", "reduce"), [(True, True), (False, True), (None, False), (False, None)])
def test_legacy_flags(size_average: bool | None, reduce: bool | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(call(Samples().real(5, 7), labels(5, 7, 5), size_average=size_average, reduce=reduce))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        check(call(Samples(dtype).real(5, 7), labels(5, 7, 5)))


@pytest.mark.slow
def test_gradcheck() -> None:
    x = Samples(torch.float64).real(4, 6).requires_grad_()
    for reduction in REDUCTIONS:
        loss = autogen.losses.MultiLabelMarginLoss(reduction=reduction)
        with policy("mandatory"):
            assert torch.autograd.gradcheck(lambda a, loss=loss: loss(a, labels(4, 6, 4)), x)


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((2, 3), torch.tensor([[0, 3, -1], [0, -1, -1]])),
        ((2, 3), torch.tensor([[0, -2, -1], [0, -1, -1]])),
        ((2, 3), torch.zeros(3, dtype=torch.int64)),
        ((2, 3, 1), torch.zeros(2, 3, 1, dtype=torch.int64)),
        ((2, 0), torch.zeros(2, 0, dtype=torch.int64)),
    ],
)
def test_errors_are_torchs(shape: Sequence[int], target: Tensor) -> None:
    assert check(call(torch.ones(*shape), target)).error is not None


def test_targets_that_are_no_classes() -> None:
    """On a GPU nobody looks at the targets first: nothing is read there, and the row's results are nan."""
    x, target = Samples().real(3, 5), labels(3, 5, 2)
    target[1] = torch.tensor([0, 2**40, 1, -1, -1])
    arguments = arguments_of(x, target, reduction="none")
    loss = make_multilabel_margin()
    assert loss.refuse(arguments, ()) is None and loss.reads(arguments) == ()
    assert loss.read(arguments) == "targets that are no classes"
    forward = loss.forward(arguments)
    backward = loss.backward(arguments, forward.saved, torch.ones(3), ("input",))
    for launch in (*forward.launches, *backward.launches):
        launch(x.device)
    assert forward.output.isnan().tolist() == [False, True, False]
    assert backward.gradients["input"].isnan().all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("batch", [(), (4,)])
def test_within_a_loss(batch: tuple[int, ...], reduction: str) -> None:
    """What follows the first -1 is no target; torch's own formula adds class 0."""

    def loss(x: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x * 2, target, reduction=reduction).exp()

    x, target = Samples().real(*batch, 6), torch.tensor([3, 0, -1, 1, -1, -1]).expand(*batch, 6)
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(x, target), loss(x, target))


def test_on_meta() -> None:
    """A plan needs no data, and keeps nothing between forward and backward."""
    x, target = torch.empty(6, 50, device="meta"), torch.empty(6, 50, dtype=torch.int64, device="meta")
    arguments = arguments_of(x, target)
    loss = make_multilabel_margin()
    assert loss.refuse(arguments, ("input",)) is None
    forward = loss.forward(arguments)
    assert forward.output.shape == () and forward.saved == ()
    backward = loss.backward(arguments, (), torch.empty((), device="meta"), ("input",))
    assert backward.gradients["input"].shape == x.shape
    assert len(forward.launches) == len(backward.launches) == 1


def test_too_many_classes() -> None:
    x, target = torch.empty(2, 8193, device="meta"), torch.empty(2, 8193, dtype=torch.int64, device="meta")
    arguments = arguments_of(x, target)
    assert make_multilabel_margin().refuse(arguments, ()) == "more than 8192 classes"


@st.composite
def calls(draw: Draw) -> Call:
    dtype = draw(st.sampled_from(DTYPES))
    n, c = draw(st.sampled_from((1, 2, 3, 5, 33))), draw(st.sampled_from((1, 2, 3, 4, 7, 16, 40, 131, 1025)))
    # In double precision torch is its own judge, though not an exact one of a long sum.
    most = draw(st.sampled_from((0, 1, 3, 7) if dtype == torch.float64 else (0, 1, 3, 17, 150)))
    target = labels(n, c, most, draw(st.integers(0, 9999)))
    batched = draw(st.integers(0, 4)) > 0
    x = draw(tensors("real", (n, c) if batched else (c,), dtype))
    target = target if batched else target[0]
    if dtype != torch.float64 or c < 100:  # expanded, all are labels
        target = draw(layouts(target))
    options = {"reduction": draw(st.sampled_from(REDUCTIONS))}
    wanted = draw(st.booleans()), False
    return Call("MultiLabelMarginLoss", options, (x, target), wanted, draw(st.sampled_from(UPSTREAMS)))


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(call=calls())
def test_random_calls(call: Call) -> None:
    check(call)
