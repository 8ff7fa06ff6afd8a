"""CosineEmbeddingLoss, whose kernels are written by hand, against torch."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import autogen.losses
from autogen import explain, policy
from autogen.losses.handwritten import make_cosine_embedding
from autogen.tiling import tiler
from tests.interpret.compare import Call, check, differentiable
from tests.interpret.launches import Launches
from tests.interpret.samples import Samples
from tests.interpret.strategies import DTYPES, UPSTREAMS, Draw, dtypes, layouts, tensors
from tests.tiers import examples

REDUCTIONS = ("none", "mean", "sum")
inf, nan = math.inf, math.nan


def rows(n: int, d: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two inputs and a target of 1, -1 and, which counts for nothing, 0."""
    samples = Samples(dtype, seed)
    return samples.real(n, d), samples.real(n, d), torch.arange(n) % 3 - 1


def call(*inputs: Tensor, wanted: tuple[bool, ...] = (True, True, False), **options: Any) -> Call:
    return Call("CosineEmbeddingLoss", options, inputs, wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
# Many rows per program; a few; one row per program; more than one step of the loop and a tail.
@pytest.mark.parametrize(("n", "d"), [(1100, 2), (100, 67), (3, 2048), (2, 5003)])
def test_sizes(n: int, d: int, reduction: str, dtype: torch.dtype) -> None:
    check(call(*rows(n, d, dtype), reduction=reduction, margin=-0.05))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_one_row_without_a_batch(sign: int, reduction: str) -> None:
    input1, input2, _ = rows(1, 9)
    check(call(input1[0], -input1[0] + input2[0], torch.tensor(sign), reduction=reduction, margin=-2.0))


@pytest.mark.parametrize("wanted", list(itertools.product((True, False), (True, False), (False,))))
def test_wanted_gradients(wanted: tuple[bool, ...]) -> None:
    check(call(*rows(9, 33), wanted=wanted))


@pytest.mark.parametrize("target", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.float16, torch.float64])
def test_dtype_of_the_target(target: torch.dtype) -> None:
    input1, input2, signs = rows(9, 5)
    check(call(input1, input2, signs.to(target), reduction="none"))
    if target == torch.uint8:
        check(call(input1, input2, torch.tensor([255, 254, 1] * 3, dtype=target), reduction="none"))
    if target.is_floating_point:
        check(call(input1, input2, (signs * 1.0009765625).to(target), reduction="none"))  # next to 1 and -1


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(DTYPES, 2)), ids=str)
def test_mixed_dtypes(first: torch.dtype, second: torch.dtype) -> None:
    input1, input2, target = rows(9, 5)
    for reduction in REDUCTIONS:
        check(call(input1.to(first), input2.to(second), target, reduction=reduction))


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_layouts(upstream: str, reduction: str) -> None:
    """Inputs and upstream gradients are read where they are."""
    input1, input2, target = rows(70, 41)
    transposed, sliced = input1.t().contiguous().t(), torch.cat([input2, input2], 1)[:, ::2]
    last, every_other = input1[:1].expand(70, 41), target.repeat_interleave(2)[::2]
    for inputs in (
        (transposed, sliced, every_other),
        (input2, transposed, target[:1].expand(70)),
        (last, input2, target),
    ):
        check(replace(call(*inputs, reduction=reduction), upstream=upstream))


def planned(input1: Tensor, input2: Tensor, target: Tensor) -> list[tuple[int, int]]:
    """How both kernels read rows: how far these are aligned, and in which groups they are read."""
    arguments = {"input1": input1, "input2": input2, "target": target, "margin": 0.0}
    arguments |= {"size_average": None, "reduce": None, "reduction": "mean", "is_autocast": False}
    forward = make_cosine_embedding().forward(arguments)
    backward = make_cosine_embedding().backward(arguments, forward.saved, torch.ones(()), ("input1", "input2"))
    launches = (*forward.launches, *backward.launches)
    return [(launch.arguments["ALIGN"], launch.arguments["GROUP"]) for launch in launches]


@pytest.mark.parametrize(("dtype", "group"), [(torch.float64, 2), (torch.float32, 4), (torch.bfloat16, 8)], ids=str)
@pytest.mark.parametrize("d", [67, 129, 1027])
def test_rows_that_begin_anywhere(d: int, dtype: torch.dtype, group: int) -> None:
    """Rows are read in groups, beyond their ends; what is there counts for nothing."""
    input1, input2, target = rows(37, d, dtype)
    assert planned(input1, input2, target) == [(1, group)] * 2
    check(call(input1, input2, target, margin=-0.05))
    # From an address that is no multiple of 16.
    moved = [torch.cat([each.new_ones(1), each.flatten()])[1:].view(37, d) for each in (input1, input2)]
    check(call(*moved, target))
    # With something between the rows: gradients are without, and so begin elsewhere.
    apart = [torch.cat([each, torch.full((37, 1), nan, dtype=dtype)], 1)[:, :d] for each in (input1, input2)]
    assert planned(*apart, target) == [(1, group), (1, 1)]
    check(call(*apart, target))


def test_which_rows_are_read_in_groups() -> None:
    target, whole, odd, halves = torch.ones(9), *(torch.ones(9, d) for d in (68, 67)), torch.ones(9, 67).half()
    assert planned(whole, whole, target) == [(4, 1)] * 2
    assert planned(whole.half(), whole.half(), target) == [(4, 8)] * 2
    assert planned(odd, halves, target) == [(1, 8)] * 2
    assert planned(odd, whole[:, :67], target) == [(1, 1)] * 2, "rows that begin differently"
    assert planned(odd, torch.ones(67, 9).t(), target) == [(1, 1)] * 2, "columns apart"
    assert planned(odd, odd[:1].expand(9, 67), target) == [(1, 1)] * 2, "the same row again"
    assert planned(odd[:, :5], odd[:, :5], target) == [(1, 1)] * 2, "short rows"


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_special_values(reduction: str) -> None:
    """Zero vectors, infinities, nan; identical, opposite and orthogonal vectors; large and tiny ones."""
    plain = torch.tensor([3.0, -4.0, 0.5])
    special = [
        torch.zeros(3), -plain, plain, 2 * plain, torch.tensor([4.0, 3.0, 0.0]), plain * 1e-20, plain * 1e-7,
        plain * 1e8, plain * 1e25, torch.tensor([inf, 1.0, 0.0]), torch.tensor([nan, 1.0, 0.0]),
    ]  # fmt: skip
    pairs = list(itertools.product(special, (plain, *special[:1], special[7])))
    input1, input2 = (torch.stack(each) for each in zip(*pairs, strict=True))
    for sign in (1, -1, 0):
        target = torch.full((len(pairs),), sign)
        for margin in (0.0, 0.5, -1.0):
            check(call(input1, input2, target, margin=margin, reduction=reduction))


@pytest.mark.parametrize("margin", [0.0, 1.0, -1.0, 0.5, -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_ties(margin: float, dtype: torch.dtype) -> None:
    """Where cos is the margin, the gradient is torch's: that of cos - margin."""
    # Vectors so long that epsilon is lost beside them, with exact cosines: 1, -1, 0, 0.5, -0.5.
    one, all_four, crossed = (torch.tensor(each, dtype=dtype) for each in ([4, 0, 0, 0], [2, 2, 2, 2], [0, 0, 1, 0]))
    input1 = torch.stack([one, one, one, one, all_four]) * 2**20
    input2 = torch.stack([one, -one, crossed, all_four, -one]) * 2**20
    check(call(input1, input2, -torch.ones(5), margin=margin, reduction="none"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("d", [1, 2, 40])
def test_parallel(d: int, dtype: torch.dtype) -> None:
    """Of parallel vectors the gradients' terms cancel, and what is left is rounding of the terms."""
    input1 = Samples(dtype).real(6, d).requires_grad_()
    input2 = (input1.detach() * torch.tensor([[1], [-1], [2], [-4], [1], [0.5]])).to(dtype).requires_grad_()
    with policy("mandatory"):
        loss = autogen.losses.CosineEmbeddingLoss(reduction="none")(input1, input2, torch.ones(6))
    exact = torch.tensor([0.0, 2.0, 0.0, 2.0, 0.0, 0.0], dtype=torch.float64)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    assert (loss - exact).abs().max() <= 4 * eps + 1e-9
    for x, gradient in zip((input1, input2), torch.autograd.grad(loss.sum(), (input1, input2)), strict=True):
        terms = 1 / x.detach().double().norm(dim=1, keepdim=True)
        assert ((gradient.double() / terms).abs() <= 4 * eps + 1e-9).all()


@pytest.mark.parametrize(("size_average", "reduce"), [(True, True), (False, True), (None, False), (False, None)])
def test_legacy_flags(size_average: bool | None, reduce: bool | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(call(*rows(9, 5), size_average=size_average, reduce=reduce))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast(dtype: torch.dtype) -> None:
    """The result is in single precision at least, gradients are in the dtype of their input."""
    input1, input2, target = rows(9, 5, dtype)
    with torch.autocast("cpu", torch.bfloat16):
        check(call(input1, input2, target))


@pytest.mark.parametrize("counts", [(4, 1, 4), (1, 4, 4), (4, 4, 1), (1, 4, 1), (1, 1, 1)])
def test_one_row_for_all(counts: tuple[int, int, int]) -> None:
    """Fixed inputs and targets may have one row for all rows of the other."""
    input1, input2, target = (each[:count] for each, count in zip(rows(4, 5), counts, strict=True))
    wanted = (counts[0] == max(counts), counts[1] == max(counts), False)
    check(call(input1, input2, target, wanted=wanted, reduction="none"))
    check(call(input1, input2, target, wanted=wanted))


def test_gradcheck() -> None:
    input1, input2, target = rows(4, 5, torch.float64)
    for reduction in REDUCTIONS:
        loss = autogen.losses.CosineEmbeddingLoss(margin=-0.7, reduction=reduction)
        leaves = input1.requires_grad_(), input2.requires_grad_()
        with policy("mandatory"):
            assert torch.autograd.gradcheck(lambda a, b, loss=loss: loss(a, b, target), leaves)


def test_one_tensor_twice(launches: Launches) -> None:
    """Both gradients of the same tensor are added up."""
    x, other, target = rows(5, 4)
    x = x.requires_grad_()
    with policy("mandatory"):
        ours, same = (autogen.losses.CosineEmbeddingLoss()(x, second, target) for second in (x * other, x))
    assert launches.take() == 2
    theirs = torch.nn.CosineEmbeddingLoss()(x, x * other, target)
    torch.testing.assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))
    torch.testing.assert_close(same, torch.nn.CosineEmbeddingLoss()(x, x, target))
    assert torch.autograd.grad(same, x)[0].abs().max() < 1e-6
    assert launches.take() == 2


@pytest.mark.parametrize(("d", "kept"), [(50, [3 * 32]), (2050, [3 * 32]), (64, []), (2048, [])])
def test_keeps_statistics_only(d: int, kept: list[int]) -> None:
    """What is kept for backward are three numbers per row, those of six in 32 bytes, nothing if a program has whole
    rows; and nothing is allocated to plan on the meta device.
    """
    on_meta = [each.to("meta") for each in rows(6, d)]
    arguments = dict(zip(("input1", "input2", "target"), on_meta, strict=True))
    arguments |= {"margin": 0.0, "size_average": None, "reduce": None, "reduction": "none", "is_autocast": False}
    loss = make_cosine_embedding()
    assert loss.refuse(arguments, ("input1",)) is None
    forward = loss.forward(arguments)
    assert forward.output.shape == (6,) and [each.nbytes for each in forward.saved] == kept
    backward = loss.backward(arguments, forward.saved, torch.empty(6, device="meta"), ("input2",))
    assert len(forward.launches) == len(backward.launches) == 1 and list(backward.gradients) == ["input2"]


@pytest.mark.parametrize("d", [67, 160, 300])
def test_several_tiles_for_each_program(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced on few rows: whole ones, ones that begin anywhere, and ones that are longer than a tile."""
    monkeypatch.setattr(tiler, "MOST_PROGRAMS", 1)
    monkeypatch.setattr(tiler, "MOST_TILES", 4)
    inputs = rows(91, d)
    arguments = dict(zip(("input1", "input2", "target"), (each.to("meta") for each in inputs), strict=True))
    arguments |= {"margin": 0.0, "size_average": None, "reduce": None, "reduction": "mean", "is_autocast": False}
    (launch,) = make_cosine_embedding().forward(arguments).launches
    assert launch.grid[0] < 91 // launch.arguments["ROWS"]
    check(call(*inputs, margin=-0.05))


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 3), (0, 3), (0,)),
        ((4, 0), (4, 0), (4,)),
        ((4, 3), (4, 1), (4,)),
        ((4, 3), (3,), (4,)),
        ((4, 3), (4, 3), ()),
    ],
)
def test_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    input1, input2, target = (torch.ones(shape) for shape in shapes)
    arguments = {"input1": input1, "input2": input2, "target": target, "margin": 0.0}
    arguments |= {"size_average": None, "reduce": None, "reduction": "mean", "is_autocast": False}
    assert make_cosine_embedding().refuse(arguments, ()) is not None


def _has_direction(inputs: Tensor) -> bool:
    """Whether no vector lies along an axis; there the gradient's terms cancel, see `test_parallel`."""
    first, second = inputs.double().abs().nan_to_num(inf, inf, inf).topk(2, -1).values.unbind(-1)
    return bool(((second > first / 100) | (first == 0) | (first == inf)).all())


@st.composite
def calls(draw: Draw) -> Call:
    base = draw(st.sampled_from(DTYPES))
    n, d = draw(st.sampled_from((1, 2, 3, 5, 17, 130))), draw(st.sampled_from((2, 3, 8, 33, 129, 2100)))
    batched = draw(st.integers(0, 4)) > 0
    outer = (n,) if batched else ()
    input1 = draw(tensors("real", (*outer, d), base))
    input2 = draw(tensors("real", (*outer, d), draw(dtypes(base))))
    assume(_has_direction(input1) and _has_direction(input2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 9999)))
    signs = torch.randint(-1, 2, outer, generator=generator).to(draw(st.sampled_from((torch.int64, torch.float32))))
    target = draw(layouts(signs))
    options = {"reduction": draw(st.sampled_from(REDUCTIONS)), "margin": draw(st.sampled_from((0, 0.3, -0.5, 1.0)))}
    wanted = draw(st.sampled_from(((True, True, False), (True, False, False), (False, True, False), (False,) * 3)))
    found = Call("CosineEmbeddingLoss", options, (input1, input2, target), wanted, draw(st.sampled_from(UPSTREAMS)))
    return differentiable(found)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(call=calls())
def test_random_calls(call: Call) -> None:
    check(call)


@pytest.mark.parametrize("wrong", [None, [1.0, -1.0]])
def test_what_is_no_tensor_is_torchs_to_refuse(wrong: object) -> None:
    x = torch.randn(2, 3)
    for home in (torch.nn, autogen.losses):
        with pytest.raises(TypeError):
            home.CosineEmbeddingLoss()(x, x, wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("margin", [0.0, -0.5])
@pytest.mark.parametrize(("n", "d"), [(100, 67), (5, 2050)])
def test_generated_as_handwritten(n: int, d: int, margin: float, reduction: str, dtype: torch.dtype) -> None:
    """Written by hand by default, generated under the policy "aggressive", either as accurate as the other and torch:
    at most twice as far from double precision as these are, or as a result is rounded.
    """
    *inputs, target = rows(n, d, dtype)
    options = {"margin": margin, "reduction": reduction}

    def results(loss: Any, *inputs: Tensor) -> list[Tensor]:
        inputs = tuple(each.detach().requires_grad_() for each in inputs)
        value = loss(*inputs, target)
        return [value.detach(), *torch.autograd.grad(value, inputs, torch.ones_like(value))]

    found = {"torch": results(torch.nn.CosineEmbeddingLoss(**options), *inputs)}
    for level, path in (("default", "handwritten"), ("aggressive", "generated")):
        loss = autogen.losses.CosineEmbeddingLoss(**options)
        with policy(level):
            assert explain(loss, *(each.detach().requires_grad_() for each in inputs), target).path == path
            found[path] = results(loss, *inputs)
    exact = results(torch.nn.CosineEmbeddingLoss(**options), *(each.double() for each in inputs))
    for k, expected in enumerate(exact):
        rounding = torch.finfo(dtype).eps / 2 * expected.abs().max().item()
        errors = {name: (each[k].double() - expected).abs().max().item() for name, each in found.items()}
        for name in ("handwritten", "generated"):
            least = min(error for other, error in errors.items() if other != name)
            assert errors[name] <= 2 * max(least, rounding), (name, k, errors)
