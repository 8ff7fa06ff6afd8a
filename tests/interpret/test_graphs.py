"""Losses of every structure: nested reductions, steps of torch, masks, writes in place, numbers that are read.

Each case says on which path it runs, in how many launches, forward and backward; small, and as if it were large.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.scheduling.launches.kernel
from autogen import autogen_loss, explain
from bench.losses import clip, dice, lovasz, pearson
from tests.interpret.agreement import agree, draw, labels
from tests.interpret.launches import Launches


@dataclass
class Case:
    """A loss, its inputs, the launches that it takes, and those if it were large; what torch runs, and more then."""

    loss: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    launches: tuple[int, int] = (1, 1)
    large: tuple[int, int] | None = None
    steps: set[str] = field(default_factory=set)
    large_steps: set[str] = field(default_factory=set)


def x(*shape: int, seed: int = 0) -> Tensor:
    return draw("real", *shape, seed=seed)


def fixed(*shape: int, seed: int = 1) -> Tensor:
    return draw("real", *shape, seed=seed).detach()


def image_mean(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none").mean((1, 2)).pow(2).sum()


def wing(a: Tensor, b: Tensor) -> Tensor:
    error = (a - b).abs()
    loss = torch.zeros_like(error)
    near = error < 1
    loss[near] = 2 * torch.log1p(error[near])
    loss[~near] = error[~near] - 0.5
    return loss.mean()


def written(a: Tensor) -> Tensor:
    table = torch.zeros_like(a)
    table[:, 0] = a[:, 1] * 2
    other = table.clone()
    other[0] += 1
    other.unsqueeze(-1).mul_(2)
    return (table * other * a).sum()


def metrics(a: Tensor, b: Tensor) -> tuple[Tensor, dict[str, Any]]:
    loss = (a - b).abs().mean()
    return loss, {"loss": loss.detach().item(), "percent": 100 * (a > b).float().mean().item(), "of": 1}


def scaled_by_a_number(a: Tensor) -> Tensor:
    largest = a.detach().abs().max().item()
    return (a / largest).abs().mean() * (1 + largest)


def terms(a: Tensor, b: Tensor) -> dict[str, Any]:
    product = a @ b
    return {"loss": product.pow(2).mean(), "product": product, "more": [a.abs().mean(), 3]}


class Uncertainty(nn.Module):
    """Two terms weighed by learnt variances, between a module's own product and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.log_variance = nn.Parameter(torch.tensor([0.1, -0.2]))

    def forward(self, a: Tensor, target: Tensor) -> Tensor:
        logits = self.layer(a)
        parts = torch.stack([F.cross_entropy(logits, target), logits.pow(2).mean()])
        return (parts * (-self.log_variance).exp() + self.log_variance).sum()


class Centers(nn.Module):
    """Distances to learnt centres of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.centers = nn.Parameter(fixed(5, 6, seed=9))

    def forward(self, a: Tensor, target: Tensor) -> Tensor:
        distance = (a.unsqueeze(1) - self.centers).pow(2).sum(2)
        return (distance * F.one_hot(target, 5)).sum(1).mean()


SCALE = torch.tensor([0.5, 1.0, 2.0, 1.5, 1.0, 0.25], requires_grad=True)
PIXELS = (x(2, 4, 5, 6), labels(4, 2, 5, 6))
PAIR = (x(6, 7), x(6, 7, seed=1))
MASK = fixed(6, 7, seed=3) > 0

CASES: dict[str, Case] = {
    "dice per class": Case(dice(), PIXELS, large=(2, 1)),
    "dice per sample and class": Case(dice((2, 3)), PIXELS, large=(2, 1)),
    "cross entropy per image": Case(image_mean, PIXELS, large=(2, 1)),
    "a value of the whole loss in its elements": Case(pearson, (x(40), x(40, seed=1)), large=(2, 2)),
    "two softmaxes": Case(lambda a: (a.softmax(0) * a.softmax(1)).sum(), (x(5, 6),), large=(2, 2)),
    "differences along both axes": Case(
        lambda a: a.diff(dim=0).abs().mean() + a.diff(dim=1).abs().mean(), (x(5, 6),)
    ),
    "tensors of two sizes": Case(lambda a, b: a.exp().mean() + b.abs().sum(), (x(5, 6), x(7))),
    "sums of one tensor in the elements of another": Case(
        lambda a, b: ((a - a.mean()) * b.exp().mean()).exp().mean() + b.sum(), (x(5), x(7)), large=(2, 1)
    ),
    "an outer difference": Case(lambda a, b: (a[:, None] - b).abs().mean(), (x(20), x(17))),
    "distances to learnt centres": Case(Centers(), (x(8, 6), labels(5, 8))),
    "a product, then two softmaxes": Case(clip, (x(6, 8), x(6, 8, seed=1)), (2, 2), (2, 2), {"mm"}),
    "a layer inside": Case(Uncertainty(), (x(8, 6), labels(5, 8)), steps={"mm"}),
    "sorted": Case(lambda a, b: (a.sort(0).values - b).abs().mean(), PAIR, steps={"sort", "scatter"}),
    "a convolution": Case(
        lambda a: F.conv2d(a, torch.full((1, 1, 3, 3), 1 / 9)).pow(2).mean(), (x(2, 1, 6, 6),),
        (2, 1), steps={"convolution", "convolution_backward"},
    ),
    "Lovasz": Case(lovasz, (x(30), fixed(30).sign()), (2, 2), (3, 2), {"sort", "scatter"}, {"cumsum"}),
    "the mean of what a mask chooses": Case(lambda a: a[MASK].pow(2).mean(), (x(6, 7),)),
    "rows that a mask chooses": Case(
        lambda a, t: F.cross_entropy(a[t != 3], t[t != 3]), (x(6, 7), labels(7, 6))
    ),
    "a mask that chooses nothing": Case(lambda a: a[a > 100].mean(), (x(6, 7),)),
    "masked_select": Case(lambda a, b: a.masked_select(MASK).abs().sum() + b.mean(), PAIR),
    "what masks read and write": Case(wing, PAIR),
    "a product by a mask": Case(lambda a: (a * MASK).sum() / MASK.sum(), (x(6, 7),)),
    "writes to views": Case(written, (x(3, 4),)),
    "numbers for a table of metrics": Case(metrics, PAIR),
    "a number of a tensor in arithmetic": Case(scaled_by_a_number, (x(6, 7),), large=(2, 1)),
    "a computed place per image": Case(
        lambda a, w: (a.logsumexp(2) * w[(torch.arange(a.shape[0]) + 1).clamp(max=a.shape[0] - 1)][:, None]).sum(),
        (x(3, 5, 7), fixed(3)),
    ),
    "an element whose place is a size": Case(
        lambda a, b: (a.narrow(0, b.shape[0], 1) * b).softmax(1).pow(2).sum(), (fixed(9), x(6, 7))
    ),
    "constant numbers": Case(lambda a: (a * torch.tensor(2.0) + torch.tensor([3]).half()).abs().mean(), PAIR[:1]),
    "a constant tensor": Case(lambda a: (a * torch.tensor([1.0, 2.0, 3.0])).abs().mean(), (x(4, 3),)),
    "a tensor of the module, differentiated": Case(lambda a: (a * SCALE).pow(2).mean(), (x(4, 6),)),
    "several results": Case(terms, (x(5, 4), x(4, 6)), (1, 2), steps={"mm"}),
    "layer norm": Case(lambda a: F.layer_norm(a, a.shape[-1:]).pow(3).mean(), (x(5, 8),)),
    "a distribution": Case(
        lambda m, s, y: -torch.distributions.Normal(m, s.exp()).log_prob(y).mean(), (x(5, 6), x(5, 6), fixed(5, 6))
    ),
}  # fmt: skip


def outcome(loss: Callable[..., Any], inputs: tuple[Tensor, ...], launches: Launches) -> tuple[list[Any], list[int]]:
    """All results and gradients, and the launches of either direction."""
    torch.manual_seed(0)
    launches.take()
    leaves = torch.utils._pytree.tree_leaves(loss(*inputs))
    counted = [launches.take()]
    wanted = [t for t in (*inputs, SCALE) if t.requires_grad]
    wanted += list(loss.parameters()) if isinstance(loss, nn.Module) else []
    results = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    seeds = [torch.arange(1, r.numel() + 1).reshape(r.shape).to(r.dtype) / r.numel() for r in results]
    gradients = torch.autograd.grad(results, wanted, seeds, allow_unused=True)
    return [*leaves, *gradients], [*counted, launches.take()]


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, size: str, launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    if size == "large":
        monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 0)
    expected, _ = outcome(case.loss, case.inputs, launches)
    loss = autogen_loss(copy.deepcopy(case.loss), policy="mandatory")
    found, counted = outcome(loss, case.inputs, launches)
    for own, their in zip(found, expected, strict=True):
        if isinstance(their, (Tensor, float)):
            torch.testing.assert_close(own, their, rtol=2e-5, atol=2e-6, equal_nan=True)
        else:
            assert own == their
    wanted_launches = case.large if size == "large" and case.large else case.launches
    report = explain(loss, *case.inputs)
    assert report.forward is not None
    wanted_steps = case.steps | (case.large_steps if size == "large" else set())
    assert report.path == ("partial" if wanted_steps else "generated")
    steps = {*report.forward.torch_steps, *(report.backward.torch_steps if report.backward else ())}
    assert {step.partition(",")[0] for step in steps} == wanted_steps
    assert len(report.forward.cuts) == report.forward.launches - 1 and all(report.forward.cuts)
    assert tuple(counted) == wanted_launches


def dropped(a: Tensor, weight: Tensor) -> Tensor:
    return (F.dropout(a.sigmoid(), 0.5) @ weight + torch.rand(6, 3)).pow(2).sum()


def test_random_draws_are_eagers(launches: Launches) -> None:
    loss, a, weight = autogen_loss(dropped, policy="mandatory"), x(6, 4), x(4, 3)
    for _ in range(2):
        found, expected = [], []
        for function, results in ((loss, found), (dropped, expected)):
            torch.manual_seed(3)
            value = function(a, weight)
            (first,) = torch.autograd.grad(value, a, create_graph=True)
            results += [value, first, torch.rand(1), *torch.autograd.grad(first.sum(), (a, weight)), torch.rand(1)]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert explain(loss, a, weight).path == "partial"


@pytest.mark.parametrize("draw_one", [random.random, np.random.random], ids=["Python", "NumPy"])
def test_a_number_drawn_outside_of_torch_is_never_baked_in(draw_one: Callable[[], float]) -> None:
    def loss(a: Tensor) -> Tensor:
        return a.exp().sum() * draw_one()

    random.seed(1), np.random.seed(1)
    expected = [loss(X) for _ in range(3)]
    random.seed(1), np.random.seed(1)
    ours = autogen_loss(loss)
    assert all(ours(X).equal(each) for each in expected)


@pytest.mark.parametrize("draw_one", [random.random, np.random.random], ids=["Python", "NumPy"])
def test_a_trace_that_fails_draws_nothing_outside_of_torch(draw_one: Callable[[], float]) -> None:
    def loss(a: Tensor) -> Tensor:
        return a.exp().sum() * draw_one() * float(a.sum())

    random.seed(1), np.random.seed(1)
    expected = loss(X)
    random.seed(1), np.random.seed(1)
    torch.testing.assert_close(autogen_loss(loss)(X), expected)


X = x(5, 4)


def test_under_autocast() -> None:
    def loss(a: Tensor, weight: Tensor) -> Tensor:
        return (a @ weight).float().pow(2).mean() + (a.double() @ weight.double()).pow(2).sum()

    a, weight = x(8, 6), x(6, 4)
    with torch.autocast("cpu", torch.float16):
        value, expected = autogen_loss(loss, policy="mandatory")(a, weight), loss(a, weight)
    assert value.dtype == expected.dtype
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    found, wanted = (torch.autograd.grad(each, (a, weight)) for each in (value, expected))
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["prob_sum", "row_max", "sum_exp", "mm", "quotient_sum"])
def test_names_that_kernels_would_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels store for each other is not mistaken for a tensor of the user's that is called alike."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 0)
    scope: dict[str, Any] = {}
    text = f"""def loss(a, {name}):
        prob = a.softmax(1)
        total = (prob * {name}).sum((0, 2)) / prob.sum((0, 2))
        return ((total @ total) * {name}).softmax(2).pow(2).sum() + ({name} @ {name}.mT).logsumexp((0, 1)).sum()"""
    exec(text, scope)
    a, other = x(2, 3, 4), x(2, 3, 4, seed=1)
    value, expected = autogen_loss(scope["loss"], policy="mandatory")(a, other), scope["loss"](a, other)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(torch.autograd.grad(value, (a, other)), torch.autograd.grad(expected, (a, other)))


def test_results_that_are_views_of_inputs(launches: Launches) -> None:
    def loss(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return (a.t() @ b).sum(), a.t()

    ours, (a, b) = autogen_loss(loss, policy="mandatory"), (x(4, 3), x(4, 2))
    value, turned = ours(a, b)
    torch.testing.assert_close([value, turned], list(loss(a, b)))
    assert turned.data_ptr() == a.data_ptr()
    (value + turned.exp().sum()).backward()
    torch.testing.assert_close(a.grad, a.detach().exp() + b.detach().sum(1, keepdim=True))


def test_a_number_is_that_of_the_moment() -> None:
    def loss(a: Tensor) -> tuple[Tensor, float]:
        count = (a > 0).float().sum()
        before = count.item()
        count += 100
        return (a * before).sum() + count, before

    value, number = autogen_loss(loss, policy="mandatory")(X)
    torch.testing.assert_close(value, loss(X)[0])
    assert number == loss(X)[1]


@pytest.mark.parametrize("most", [autogen.scheduling.launches.kernel.MAX_IN_ONE_PROGRAM, 0])
@pytest.mark.parametrize("combine", [operator.and_, operator.or_, operator.xor])
def test_conditions_of_the_whole_loss(combine: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside each other and beside those of elements."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", most)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        whole = combine(a.sum() > 0, b.sum() > 0)
        is_long = a.new_full((), a.shape[0]) > 2.5
        chosen = torch.where(whole, a.softmax(1).softmax(0), b)
        return chosen.where(combine(whole, b > 0), 2).where(combine(b > 0.5, is_long), 3).mean()

    for sign in (1, -1):
        a, b = x(3, 30), x(3, 30, seed=1) * sign
        found, expected = (each(a, b) for each in (autogen_loss(loss, policy="mandatory"), loss))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(each, a, allow_unused=True) for each in (found, expected)))


def test_masks_that_are_drawn_are_two() -> None:
    def loss(a: Tensor) -> Tensor:
        return a[torch.rand(5, 4) > 0.5].mean() - 3 * a[torch.rand(5, 4) > 0.5].mean()

    torch.manual_seed(5)
    value = autogen_loss(loss, policy="mandatory")(X)
    torch.manual_seed(5)
    torch.testing.assert_close(value, loss(X))


def test_one_program_holds_what_it_only_stores() -> None:
    def loss(a: Tensor, b: Tensor) -> Tensor:
        return a.index_fill(1, b.argmax(1).flatten() % a.shape[1], 0.5).sum() + b.exp().mean()

    # Backward stores a 0 for each of 33 * 34 places and 33 * 34 others.
    agree(loss, x(33, 1, 34), x(33, 5, 34, seed=1), launches=None)
