"""What changes between two calls of a loss counts in the second: nothing is kept that the loss would read anew."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import gc
import itertools
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.dispatch.compilations
import autogen.dispatch.sites
from autogen import autogen_loss, explain, policy
from autogen.decorator import dispatcher_of

THIS = sys.modules[__name__]
X = torch.linspace(-1, 1, 8)
Y = X + 2
SCALE: float | None = None


class Options:
    is_squared = False


def weigh(x: Tensor) -> Tensor:
    return 2 * x


@autogen_loss
class Loss(nn.Module):
    power = 1

    def __init__(self) -> None:
        super().__init__()
        self.table: Any = [1.0, [2.0]]

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.table[1][0]

    def forward(self, x: Tensor) -> Tensor:
        y = weigh(self.scaled(x)) ** self.power
        y = y * y if Options.is_squared else y
        return y.sum() if SCALE is None else y.sum() * SCALE


CHANGES: list[tuple[Any, str, Any]] = [
    (THIS, "SCALE", 3.0),
    (THIS, "weigh", lambda x: 5 * x),
    (Options, "is_squared", True),
    (Loss, "power", 2),
    (Loss, "scaled", lambda self, x: x - 1),
]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize(("owner", "name", "value"), CHANGES, ids=[name for _, name, _ in CHANGES])
def test_a_change_counts(owner: Any, name: str, value: Any, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Loss()
    with policy("mandatory"):
        for _ in range(2):
            for _ in range(calls):
                torch.testing.assert_close(loss(X), Loss(use_autogen=False)(X))  # type: ignore[call-arg]
            monkeypatch.setattr(owner, name, value)
        for _ in range(calls):
            torch.testing.assert_close(loss(X), Loss(use_autogen=False)(X))  # type: ignore[call-arg]


class Observed(nn.Module):
    features: tuple[Tensor, ...] = ()  # which a hook of the model puts there, and the loss does not read

    def forward(self, x: Tensor) -> Tensor:
        return (x**2).mean()


def test_what_is_given_up_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.compilations, "MOST_UNUSED", 3)
    loss, features = autogen_loss(Observed()), []
    for _ in range(20):
        loss.features = (torch.zeros(8),)
        features.append(weakref.ref(loss.features[0]))
        loss(X)
    loss.features = ()
    found = dispatcher_of(loss)
    assert found is not None and not found[0].compilations._refused
    assert sum(each() is not None for each in features) <= 4  # of the latest shortcuts


def test_what_is_refused_is_forgotten_and_keeps_no_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.compilations, "MOST_KEYS", 2)
    ours, given = autogen_loss(lambda x, name: [x.sum() * len(name), object()]), []
    for count in range(6):
        x = X.clone()
        given.append(weakref.ref(x))
        ours(x, "*" * count)
    del x
    gc.collect()
    found = dispatcher_of(ours)
    assert found is not None and len(found[0].compilations._refused) == 2
    assert not any(each() is not None for each in given)


def test_an_error_that_is_raised_again_keeps_no_earlier_call() -> None:
    ours, given = autogen_loss(lambda x: [x.sum(), object()], policy="mandatory"), []
    for _ in range(4):
        x = X.clone()
        given.append(weakref.ref(x))
        with contextlib.suppress(autogen.ResultError):
            ours(x)
    del x
    gc.collect()
    assert sum(each() is not None for each in given) <= 1


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class First:
    factor = 1.0


class Second:
    factor = 2.0


class Based(First):
    pass


ORDERED: Any = collections.OrderedDict(a=1.0, b=10.0)
TENSORS: Any = {"a": torch.tensor(1.0), "b": torch.tensor(10.0)}
HEADS: Any = nn.ModuleDict({"a": Scaled(1.0), "b": Scaled(10.0)})


def again(table: Any) -> None:
    first = next(iter(table))
    table[first] = table.pop(first)


def rebase() -> None:
    Based.__bases__ = (Second,) if Based.__bases__ == (First,) else (First,)


def doubled(x: Tensor) -> Tensor:
    return x * 2


LATER: dict[str, tuple[Any, Any]] = {
    "OrderedDict": (
        lambda x: sum(scale * x[k] for k, scale in enumerate(ORDERED.values())),
        lambda _: ORDERED.move_to_end(next(iter(ORDERED))),
    ),
    "tensors of a dict": (
        lambda x: sum(scale * x[k] for k, scale in enumerate(TENSORS.values())),
        lambda _: again(TENSORS),
    ),
    "ModuleDict": (lambda x: sum(head(x[k]) for k, head in enumerate(HEADS.values())), lambda _: again(HEADS)),
    "a function of torch's": (lambda x: F.relu(x).sum(), lambda patch: patch.setattr(F, "relu", doubled)),
    "another of torch's": (lambda x: F.relu(x).sum(), lambda patch: patch.setattr(F, "relu", F.softplus)),
    "bases": (lambda x: (x * Based.factor).sum(), lambda _: rebase()),
}


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize("name", LATER)
def test_a_change_of_what_is_not_assigned_counts(name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function, change = LATER[name]
    loss, x = autogen_loss(function), X.exp()
    with policy("mandatory"):
        for _ in range(2):
            for _ in range(calls):
                torch.testing.assert_close(loss(x), function(x))
            change(monkeypatch)
        for _ in range(3):
            torch.testing.assert_close(loss(x), function(x))


def test_an_order_that_the_loss_changes_is_torchs() -> None:
    recent = collections.OrderedDict(a=1.0, b=10.0)

    def loss(x: Tensor) -> Tensor:
        recent.move_to_end(next(iter(recent)))
        return x.sum() * next(iter(recent.values()))

    ours = autogen_loss(loss)
    for factor in (10.0, 1.0, 10.0, 1.0):
        torch.testing.assert_close(ours(Y), Y.sum() * factor)


def test_a_negative_view_is_torchs() -> None:
    negative = torch.complex(torch.zeros(8), torch.ones(8)).conj().imag
    assert negative.is_neg()
    loss = autogen_loss(lambda x: (x * 2).sum())
    assert explain(loss, negative).path == "eager"
    for _ in range(3):
        assert loss(torch.ones(8)) == 16
        assert loss(negative) == -16


def test_a_loss_that_counts_its_calls_on_its_class_runs_in_torch() -> None:
    @autogen_loss
    class Counting(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x.sum() * self.calls

    loss = Counting()
    assert [float(loss(torch.ones(8))) for _ in range(3)] == [8, 16, 24]


def test_what_differs_in_every_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.compilations, "MOST_UNUSED", 3)
    batch = {"files": ""}

    def loss(x: Tensor) -> Tensor:
        return x.sum() * len(batch["files"])

    ours = autogen_loss(loss)
    for count in range(8):
        batch["files"] = "*" * count
        assert ours(torch.ones(8)) == 8 * count
    assert explain(ours, torch.ones(8)).path == "eager"
    with policy("mandatory"), pytest.raises(autogen.TooManyTracesError):
        ours(torch.ones(8))


def test_what_comes_again_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.compilations, "MOST_UNUSED", 3)
    monkeypatch.setattr(autogen.dispatch.sites, "_MOST_WRITTEN", 0)  # each call is taken apart
    options = {"scale": ""}
    ours = autogen_loss(lambda x: x.sum() * len(options["scale"]), policy="mandatory")
    for count in range(8):
        options["scale"] = "*" * count
        assert ours(torch.ones(8)) == ours(torch.ones(8)) == 8 * count


@functools.lru_cache(maxsize=4)
def window(size: int) -> Tensor:
    return torch.arange(size) / size


@functools.cache
def options() -> dict[str, float]:
    return {"scale": 2.0}


@functools.cache
def noise(size: int) -> Tensor:
    return torch.randn(size)


HIDDEN = (window, weakref.WeakKeyDictionary[Any, Any](), {"own": None})


class Windowed(nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def window(self, size: int) -> Tensor:
        return torch.arange(size) / size

    @staticmethod
    @functools.lru_cache(maxsize=4)
    def fixed(size: int) -> tuple[Tensor, float]:
        return torch.arange(size) / size, 2.0

    def forward(self, x: Tensor) -> Tensor:
        ramp, scale = self.fixed(len(x))
        return (x * self.window(x.shape[0]) * ramp * scale * window(x.shape[0]) * options()["scale"]).sum()


def test_what_is_kept_by_a_cache_is_torchs() -> None:
    """A window that `functools.lru_cache` keeps is part of the kernel, and what everybody else finds there is real."""
    ours, theirs = autogen_loss(Windowed()), Windowed()
    options()["scale"] = 3.0  # the one object
    with policy("mandatory"):
        for size in (8, 8, 8, 5):
            torch.testing.assert_close(ours(X[:size]), theirs(X[:size]))
    for kept in (window(8), ours.window(8), Windowed.fixed(8)[0]):
        assert type(kept) is Tensor


def from_tuple(x: Tensor) -> Tensor:
    return (x * HIDDEN[0](8)).sum()


def from_noise(x: Tensor) -> Tensor:
    return (x * noise(8)).sum()


def written(x: Tensor) -> Tensor:
    return (x * window(8).add_(1.0)).sum()


@pytest.mark.parametrize("loss", [from_tuple, from_noise, written])
def test_what_no_trace_sees_is_left_to_torch(loss: Any) -> None:
    window.cache_clear()
    for _ in range(3):
        before = window(8).clone()
        found = autogen_loss(loss)(X)
        assert type(found) is Tensor and type(window(8)) is Tensor and type(noise(8)) is Tensor
        kept = before + 1 if loss is written else noise(8) if loss is from_noise else before
        torch.testing.assert_close(found, (X * kept).sum())
    assert explain(autogen_loss(loss), X).path == "eager"


def attribute(x: Tensor) -> Tensor:
    if not hasattr(attribute, "kept"):
        attribute.kept = torch.arange(8.0)  # type: ignore[attr-defined]
    return (x * attribute.kept).sum()  # type: ignore[attr-defined]


def weakly(x: Tensor) -> Tensor:
    if THIS not in HIDDEN[1]:
        HIDDEN[1][THIS] = torch.arange(8.0)
    return (x * HIDDEN[1][THIS]).sum()


def from_globals(x: Tensor) -> Tensor:
    if "KEPT" not in globals():
        globals()["KEPT"] = torch.arange(8.0)
    return (x * globals()["KEPT"]).sum()


@pytest.mark.parametrize("loss", [attribute, weakly, from_globals])
def test_a_cache_that_a_trace_sees_is_filled(loss: Any) -> None:
    ours = autogen_loss(loss)
    with policy("mandatory"):
        for _ in range(4):
            torch.testing.assert_close(ours(X), (X * torch.arange(8.0)).sum())
    for kept in (getattr(attribute, "kept", X), HIDDEN[1].get(THIS, X), vars(THIS).get("KEPT", X)):
        assert type(kept) is Tensor


def made(how: Callable[[], Any]) -> tuple[Any, Any]:
    """A loss with something of its own that is another at each call, twice."""

    def one() -> Any:
        drawn = how()
        return lambda x: (x * float(drawn())).sum()

    return autogen_loss(one()), one()


@pytest.mark.parametrize(
    "how",
    [
        lambda: functools.partial(next, itertools.count(1.0)),
        lambda: functools.partial(next, (0.5**k for k in range(9))),
        lambda: np.random.default_rng(0).random,
        lambda: np.random.RandomState(0).rand,
        lambda: random.Random(0).random,
    ],
)
def test_what_is_another_at_each_call_is_torchs(how: Callable[[], Any]) -> None:
    ours, theirs = made(how)
    for _ in range(4):
        torch.testing.assert_close(ours(Y), theirs(Y))


def test_a_variable_of_a_context() -> None:
    scale = contextvars.ContextVar("scale", default=1.0)
    loss = autogen_loss(lambda x: (x * scale.get()).sum())
    torch.testing.assert_close(loss(Y), Y.sum())
    scale.set(2.0)
    torch.testing.assert_close(loss(Y), Y.sum() * 2)


def test_hooks_of_all_modules() -> None:
    inner = Scaled(2.0)
    loss, x = autogen_loss(lambda x: inner(x).sum()), Y.clone()
    for _ in range(3):
        torch.testing.assert_close(loss(x), 2 * x.sum())
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * (3.0 if module is inner else 1)
    )
    try:
        torch.testing.assert_close(loss(x), 6 * x.sum())
    finally:
        hook.remove()
    torch.testing.assert_close(loss(x), 2 * x.sum())


class Queue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recent = collections.deque([torch.ones(8), torch.zeros(8)], maxlen=2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([((x - each) ** 2).mean() for each in self.recent]).sum()


def test_a_queue_of_tensors() -> None:
    ours, theirs = autogen_loss(Queue()), Queue()
    with policy("mandatory"):
        for k in range(5):
            torch.testing.assert_close(ours(X), theirs(X))
            for each in (ours, theirs):
                each.recent.append(torch.full((8,), float(k)))
