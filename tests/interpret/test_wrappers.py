"""Losses under decorators of a user's own, methods of every kind, and what these say of the arguments they take."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autogen
import autogen.functional
import autogen.losses
from autogen import autogen_loss, explain, policy, trace_count
from autogen.errors import UnknownCallError
from tests.interpret.launches import Launches

X, T = torch.randn(6, 6), torch.rand(6, 6)
FACTOR = 2.0


def raw(prediction: Tensor, target: Tensor) -> Tensor:
    return (prediction - target).abs().mean()


BASE = raw(X, T)


def scaled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * FACTOR

    return wrapper


class Scaled:
    """A decorator that is an object, with a number of its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args) * 2


class ScaledForward(nn.Module):
    @scaled
    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target)


class ScaledCall(nn.Module):
    @scaled
    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target)


def decorated(cls: type) -> Any:
    return autogen_loss(type("Decorated", (cls,), {"__module__": __name__}))


def over_decorated_forward() -> Any:
    class Inner(nn.Module):
        def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
            return raw(prediction, target)

    inner = autogen_loss(Inner)
    return type("Outer", (inner,), {"forward": scaled(inner.forward)})()


def over_instance_forward() -> Any:
    module = autogen_loss(nn.L1Loss())
    module.forward = scaled(module.forward)
    return module


class TestWrappers:
    """What a user's decorators do is a part of the loss, whatever is decorated twice."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda: autogen_loss(autogen_loss(scaled(raw))),
            lambda: autogen_loss(policy="default")(autogen_loss(scaled(raw))),
            lambda: autogen_loss(scaled(autogen_loss(raw))),
            lambda: autogen_loss(Scaled(autogen_loss(raw))),
            lambda: autogen_loss(policy="default")(scaled(autogen.functional.l1_loss)),
            lambda: autogen_loss(autogen_loss(scaled(autogen_loss(raw)))),
            lambda: autogen_loss(ScaledForward()),
            lambda: autogen_loss(autogen_loss(ScaledForward()), policy="default"),
            lambda: autogen_loss(decorated(ScaledForward)(), policy="default"),
            lambda: autogen_loss(over_decorated_forward()),
            lambda: autogen_loss(over_decorated_forward(), policy="default"),
            lambda: autogen_loss(over_instance_forward()),
            lambda: autogen_loss(over_instance_forward(), policy="default"),
            lambda: autogen_loss(ScaledCall()),
            lambda: autogen_loss(autogen_loss(ScaledCall()), policy="default"),
            lambda: autogen_loss(decorated(ScaledCall)(), policy="default"),
        ],
    )
    def test_are_kept(self, make: Callable[[], Any], launches: Launches) -> None:
        loss = make()
        launches.take()
        for _ in range(3):
            torch.testing.assert_close(loss(X, T), 2 * BASE)
        assert launches.take() == 3
        assert explain(loss, X, T).path == "generated"
        assert launches.take() == 0

    def test_are_kept_where_they_switch_gradients_off(self) -> None:
        class Call(nn.Module):
            @torch.no_grad()
            def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
                return raw(prediction, target)

        x = X.clone().requires_grad_()
        assert not autogen_loss(Call())(x, T).requires_grad
        assert not autogen_loss(torch.no_grad()(autogen_loss(raw)))(x, T).requires_grad

    def test_are_kept_where_they_switch_autocast_on(self) -> None:
        class Product(nn.Module):
            @torch.autocast("cpu", dtype=torch.bfloat16)
            def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
                return (prediction @ target).sum(0)

        loss = decorated(Product)()
        assert loss(X, T).dtype == autogen_loss(loss, policy="default")(X, T).dtype == torch.bfloat16

    def test_that_change_are_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = scaled(autogen_loss(raw))
        loss = autogen_loss(lambda x, t: inner(x, t) + 0)
        for factor in (2.0, 3.0, 4.0, 5.0):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            torch.testing.assert_close(loss(X, T), factor * BASE)

    def test_are_explained_with_the_loss(self) -> None:
        report = explain(scaled(autogen_loss(raw)), X, T)
        assert report.path == "generated" and report.forward is not None
        assert report.forward.source != getattr(explain(autogen_loss(raw), X, T).forward, "source", None)

    def test_of_a_decorated_loss_have_its_count(self) -> None:
        inner = autogen_loss(raw)
        inner(X, T)
        assert trace_count(inner) == trace_count(scaled(inner)) == 1


class Model(nn.Module):
    """A module with a loss among its methods."""

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    @autogen_loss
    def criterion(self, prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target) * self.weight


class Plain:
    """The same, of no module."""

    weight = 2.0

    @autogen_loss
    def criterion(self, prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target) * self.weight


class TestMethods:
    @pytest.mark.parametrize("make", [Model, Plain])
    def test_that_are_decorated(self, make: Callable[[], Any], launches: Launches) -> None:
        model = make()
        torch.testing.assert_close(model.criterion(X, T), 2 * BASE)
        assert trace_count(model.criterion) == 1 and launches.take() == 1
        report = explain(model.criterion, X, T)
        assert (report.loss, report.path) == ("criterion", "generated")
        assert trace_count(model.criterion) == 1
        again = autogen_loss(model.criterion, policy="mandatory")
        torch.testing.assert_close(again(X, T), 2 * BASE)
        assert launches.take() == 1 and explain(again, X, T).path == "generated"

    @pytest.mark.parametrize(
        "make",
        [autogen.losses.L1Loss, lambda: autogen_loss(nn.L1Loss()), nn.L1Loss],
        ids=["class", "instance", "torch"],
    )
    def test_forward_of_a_module(self, make: Callable[[], Any], launches: Launches) -> None:
        module = make()
        loss = autogen_loss(module.forward, policy="mandatory")
        for _ in range(3):
            torch.testing.assert_close(loss(X, T), BASE)
        assert launches.take() == 3
        assert explain(loss, X, T).path == explain(module.forward, X, T).path == "generated"
        assert trace_count(loss) == 1

    def test_forward_of_a_module_with_handwritten_kernels(self) -> None:
        module = autogen.losses.CosineEmbeddingLoss(margin=0.5)
        args = X, T, torch.tensor([1.0, -1.0] * 3)
        loss = autogen_loss(module.forward)
        torch.testing.assert_close(loss(*args), nn.CosineEmbeddingLoss(margin=0.5)(*args))
        assert explain(loss, *args).path == explain(module.forward, *args).path == "handwritten"

    def test_forward_of_a_base(self) -> None:
        base = decorated(nn.L1Loss)

        class Sub(base):  # type: ignore[misc, valid-type]
            def forward(self, input: Tensor, target: Tensor) -> Tensor:
                return 3 * autogen_loss(super().forward)(input, target)

        torch.testing.assert_close(Sub()(X, T), 3 * BASE)

    def test_above_a_static_or_class_method(self) -> None:
        class Losses:
            factor = 3.0

            @autogen_loss(policy="mandatory")
            @staticmethod
            def static(prediction: Tensor, target: Tensor) -> Tensor:
                return raw(prediction, target)

            @autogen_loss(policy="mandatory")
            @classmethod
            def of_class(cls, prediction: Tensor, target: Tensor) -> Tensor:
                return raw(prediction, target) * cls.factor

        class Others(Losses):
            factor = 4.0

        for owner in (Losses, Losses()):
            torch.testing.assert_close(owner.static(X, T), BASE)
            torch.testing.assert_close(owner.of_class(X, T), 3 * BASE)
            assert explain(owner.of_class, X, T).path == explain(owner.static, X, T).path == "generated"
        torch.testing.assert_close(Others.of_class(X, T), 4 * BASE)


class StaticForward(nn.Module):
    @staticmethod
    def forward(prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target) * FACTOR


class ClassForward(nn.Module):
    factor = 2.0

    @classmethod
    def forward(cls, prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target) * cls.factor


class StaticCall(nn.Module):
    @staticmethod
    def __call__(prediction: Tensor, target: Tensor) -> Tensor:
        return raw(prediction, target) * FACTOR


class Distance(nn.Module):
    forward = torch.dist


class TestForwardWithoutSelf:
    """`forward` may be a static method, a class method, or any callable: torch does not mind."""

    CLASSES = (StaticForward, ClassForward, StaticCall, Distance)

    @pytest.mark.parametrize("cls", CLASSES)
    def test_of_a_class(self, cls: Any, launches: Launches) -> None:
        loss = decorated(cls)()
        for _ in range(3):
            torch.testing.assert_close(loss(X, T), cls()(X, T))
        assert launches.take() == 3 and trace_count(loss) == trace_count(type(loss)) == 1
        assert explain(loss, X, T).path == "generated"
        off = type(loss)(use_autogen=False)
        torch.testing.assert_close(off(X, T), cls()(X, T))
        assert launches.take() == 0 and "use_autogen" in explain(off, X, T).reason

    @pytest.mark.parametrize("cls", CLASSES)
    def test_of_an_instance(self, cls: Any, launches: Launches) -> None:
        for loss in (autogen_loss(cls()), autogen_loss(decorated(cls)(), policy="mandatory")):
            torch.testing.assert_close(loss(X, T), cls()(X, T))
            assert launches.take() == 1 and explain(loss, X, T).path == "generated"
        assert explain(cls(), X, T).path == "generated"

    def test_is_called_of_the_class_as_before(self) -> None:
        torch.testing.assert_close(decorated(StaticForward).forward(X, T), 2 * BASE)
        torch.testing.assert_close(decorated(ClassForward).forward(X, T), 2 * BASE)

    def test_sees_the_class_it_is_called_of(self) -> None:
        sub = type("Sub", (decorated(ClassForward),), {"factor": 3.0})
        torch.testing.assert_close(sub()(X, T), 3 * BASE)

    @pytest.mark.parametrize("is_outer", [False, True])
    def test_changes_are_noticed(self, is_outer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = decorated(StaticForward)()
        loss = autogen_loss(lambda x, t: inner(x, t) + 0) if is_outer else inner
        for factor in (2.0, 3.0, 4.0, 5.0):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            torch.testing.assert_close(loss(X, T), factor * BASE)

    def test_inside_torch_compile(self) -> None:
        loss = decorated(StaticForward)()
        torch.testing.assert_close(torch.compile(loss, backend="eager")(X, T), 2 * BASE)

    def test_that_is_decorated_itself(self, launches: Launches) -> None:
        class Module(nn.Module):
            @staticmethod
            @autogen_loss
            def forward(prediction: Tensor, target: Tensor) -> Tensor:
                return raw(prediction, target)

        torch.testing.assert_close(Module()(X, T), BASE)
        assert launches.take() == 1 and explain(Module(), X, T).path == "generated"


class Word(str):
    """A string that compares in its own way, and so cannot be looked up."""

    def __eq__(self, other: object) -> bool:
        return str(self) == other

    __hash__ = None  # type: ignore[assignment]


class Image:
    """What looks like an array, but does not say what it holds."""

    def tobytes(self, mode: str) -> bytes:
        return mode.encode()


def worded(prediction: Tensor, target: Tensor, word: Any) -> Tensor:
    return raw(prediction, target) * (2 if word == "twice" else 1)


class TestArguments:
    """Only arguments that do not fit are torch's to report; what else cannot be taken apart is said."""

    def test_more_than_the_wrapped_function_takes(self, launches: Launches) -> None:
        @functools.wraps(raw)
        def wrapper(prediction: Tensor, target: Tensor, factor: Tensor, *, shift: float = 0.0) -> Tensor:
            return raw(prediction, target) * factor + shift

        factor = torch.tensor(3.0)
        loss = autogen_loss(wrapper, policy="mandatory")
        for _ in range(3):
            torch.testing.assert_close(loss(X, T, factor, shift=1.0), 3 * BASE + 1)
        assert launches.take() == 3
        assert explain(loss, X, T, factor).path == explain(wrapper, X, T, factor).path == "generated"

    def test_fewer_than_the_wrapped_function_takes(self) -> None:
        @functools.wraps(raw)
        def wrapper(prediction: Tensor) -> Tensor:
            return raw(prediction, T)

        torch.testing.assert_close(autogen_loss(wrapper, policy="mandatory")(X), BASE)

    def test_that_do_not_fit(self) -> None:
        for loss in (autogen_loss(raw), autogen_loss(raw, policy="mandatory"), autogen.losses.MSELoss()):
            with pytest.raises(TypeError, match="missing 1 required positional argument: 'target'"):
                loss(X)
            with pytest.raises(TypeError, match="target"):
                explain(loss, X)

    def test_that_cannot_be_hashed(self) -> None:
        loss = autogen_loss(worded)
        for word in ("twice", "once", "twice"):
            torch.testing.assert_close(loss(X, T, Word(word)), worded(X, T, word))
        explain(loss, X, T, Word("twice"))

    def test_that_cannot_be_looked_at(self, caplog: pytest.LogCaptureFixture) -> None:
        loss, image = autogen_loss(worded), Image()
        with caplog.at_level(logging.INFO, "autogen"):
            for _ in range(2):
                torch.testing.assert_close(loss(X, T, image), BASE)
        (record,) = (each for each in caplog.records if each.name == "autogen")
        assert "missing 1 required positional argument: 'mode'" in record.getMessage()
        report = explain(loss, X, T, image)
        assert report.path == "eager" and "'mode'" in report.reason
        with policy("mandatory"), pytest.raises(UnknownCallError, match="'mode'"):
            loss(X, T, image)

    def test_what_is_nested_deep(self) -> None:
        class Link:
            def __init__(self, before: Any) -> None:
                self.before = before

        class Chained(nn.Module):
            head: Any = None

            def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
                return raw(prediction, target) if self.head is not None else prediction.sum()

        loss = Chained()
        for _ in range(2000):
            loss.head = Link(loss.head)
        autogen_loss(loss)
        torch.testing.assert_close(loss(X, T), BASE)
        report = explain(loss, X, T)
        assert report.path == "generated"

    def test_python_has_no_room_to_look_at_it(self) -> None:
        nested: list[Any] = []
        for _ in range(60):
            nested = [nested]
        loss = autogen_loss(lambda x, t: raw(x, t) + len(nested) - 1)

        def called(levels: int) -> Tensor:
            return called(levels - 1) if levels else loss(X, T)

        torch.testing.assert_close(called(sys.getrecursionlimit() - len(inspect.stack()) - 70), BASE)
        assert explain(loss, X, T).path == "generated"


def test_an_object_that_passes_for_what_it_calls() -> None:
    wrapper: Any = Scaled(autogen_loss(raw))
    wrapper.factor = 2.0
    outer = autogen_loss(lambda prediction, target: wrapper(prediction, target) * wrapper.factor)
    for factor in (2.0, 3.0, 4.0, 5.0):
        wrapper.factor = factor
        torch.testing.assert_close(outer(X, T), BASE * 2 * factor)
