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
from torch import Tensor, nn

import autogen
from autogen import autogen_loss, explain, policy
from autogen.decorator import dispatcher_of
from tests.interpret.launches import Launches

N, C = 6, 5
HALF = {"rtol": 1e-3, "atol": 1e-3}  # torch rounds after each operation, kernels when they store


class Holder:
    """A plain object with a state."""

    def __init__(self) -> None:
        self.mean = torch.zeros(C)


class Slotted:
    """One without a dictionary."""

    __slots__ = ("mean",)

    def __init__(self) -> None:
        self.mean = torch.zeros(C)


class Inner(nn.Module):
    """A submodule with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(C))
        self.register_buffer("scratch", None, persistent=False)


class Loss(nn.Module):
    """A loss with much state, of which subclasses change some."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, C))
        self.register_buffer("bank", torch.arange(60.0).reshape(12, C) / 60)
        self.register_buffer("small", torch.ones(C, dtype=torch.float16))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, C))
        self.inner = Inner()
        self.holder, self.slotted = Holder(), Slotted()
        self.table: dict[str, Any] = {"mean": torch.zeros(C)}
        self.last: Any = None
        self.previous: Any = None
        self.is_started = False
        self.is_updated = True

    def change(self, x: Tensor, t: Tensor) -> Tensor | None:
        """What else the loss does."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        loss = ((x - t) ** 2 * self.weight).mean()
        extra = self.change(x, t) if self.is_updated else None
        return loss if extra is None else loss + extra


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


def tensors_in(value: Any, name: str = "") -> dict[str, Any]:
    """All that an object holds, by where it is."""
    if isinstance(value, Tensor) or not (isinstance(value, (dict, Slotted)) or hasattr(value, "__dict__")):
        return {name: value}
    items = {"mean": value.mean} if isinstance(value, Slotted) else value if isinstance(value, dict) else vars(value)
    return {
        where: each
        for key, item in items.items()
        if key != "forward"
        for where, each in tensors_in(item, f"{name}.{key}").items()
    }


def assert_same(got: Any, wanted: Any) -> None:
    """That two objects hold the same."""
    found, expected = tensors_in(got), tensors_in(wanted)
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, Tensor):
            assert type(found[name]) is type(value), name
            assert found[name].requires_grad == value.requires_grad and found[name].is_leaf == value.is_leaf, name
            precision = HALF if value.dtype == torch.float16 else {}
            torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **precision)
        elif value is None or isinstance(value, (bool, int, float, str)):
            assert type(found[name]) is type(value) and found[name] == value, name


def inputs(seed: int, rows: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, C, generator=generator, requires_grad=True)
    return x, torch.randn(rows, C, generator=generator)


class Twins:
    """A loss on kernels, and the same in torch."""

    def __init__(self, loss: nn.Module) -> None:
        self.wanted = loss
        self.loss = autogen_loss(copy.deepcopy(loss))

    def __iter__(self) -> Any:
        return iter((self.loss, self.wanted))

    @property
    def traces(self) -> int:
        """How many there are."""
        found = dispatcher_of(self.loss)
        assert found is not None
        return sum(map(len, found[0]._compiled.values()))

    def call(self, seed: int, rows: int = N) -> None:
        """One call of both, and what it leaves behind."""
        results = []
        for each in self:
            x, t = inputs(seed, rows)
            each.zero_grad()
            torch.manual_seed(seed)
            value = each(x, t)
            if value.requires_grad:
                value.backward()
            results.append((value, x.grad, each.weight.grad, t, torch.rand(1)))
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted)
        assert_same(self.loss, self.wanted)


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


# Writes to arguments: a function, and what it is given.


def clamps(x: Tensor, t: Tensor) -> Tensor:
    t = t.clamp_(0, 1)
    return (x - t).abs().mean()


def marks(x: Tensor, t: Tensor) -> Tensor:
    t[t < 0] = -1.0
    t[:, 0] += 1
    t.T[1].mul_(2)
    return ((x - t) ** 2).sum()


def halves(x: Tensor, t: Tensor) -> Tensor:
    t.view(-1)[::2].zero_()
    return (x * t.exp()).sum()


ARGUMENTS: list[Callable[[Tensor, Tensor], Tensor]] = [clamps, marks, halves]


@pytest.mark.parametrize("function", ARGUMENTS)
@pytest.mark.parametrize("layout", ["plain", "transposed", "columns", "double"])
def test_arguments_are_written(function: Callable[..., Tensor], layout: str, launches: Launches) -> None:
    loss = autogen_loss(function)
    with policy("mandatory"):
        for seed in range(3):
            results = []
            for each in (loss, function):
                x, t = inputs(seed)
                whole = torch.zeros(N, 2 * C)
                if layout == "transposed":
                    t = t.T.contiguous().T
                elif layout == "columns":
                    t = whole[:, ::2].copy_(t)
                elif layout == "double":
                    t = t.double()
                if layout in ("transposed", "columns") and function is halves:
                    t = t.contiguous()
                version = t._version
                value = each(x, t)
                value.backward()
                assert t._version > version
                results.append((value, x.grad, t, whole))
            assert launches.take() == 2
            for got, wanted in zip(*results, strict=True):
                torch.testing.assert_close(got, wanted)


def test_elements_that_share_memory_are_left_to_torch() -> None:
    loss = autogen_loss(clamps)
    x, _ = inputs(0)
    assert explain(loss, x[:3, :3], torch.zeros(5).unfold(0, 3, 1)).path == "eager"
    assert explain(loss, x[:3, :3], torch.zeros(9).view(3, 3).T).path == "generated"


LAST: Any = None


def test_variables_are_assigned() -> None:
    mean = torch.zeros(C)

    def loss(x: Tensor, t: Tensor) -> Tensor:
        global LAST
        nonlocal mean
        value = (x - mean).abs().sum() if LAST is None else (x - LAST).abs().sum()
        mean = mean + t.mean(0)
        LAST = t.mean(0)
        return value

    fused = autogen_loss(loss)
    with policy("mandatory"):
        for seed in range(3):
            x, t = inputs(seed)
            wanted = (x - (mean if LAST is None else LAST)).abs().sum()
            before = mean
            torch.testing.assert_close(fused(x, t), wanted)
            torch.testing.assert_close(mean, before + t.mean(0))
            torch.testing.assert_close(LAST, t.mean(0))


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "uniform_": lambda b, t: b.uniform_(),
    "bernoulli_": lambda b, t: b.bernoulli_(0.5),
    "fill_": lambda b, t: b.fill_(2.0),
    "zero_": lambda b, t: b.zero_(),
    "index_add_": lambda b, t: b.index_add_(0, torch.tensor([0, 2, 2, 1, 0, 1]), t),
    "scatter_": lambda b, t: b.scatter_(0, t.argsort(0), t),
    "index_put_": lambda b, t: b.index_put_((torch.tensor([1, 3]), torch.tensor([0, 2])), t[0, :2]),
    "masked": lambda b, t: b.__setitem__(t > 0, 1.0),
    "out": lambda b, t: torch.add(b, t, alpha=0.5, out=b),
    "copy_": lambda b, t: b.copy_(t.double()),
    "where": lambda b, t: b.copy_(torch.where(b > t, b, t)),
    "rows": lambda b, t: b[2:4].add_(t[:2]),
    "twice": lambda b, t: (b.mul_(2), b.t().add_(t.T), b[0].zero_()),
    "clamp_": lambda b, t: b.clamp_(min=0).sqrt_(),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("is_first", [False, True])
def test_writes(name: str, is_first: bool) -> None:
    class Buffer(Loss):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            if is_first:
                WRITES[name](self.buffer, t)
            value = (x * self.buffer.clone()).sum() + x.exp().mean()
            if not is_first:
                WRITES[name](self.buffer, t)
            return value

    wanted = Buffer()
    wanted.register_buffer("buffer", torch.linspace(-1, 1, N * C).reshape(N, C))
    twins = Twins(wanted)
    with policy("mandatory"):
        for seed in range(3):
            twins.call(seed)


def test_memory_that_is_shared_is_left_to_torch() -> None:
    """A write to one tensor is one to the other, and a later call without such tensors runs on kernels again."""

    @autogen_loss
    def loss(x: Tensor, t: Tensor) -> Tensor:
        t.mul_(2)
        return (x * t).sum()

    for shared in (False, True, False):
        t = torch.arange(6.0)
        other = t[:5] if shared else t[:5].clone()
        assert explain(loss, other, t[1:]).path == ("eager" if shared else "generated")
        value = loss(other, t[1:])
        wanted = torch.arange(6.0)
        wanted[1:] *= 2
        assert t.equal(wanted)
        assert value == ((wanted if shared else torch.arange(6.0))[:5] * wanted[1:]).sum()
    report = explain(loss, t, t)
    assert report.path == "eager" and "share" in report.reason


class Counter(Loss):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.steps += 1
        return x.sum() * self.steps


class Growing(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def change(self, x: Tensor, t: Tensor) -> None:
        self.seen.append(t.mean())


class Deleting(Loss):
    def __init__(self) -> None:
        super().__init__()
        self.extra: Any = 1

    def change(self, x: Tensor, t: Tensor) -> None:
        if hasattr(self, "extra"):
            del self.extra


class Viewing(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.last = t[0]


class Overlapping(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        mean = t.mean(0)
        self.last, self.previous = mean, mean[:2]


class OfClass(Loss):
    total: Any = 0.0

    def change(self, x: Tensor, t: Tensor) -> None:
        type(self).total = t.sum()


class NewBuffer(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.register_buffer("extra", t.mean(0), persistent=False)


class NewParameter(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.last = nn.Parameter(t.mean(0))


class FloatOfTime(Loss):
    def change(self, x: Tensor, t: Tensor) -> None:
        self.last = 0.5


class Restored(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        before = self.center.detach()
        self.center.data = self.center.data + 1
        self.center.data = before
        return (x * self.center).sum()


class DataOfAnother(Loss):
    def change(self, x: Tensor, t: Tensor) -> Tensor:
        self.center.data = t[:1]
        return (x * self.center).sum()


class DataReturned(Loss):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        new = t.mean(0, keepdim=True)
        self.center.data = new
        return new if len(x) else x


@pytest.mark.parametrize(
    "kind",
    [
        DataOfAnother,
        DataReturned,
        Counter,
        Growing,
        Deleting,
        Viewing,
        Overlapping,
        OfClass,
        NewBuffer,
        NewParameter,
        FloatOfTime,
        Restored,
    ],
)
def test_what_is_in_doubt_is_left_to_torch(kind: type[Loss], launches: Launches) -> None:
    with pytest.raises(autogen.AutogenError), policy("mandatory"):
        autogen_loss(kind())(*inputs(0))
    twins = Twins(kind())
    twins.call(0)
    assert launches.take() == 0
    twins.call(1)


def test_a_leaf_that_requires_a_gradient_is_torchs_to_refuse() -> None:
    loss = autogen_loss(clamps)
    x, t = inputs(0)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        loss(t, x)


def test_a_tensor_with_a_history_is_written_by_torch() -> None:
    results = []
    for each in (autogen_loss(clamps), clamps):
        x, t = inputs(0)
        history = t.requires_grad_() * 2
        (each(x, history) + history.sum()).backward()
        results.append((x.grad, t.grad, history))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)
