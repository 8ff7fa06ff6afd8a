"""Losses that change what outlives a call: after each call everything is as torch leaves it."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor

from autogen import autogen_loss, explain, policy
from tests.interpret.launches import Launches
from tests.interpret.stateful import C, Loss, Twins, assert_same, inputs, tensors_in
from tests.interpret.steps import Cuts


class Centre(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        loss = ((x - self.center) ** 2).mean()
        self.center = self.center * 0.9 + t.mean(0, keepdim=True) * 0.1
        return loss


class CentreInPlace(Loss):
    @torch.no_grad()
    def update(self, t: Tensor) -> None:
        self.center.mul_(0.9).add_(t.mean(0, keepdim=True), alpha=0.1)

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        loss = (x - self.center).abs().mean()
        self.update(t)
        return loss


class UpdatedFirst(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        with torch.no_grad():
            self.center.lerp_(t.mean(0, keepdim=True), 0.1)
        return (x * self.center).exp().mean()


class Data(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        loss = (x * self.center).sum()
        self.center.data = self.center.data * 0.9 + t.mean(0, keepdim=True) * 0.1
        self.weight.data = self.weight.data / self.weight.data.norm()
        self.weight.data = self.weight.data.to(x.dtype)
        return loss + (x * self.weight).sum()


class Bank(Loss):
    """A ring of rows, and where it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        loss = F.cross_entropy(x @ self.bank.clone().detach().T, torch.arange(len(x)))
        with torch.no_grad():
            at = int(self.pointer)
            self.bank[at : at + len(x)] = t
            self.pointer[0] = (at + len(x)) % 12
        return loss


class Columns(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.bank[:, 1:3].copy_(t.mean(0)[1:3])
        self.bank[t[:, 0].argsort()[:2]] = 0.5
        return (x.mean(0) * self.bank).sum()


class Kept(Loss):
    """Tensors of the loss's own, with a graph and without."""

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.std, self.mean = x.std(0), x.mean(0).detach()
        self.again = self.mean
        product = x @ t.T
        self.product, self.copied = product.detach(), product.detach().clone()
        return product.exp().mean()


class Elsewhere(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        mean = t.mean(0)
        self.inner.mean = self.inner.mean + mean
        self.inner.scratch = mean * 2
        self.holder.mean = self.holder.mean - mean
        self.slotted.mean = mean / 2
        self.table["mean"] = mean * 4
        self.table["new"] = mean * 5
        self.previous, self.last = self.last, mean
        self.rows, self.is_started = x.shape[0], True


class Given(Loss):
    """Arguments are kept as they are."""

    def change(self, x: Tensor, t: Tensor) -> None:
        self.last, self.previous, self.seen = x, t, x.detach()


class Mixed(Loss):
    """Dtypes that are promoted on the way."""

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.small.mul_(t.mean(0)).add_(1e-4)
        self.count += 1
        self.count += (t > 0).sum()
        return x.mean() * self.count


class Branch(Loss):
    """The way on depends on the state, as it was and as it is."""

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        factor = 2.0 if self.count > 1 else 1.0
        self.count.add_(1)
        if self.count > 3:
            factor *= 3.0
        return x.sum() * factor


class Weights(Loss):
    """A parameter is changed where no gradient is recorded."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if self.is_updated:
            with torch.no_grad():
                self.weight.div_(self.weight.norm() * t.std())
        return (x * self.weight).sum()


class Drawn(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.mask = torch.bernoulli(torch.full_like(x, 0.5))
        self.noisy = x * torch.rand_like(x)
        return (x * self.mask).sum()


class Lazy(Loss):
    """What is None at first."""

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        covariance = t.T @ t / len(t)
        self.last = covariance if self.last is None else (0.9 * self.last + 0.1 * covariance).detach()
        return ((x @ self.last) * x).mean()


STATEFUL: list[type[Loss]] = [
    Centre,
    CentreInPlace,
    UpdatedFirst,
    Data,
    Bank,
    Columns,
    Kept,
    Elsewhere,
    Given,
    Mixed,
    Branch,
    Weights,
    Drawn,
    Lazy,
]


@pytest.mark.parametrize("kind", STATEFUL)
def test_state_is_as_torch_leaves_it(kind: type[Loss], launches: Launches) -> None:
    twins = Twins(kind())
    with policy("mandatory"):
        for seed in range(8):
            twins.call(seed)
            assert launches.take() > 0
        with torch.no_grad():
            twins.call(8)
        twins.call(9, rows=3)
        for each in twins:
            each.eval().is_updated = False
        twins.call(10)


@pytest.mark.parametrize("kind", [Centre, CentreInPlace, UpdatedFirst, Kept, Elsewhere, Given, Mixed, Weights, Lazy])
def test_calls_do_not_make_traces(kind: type[Loss]) -> None:
    twins = Twins(kind())
    with policy("mandatory"):
        for seed in range(4):
            twins.call(seed)
        traces = twins.traces
        for seed in range(4, 50):
            twins.call(seed)
    assert twins.traces == traces <= 3


@pytest.mark.parametrize("kind", STATEFUL)
def test_explain_changes_nothing(kind: type[Loss]) -> None:
    loss, given = kind(), inputs(0)
    before = copy.deepcopy((loss, given[1]))
    report = explain(loss, *given)
    assert report.path in ("generated", "partial")
    assert_same(loss, before[0])
    assert given[1].equal(before[1])


@pytest.mark.parametrize("kind", [CentreInPlace, UpdatedFirst, Centre, Data, Columns, Weights, Mixed, Kept, Drawn])
def test_gradients_after_later_calls(kind: type[Loss]) -> None:
    """What was saved for backward is as it was, whatever the next call has written to."""
    results = []
    for each in (autogen_loss(kind()), kind()):
        first, second = inputs(0), inputs(1)
        torch.manual_seed(0)
        values = [each(*first), each(*second)]
        if kind in (UpdatedFirst, Columns, Data, Weights, Mixed):
            # torch has saved the state itself, and finds it changed
            values = values[1:]
        found = torch.autograd.grad(sum(values), [first[0], second[0], each.weight], allow_unused=True)
        results.append([*values, *found])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", [Centre, CentreInPlace, UpdatedFirst, Kept, Lazy, Mixed, Drawn, Elsewhere])
def test_second_derivatives_leave_the_state_alone(kind: type[Loss]) -> None:
    results = []
    for each in (autogen_loss(kind()), kind()):
        x, t = inputs(0)
        torch.manual_seed(0)
        each(*inputs(5))
        value = each(x, t)
        after = copy.copy(tensors_in(each))
        each.margin = 1.0  # which came later
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad((gradient**2).sum(), x)
        assert each.margin == 1.0
        now = tensors_in(each)
        assert all(now[name] is item for name, item in after.items() if isinstance(item, Tensor))
        results.append([value, gradient, second, *(each for each in now.values() if isinstance(each, Tensor))])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_graph_that_is_retained() -> None:
    results = []
    for each in (autogen_loss(CentreInPlace()), CentreInPlace()):
        x, t = inputs(0)
        value = each(x, t)
        twice = [torch.autograd.grad(value, x, retain_graph=True)[0] for _ in range(2)]
        results.append([*twice, each.center])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_what_is_kept_has_its_graph() -> None:
    """And gives nothing to the gradient unless it is used: its slope may be infinite."""

    class Deviation(Loss):
        def change(self, x: Tensor, t: Tensor) -> Tensor:
            self.root = (x * 0).sqrt() + x.exp()
            self.spread = (x**3).mean(0)
            return x.sum()

    results = []
    for each in (autogen_loss(Deviation()), Deviation()):
        x, t = inputs(0)
        value = each(x, t)
        (plain,) = torch.autograd.grad(value, x, retain_graph=True)
        total = value + (each.spread**2).sum()
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        (second,) = torch.autograd.grad((gradient * each.spread.detach()).sum(), x)
        assert plain.isfinite().all()
        results.append([plain, gradient, second])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_what_is_kept_may_be_given_no_gradient() -> None:
    class Keeps(Loss):
        def change(self, x: Tensor, t: Tensor) -> Tensor:
            self.spread = (x**3).mean(0)
            return x.sum()

    each = autogen_loss(Keeps())
    for k in range(3):
        x, t = inputs(k)
        each(x, t)
        assert torch.autograd.grad(Cuts.apply(each.spread).sum(), x, allow_unused=True) == (None,)


def test_objects_are_the_same_as_in_torch() -> None:
    class Same(Loss):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            loss = (x * t).sum(1)
            self.last, self.previous = loss, loss.detach()
            self.mean = self.other = t.mean()
            self.argument, self.seen = x, t.detach()
            return loss

    for each in (autogen_loss(Same()), Same()):
        x, t = inputs(0)
        value = each(x, t)
        assert each.last is value and each.mean is each.other and each.argument is x
        assert each.previous.data_ptr() == value.data_ptr() and not each.previous.requires_grad
        assert each.seen.data_ptr() == t.data_ptr()


def test_what_is_kept_has_memory_of_its_own() -> None:
    loss = autogen_loss(Kept())
    loss(*inputs(0)).backward()
    pointers = {each.untyped_storage().data_ptr() for each in (loss.product, loss.copied, loss.mean, loss.std)}
    assert len(pointers) == 4


@pytest.mark.parametrize("kind", [Kept, Centre, Given, Lazy])
def test_earlier_calls_are_forgotten(kind: type[Loss]) -> None:
    loss = autogen_loss(kind())
    seen: list[weakref.ref[Tensor]] = []
    for seed in range(6):
        x, t = inputs(seed)
        seen.append(weakref.ref(x))
        loss(x, t).backward()
        del x, t
    gc.collect()
    assert sum(each() is not None for each in seen) <= 1


def test_a_tensor_that_is_not_read_is_not_connected() -> None:
    """Such as what the loss has kept of an earlier call, whose graph is gone."""
    results = []
    for each in (autogen_loss(Loss()), Loss()):
        y = torch.ones(3, requires_grad=True)
        each.last = (y**2).sum()
        each.last.backward()
        x, t = inputs(0)
        each(x, t).backward()
        results.append((x.grad, y.grad))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


class KeepsDimensions(torch.nn.Module):
    """A mean over the batch, and results of several layouts that have dimensions of size 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1, 8))
        self.row, self.column = torch.nn.Parameter(torch.ones(1, 8)), torch.nn.Parameter(torch.ones(8, 1))

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, ...]:
        loss = (x - self.centre).mul(self.row).pow(2).mean() + (x @ self.column).mean()
        self.centre = self.centre * 0.9 + x.detach().mean(0, keepdim=True) * 0.1
        rows = (
            x.sum(0, keepdim=True),
            x[:1] * 2,
            x.view(1, *x.shape) * 2,
            x.sum().expand(2, 1, 3),
        )
        return loss, *rows, x.exp().mean(1, keepdim=True), x[:, :1] * 2, image * 2, image.mean(2, keepdim=True)


def test_dimensions_of_size_1_have_the_strides_of_torch() -> None:
    """What stays of a loss is for other code, which may ask for them: DDP does of buffers that it sends."""
    ours, theirs = autogen_loss(KeepsDimensions()), KeepsDimensions()
    found: list[list[tuple[int, ...]]] = []
    for rows in (6, 6, 6, 5):
        for loss in (ours, theirs):
            x = torch.linspace(-1, 1, rows * 8).view(rows, 8).requires_grad_()
            image = torch.rand(2, 1, 4, rows).contiguous(memory_format=torch.channels_last).requires_grad_()
            results = loss(x, image)
            sum(each.sum() for each in results).backward()
            left = *results, loss.centre, loss.row.grad, loss.column.grad, x.grad, image.grad
            found.append([each.stride() for each in left])
        found[-1][4] = found[-2][4]  # expanded in torch, and contiguous here
    assert found[::2] == found[1::2]
    assert found[0][4] == (3, 3, 1)
    ours.centre.copy_(ours.centre.contiguous())


class Logs(torch.nn.Module):
    """A loss that notes what it has found, and does not read it."""

    def __init__(self) -> None:
        super().__init__()
        self.metric: Tensor | None = None
        self.logs: dict[str, Tensor | None] = {"most": None}
        self.weight = torch.nn.Parameter(torch.ones(C))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.metric = (x - y).detach().mean()
        self.logs["most"] = (x - y).detach().amax(1)
        return (x * self.weight - y).logsumexp(1).mean()  # which are kept for backward


@pytest.mark.parametrize("options", [{}, {"gradient": "forward"}])
def test_what_is_only_assigned_may_change_before_backward(options: dict[str, Any]) -> None:
    """It is the caller's since it was assigned, by the call before."""
    ours, theirs = autogen_loss(Logs(), **options), Logs()
    for k in range(5):
        x, y = inputs(k)
        found = []
        for loss in ours, theirs:
            logged = loss.metric, *loss.logs.values()
            value = loss(x, y)
            for each in logged:
                if each is not None:
                    each.mul_(0.5)
            found.append([value, *torch.autograd.grad(value, [x, loss.weight])])
        torch.testing.assert_close(*found)
        torch.testing.assert_close([ours.metric, ours.logs], [theirs.metric, theirs.logs])


def test_what_is_only_assigned_is_not_kept_alive() -> None:
    loss, values, noted = autogen_loss(Logs()), [], []
    for k in range(5):
        x, y = inputs(k)
        values.append(loss(x, y))
        noted.append(weakref.ref(loss.metric))
    assert [each() is None for each in noted] == [True, True, True, True, False]
    for value in reversed(values):
        (first,) = torch.autograd.grad(value, loss.weight, create_graph=True)
        (found,) = torch.autograd.grad(first.square().sum(), loss.weight)
        assert found.isfinite().all()


def test_what_is_only_assigned_is_no_input_of_a_checkpoint() -> None:
    """The first time it is None in forward, and a tensor when that is computed again."""
    for k in range(4):
        x, y = inputs(k)
        found = []
        for loss in autogen_loss(Logs()), Logs():
            value = torch.utils.checkpoint.checkpoint(loss, x, y, use_reentrant=False)
            found.append([value, *torch.autograd.grad(value, [x, loss.weight])])
        torch.testing.assert_close(*found)


class Counted(torch.nn.Module):
    """A loss that looks at values before its kernels, and does not read how often it was called."""

    def __init__(self, formula: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.formula(x, y) * (2 if self.flag else 3)


@pytest.mark.parametrize(
    "formula",
    [
        lambda x, y: torch.nn.functional.cross_entropy(x, y.argmax(1)),
        lambda x, y: x[(x > y).nonzero(as_tuple=True)].square().sum(),
        lambda x, y: (x - y).square().sum(),
    ],
    ids=["labels", "places", "flag"],
)
def test_what_is_not_read_may_change_before_backward(formula: Callable[[Tensor, Tensor], Tensor]) -> None:
    ours, theirs = autogen_loss(Counted(formula)), Counted(formula)
    for k in range(4):
        x, y = inputs(k)
        found = []
        for loss in ours, theirs:
            value = loss(x, y)
            loss.steps.add_(1)
            (first,) = torch.autograd.grad(value, x, create_graph=True)
            found.append([value, first, *torch.autograd.grad(first.square().sum() + value, x)])
        torch.testing.assert_close(*found)
