"""Losses that reach a whole framework: only the functions that run are looked into, and all that these read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen.availability
import autogen.calls.reachable
from autogen import TooManyValuesError, autogen_loss, explain, policy
from tests.interpret.agreement import draw
from tests.interpret.launches import Launches

X = draw("real", 6, 5)
REGISTRY = [[each] for each in range(1000)]
# Each is read by one function.
SCALE, OFFSET, EXCESS, POWER = ({"value": value} for value in (2, 3, 100, 2))
STRENGTH = 1
LOG: list[Tensor] = []


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A limit that a module of torch is far below, and the registry far above."""
    monkeypatch.setattr(autogen.calls.reachable, "MOST_VALUES", 800)
    kept = [dict(each) for each in (SCALE, OFFSET, EXCESS, POWER)]
    yield
    for each, values in zip((SCALE, OFFSET, EXCESS, POWER), kept, strict=True):
        each.update(values)


def scaled(x: Tensor) -> Tensor:
    return x * SCALE["value"]


def shifted(x: Tensor) -> Tensor:
    return x + OFFSET["value"]


def lowered(x: Tensor) -> Tensor:
    return x - EXCESS["value"]


class Powered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return strengthened(upstream * ctx.saved_tensors[0] ** POWER["value"])


def strengthened(gradient: Tensor) -> Tensor:
    return gradient * STRENGTH


class Framework(nn.Module):
    """A base class whose methods name all there is."""

    is_shifted = False

    def build(self) -> Any:
        return REGISTRY[0]

    def note(self, x: Tensor) -> None:
        LOG.append(x)

    def describe(self) -> str:
        return f"{self.build()} {STRENGTH}"


class Loss(Framework):
    def forward(self, x: Tensor) -> Tensor:
        if (x.detach() > 100).any():
            x = lowered(x)
        x = shifted(x) if self.is_shifted else scaled(x)
        return Powered.apply(x).exp().mean()


def gradient(loss: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    value = loss(x)
    return value.detach(), torch.autograd.grad(value, x)[0]


def agree(ours: Any, theirs: Any, x: Tensor = X) -> None:
    torch.testing.assert_close(gradient(ours, x), gradient(theirs, x))


@pytest.fixture
def pair(launches: Launches) -> Iterator[tuple[Any, Loss]]:
    with policy("mandatory"):
        yield autogen_loss(Loss()), Loss()


def test_the_first_call_runs_on_kernels(pair: tuple[Any, Loss], launches: Launches) -> None:
    for _ in range(4):
        agree(*pair)
        assert launches.take() == 2
    agree(autogen_loss(Loss(), policy="mandatory"), Loss())


def test_explain_needs_no_call() -> None:
    report = explain(Loss(), X)
    assert report.path == "generated" and report.forward is not None and report.forward.launches == 1


def test_losses_of_one_class_are_compiled_once(compiled: list[str]) -> None:
    @autogen_loss
    class Decorated(Loss):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    agree(Decorated(), Loss())
    count = len(compiled)
    for _ in range(3):
        agree(Decorated(), Loss())
    assert len(compiled) == count == 2  # to see what runs, and to know what that reads


@pytest.mark.parametrize("setting", [SCALE, POWER], ids=["forward", "backward"])
def test_a_change_of_what_runs_is_noticed(pair: tuple[Any, Loss], setting: dict[str, int]) -> None:
    for value in (2, 3, 2, 4):
        setting["value"] = value
        for _ in range(3):
            agree(*pair)


def test_a_change_of_what_backward_reads_is_noticed(pair: tuple[Any, Loss], monkeypatch: pytest.MonkeyPatch) -> None:
    agree(*pair)
    monkeypatch.setitem(globals(), "STRENGTH", 5)
    agree(*pair)


def test_a_function_put_in_the_place_of_another_is_noticed(
    pair: tuple[Any, Loss], monkeypatch: pytest.MonkeyPatch
) -> None:
    agree(*pair)
    monkeypatch.setitem(globals(), "scaled", shifted)
    for offset in (3, 4):
        OFFSET["value"] = offset
        agree(*pair)


def test_what_another_path_reads_is_noticed(pair: tuple[Any, Loss]) -> None:
    agree(*pair)
    for each in pair:
        each.is_shifted = True
    for offset in (3, 4, 5, 3):
        OFFSET["value"] = offset
        for _ in range(3):
            agree(*pair)


def test_what_is_read_for_other_values_is_noticed(pair: tuple[Any, Loss]) -> None:
    large = (X.detach() * 1e-3 + 101).requires_grad_()
    for excess in (99, 100, 101, 100):
        EXCESS["value"] = excess
        agree(*pair)
        agree(*pair, large)


def test_second_derivatives(pair: tuple[Any, Loss]) -> None:
    found = []
    for loss in (pair[0], pair[0], pair[0], pair[1]):
        (first,) = torch.autograd.grad(loss(X), X, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), X)[0])
    for each in found:
        torch.testing.assert_close(each, found[-1])


def test_nobody_watches_where_a_profiler_does(launches: Launches) -> None:
    ours = autogen_loss(Loss())
    sys.setprofile(lambda *_: None)
    try:
        agree(ours, Loss())
    finally:
        sys.setprofile(None)
    assert launches.take() == 0


def test_a_profiler_is_left_alone_once_the_loss_is_known() -> None:
    ours, theirs = autogen_loss(Loss()), Loss()
    agree(ours, theirs)
    profile = lambda *_: None  # noqa: E731
    sys.setprofile(profile)
    try:
        agree(ours, theirs, X[:, :1])
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)


def test_what_the_loss_changes_far_away_is_put_back() -> None:
    """And then done by torch: the list comes after the registry, where nothing would have looked any more."""

    class Logging(Framework):
        def forward(self, x: Tensor) -> Tensor:
            self.note(x.detach())
            return x.exp().mean()

    LOG.clear()
    ours = autogen_loss(Logging())
    for _ in range(3):
        ours(X)
    assert [type(each) for each in LOG] == [Tensor] * 3


def test_all_that_is_reached_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[bool] = []
    visit = autogen.calls.reachable.Reachable.visit_self

    def counted(state: Any, module: nn.Module) -> Any:
        walks.append(state.is_wide)
        return visit(state, module)

    monkeypatch.setattr(autogen.calls.reachable.Reachable, "visit_self", counted)
    monkeypatch.setattr(autogen.calls.reachable, "MOST_AT_ONCE", 900)  # which is too little, too
    ours = autogen_loss(Loss())
    for _ in range(4):
        agree(ours, Loss())
    assert walks.count(True) == 1
    walks.clear()
    monkeypatch.setattr(autogen.availability, "require", unavailable)
    ours = autogen_loss(Loss())
    agree(ours, Loss())
    assert walks and not any(walks)


def unavailable(*_: Any) -> None:
    raise autogen.UnavailableError("this is no place for kernels", remedy="Go elsewhere.")


def test_a_loss_that_reads_too_much_runs_in_torch(launches: Launches) -> None:
    class Reading(Framework):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum() * self.build()[0]

    ours = autogen_loss(Reading())
    assert explain(ours, X).path == "eager" and "more than 800 values" in explain(ours, X).reason
    agree(ours, Reading())
    assert launches.take() == 0
    with policy("mandatory"), pytest.raises(TooManyValuesError):
        ours(X)
