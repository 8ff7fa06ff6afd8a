"""Nested reductions of what is too large for one program: the last block computes what is left, in the same launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import autogen.scheduling.launches.kernel
import autogen.tiling.tiler
from autogen import autogen_loss, explain, trace_count
from tests.interpret.agreement import draw, labels
from tests.interpret.launches import Launches
from tests.interpret.test_graphs import dice, image_mean
from tests.tiers import examples

LIMIT = 64  # elements of one program; what is larger is streamed


@dataclass
class Case:
    """A loss in one launch each way, and what the function is called that finishes either."""

    loss: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    finished_by: tuple[str, str] = ("last", "")


def x(*shape: int, seed: int = 0) -> Tensor:
    return draw("real", *shape, seed=seed)


def fixed(*shape: int, seed: int = 1) -> Tensor:
    return draw("real", *shape, seed=seed).detach()


def binary_dice(logits: Tensor, target: Tensor) -> Tensor:
    prob = logits.sigmoid()
    overlap, total = (prob * target).flatten(1).sum(1), (prob + target).flatten(1).sum(1)
    return (1 - (2 * overlap + 1) / (total + 1)).mean()


def generalised_dice(logits: Tensor, target: Tensor) -> Tensor:
    prob = logits.softmax(1)
    hot = F.one_hot(target, logits.shape[1]).movedim(-1, 1).to(prob.dtype)
    weight = 1 / (hot.sum((0, 2, 3)) ** 2 + 1)
    overlap, total = (weight * (prob * hot).sum((0, 2, 3))).sum(), (weight * (prob + hot).sum((0, 2, 3))).sum()
    return 1 - 2 * overlap / total


def mean_of_sequences(logits: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
    return ((loss * mask).sum(1) / mask.sum(1)).pow(2).mean()


def scaled(a: Tensor, scale: Tensor) -> Tensor:
    return (a * scale).tanh().pow(2).mean()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return 1 - ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean()


PIXELS = (x(2, 4, 5, 6), labels(4, 2, 5, 6))
CASES: dict[str, Case] = {
    "dice per class": Case(dice((0, 2, 3)), PIXELS),
    "dice per sample and class": Case(dice((2, 3)), PIXELS),
    "dice of few pixels": Case(dice((2,)), (x(4, 8, 12), labels(8, 4, 12))),
    "generalised dice": Case(generalised_dice, PIXELS),
    "binary dice per sample": Case(binary_dice, (x(3, 1, 9, 10), fixed(3, 1, 9, 10).sigmoid())),
    "cross entropy per image": Case(image_mean, PIXELS),
    "cross entropy per sequence": Case(
        mean_of_sequences, (x(3, 6, 9), labels(9, 3, 6), (fixed(3, 6) > -0.5).float())
    ),
    "whole rows, then their spread": Case(lambda a: a.norm(dim=1).std(), (x(9, 20),)),
    "long rows": Case(cosine, (x(4, 300), x(4, 300, seed=1))),
    "channels last": Case(lambda a: a.exp().sum((1, 2)).log().mean(), (x(3, 6, 7, 5),)),
    "extremes": Case(lambda a: (a.amax((0, 2)) * a.amin((0, 2))).sum(), (x(5, 4, 30),), ("", "")),
    "permuted": Case(
        lambda a: a.sigmoid().sum((0, 3)).log().sum(), (x(2, 3, 4, 20).transpose(0, 1).contiguous().detach(),)
    ),
    "a scale per column": Case(scaled, (x(30, 5), x(5, seed=3)), ("last", "first")),
    "a scale per sample": Case(scaled, (x(4, 30, 5), x(4, 1, 1, seed=3)), ("last", "")),
    "what needs no other program": Case(lambda a, b: a.exp().mean() * b.sum(), (x(30, 5), x(7)), ("last", "first")),
}  # fmt: skip


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", LIMIT)
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "LONG_WALK", 50)


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, dtype: torch.dtype, launches: Launches) -> None:
    case = CASES[name]
    inputs = [each.to(dtype).detach().requires_grad_() if each.is_floating_point() else each for each in case.inputs]
    exact = [each.detach().double().requires_grad_() if each.is_floating_point() else each for each in inputs]
    loss = autogen_loss(case.loss, policy="mandatory")
    launches.take()
    value = loss(*inputs)
    counted = [launches.take()]
    gradients = torch.autograd.grad(value, [each for each in inputs if each.requires_grad])
    assert [*counted, launches.take()] == [1, 1]
    expected = case.loss(*exact)
    wanted = torch.autograd.grad(expected, [each for each in exact if each.requires_grad])
    for own, their in zip((value, *gradients), (expected, *wanted), strict=True):
        scale = float(their.detach().abs().max())
        close = {torch.float64: 1e-12, torch.float32: 1e-5}[dtype]
        torch.testing.assert_close(own.double(), their, rtol=close, atol=close * scale)
    report = explain(loss, *inputs)
    assert report.forward is not None and report.backward is not None
    for direction, finished_by in zip((report.forward, report.backward), case.finished_by, strict=True):
        names = {each for each in ("last", "first") if f"_{each}_block(" in direction.source}
        assert names == ({finished_by} if finished_by else set())


@pytest.mark.parametrize("kind", ["sum", "amax"])
def test_partial_results_of_all_programs_are_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are more than the last block combines at once; a second call finds its counter as the first did."""
    monkeypatch.setattr(autogen.tiling.tiler, "MAX_PARTIALS", 32)
    a = torch.arange(2000.0)  # so that the largest comes last, and sums are exact
    loss = autogen_loss(lambda a: getattr(a.abs(), kind)(), config={"forward": {"BLOCK": 32, "num_warps": 1}})
    # By Python, as torch might leave the right number in memory that a kernel does not write.
    expected = [{"sum": sum, "amax": max}[kind](range(k, k + 2000)) for k in (0, 1)]
    assert [loss(a), loss(a + 1)] == expected


@pytest.mark.slow
@pytest.mark.usefixtures("limited")
def test_other_sizes_and_runs_agree_to_the_bit() -> None:
    loss = autogen_loss(dice((2, 3)), policy="mandatory")
    for shape in ((2, 4, 5, 6), (3, 4, 8, 8), (1, 3, 30, 7), (5, 4, 2, 3), (8, 8, 9, 9), (7, 20, 3, 3)):
        inputs = x(*shape), labels(shape[1], shape[0], *shape[2:])
        value = loss(*inputs)
        torch.testing.assert_close(value, dice((2, 3))(*inputs))
        assert loss(*inputs).equal(value)


def test_results_of_another_size_are_planned_anew(launches: Launches) -> None:
    """A plan whose last block holds so many results is not used for many more."""
    loss = autogen_loss(lambda a: a.exp().sum(1).sqrt().mean(), policy="mandatory")
    for rows in (8, 4096, 70000):
        a = x(rows, 3)
        launches.take()
        torch.testing.assert_close(loss(a), a.exp().sum(1).sqrt().mean())
        assert launches.take() == 1


@pytest.mark.usefixtures("limited")
def test_few_long_rows_are_planned_anew() -> None:
    """A kernel of a program per row is not used where another splits the rows, and is where none does."""

    def mean(a: Tensor) -> Tensor:
        return a.exp().mean(0)

    split = autogen_loss(mean, policy="mandatory")
    for shape, chunked in (((9, 20_000), False), ((300, 5), True), ((9, 20_000), False), ((900, 3), True)):
        a = x(*shape)
        torch.testing.assert_close(split(a), mean(a))
        report = explain(split, a).forward
        assert report is not None and ("chunk" in report.source) == chunked

    whole = autogen_loss(lambda a: F.cross_entropy(a, torch.zeros_like(a)), policy="mandatory")
    for shape in ((300, 5), (2, 700), (3, 900)):
        whole(x(*shape))
    assert trace_count(whole) == 1


@pytest.mark.usefixtures("limited")
def test_factors_of_a_flat_dimension_are_told_apart_by_calls() -> None:
    """`view_as` of a flat dimension holds for whatever has as many elements, not for one split of it alone."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return (a.flatten().exp().view_as(b) * b).sum(1).log().sum()

    ours = autogen_loss(loss, policy="mandatory")
    for one, other in (((6, 8), (6, 8)), ((8, 9), (8, 9)), ((6, 8), (8, 6)), ((12, 4), (6, 8)), ((6, 8), (6, 8))):
        a, b = x(*one), fixed(*other).abs()
        torch.testing.assert_close(ours(a, b), loss(a, b))
        torch.testing.assert_close(torch.autograd.grad(ours(a, b), a), torch.autograd.grad(loss(a, b), a))


ELEMENTS = ("p * p", "p * b", "p.abs()", "p + b", "(p - b) ** 2")
REDUCTIONS = ("sum", "mean", "amax", "amin")
AFTER = (".tanh().exp().sum()", ".sum()", ".pow(2).mean()", ".flatten().logsumexp(0)", ".tanh().norm()")


@st.composite
def losses(draw_from: st.DrawFn) -> tuple[list[int], str]:
    """A shape, and the text of a loss whose terms reduce different axes twice."""
    shape = draw_from(st.lists(st.sampled_from([2, 3, 4, 5, 7, 9]), min_size=2, max_size=4))
    dims = st.integers(0, len(shape) - 1)
    first = draw_from(dims)
    start = draw_from(st.sampled_from(("a * w", f"a.softmax({first})", "a.sigmoid()", f"a - a.amax({first}, True)")))
    terms = []
    for _ in range(draw_from(st.integers(1, 3))):
        over = tuple(sorted(draw_from(st.sets(dims, min_size=1))))
        kind, body = draw_from(st.sampled_from(REDUCTIONS)), draw_from(st.sampled_from(ELEMENTS))
        terms.append(f"({body}).{kind}({over}){draw_from(st.sampled_from(AFTER))}")
    return shape, f"p = {start}\n    return {' + '.join(terms)}, p.sum({first})"


@pytest.mark.slow
@pytest.mark.usefixtures("limited")
@settings(max_examples=examples(12))
@given(losses(), st.sampled_from([1, 8, 16, 64]), st.randoms(use_true_random=False))
def test_any_nest_of_reductions(case: tuple[list[int], str], limit: int, random: Any) -> None:
    autogen.scheduling.launches.kernel.MAX_IN_ONE_PROGRAM = limit  # put back by the fixture
    shape, text = case
    scope: dict[str, Any] = {}
    exec(f"def loss(a, b, w):\n    {text}", scope)
    a = fixed(*shape, seed=random.randrange(100))
    order = random.sample(range(len(shape)), len(shape))
    a = a.permute(order).contiguous().permute([order.index(dim) for dim in range(len(shape))]).requires_grad_()
    b, w = fixed(*shape).abs(), x(shape[0], *[1] * (len(shape) - 1), seed=2)
    exact = [each.detach().double().requires_grad_(each.requires_grad) for each in (a, b, w)]
    results = _values_and_gradients(autogen_loss(scope["loss"], policy="mandatory"), (a, b, w))
    wanted = _values_and_gradients(scope["loss"], exact)
    for own, their in zip(results, wanted, strict=True):
        if own is not None and their is not None:
            scale = max(1.0, float(torch.stack([each.abs().max() for each in wanted if each is not None]).max()))
            torch.testing.assert_close(own.double(), their, rtol=1e-4, atol=1e-5 * scale)


def _values_and_gradients(loss: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor | None]:
    values = loss(*inputs)
    seeds = [torch.ones_like(value) for value in values]
    return [*values, *torch.autograd.grad(values, (inputs[0], inputs[2]), seeds, allow_unused=True)]
