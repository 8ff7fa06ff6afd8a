"""Binding: the key changes when anything changes that the loss may read, and tensors are found and named."""

from __future__ import annotations

import enum
import inspect
import math
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autogen.calls.binding import bind, is_replaying
from autogen.calls.places import Kept
from autogen.calls.spots import is_same
from autogen.calls.surroundings import Change, Surroundings
from tests.unit import evaluate
from tests.unit.pipeline import binding_of

T = torch.zeros(3)
U = torch.ones(3)


def key_of(loss: Callable[..., Any], *args: Any, **kwargs: Any) -> Hashable:
    statics = binding_of(loss, *args, **kwargs).statics
    hash(statics)
    return statics


def identity(x: Any, option: Any = None, *rest: Any, **others: Any) -> Any:
    return x


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Config:
    margin: float
    names: list[str]


def double(x: Any) -> Any:
    return 2 * x


def halve(x: Any) -> Any:
    return x / 2


DIFFERENT: list[Any] = [
    (1, 2),
    (1, 1.0),
    (1, True),
    (0, None),
    (0.0, -0.0),
    (math.nan, 0.0),
    ("mean", "sum"),
    (torch.float32, torch.float64),
    ([1, [2, 3]], [1, [2, 4]]),
    ([1, 2], (1, 2)),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    (Config(1.0, ["a"]), Config(2.0, ["a"])),
    (Config(1.0, ["a"]), Config(1.0, ["b"])),
    (Color.RED, Color.BLUE),
    (double, halve),
    pytest.param(nn.MSELoss(), nn.MSELoss(reduction="sum")),
    pytest.param(nn.MSELoss(), nn.L1Loss()),
    (T, [T]),
    ({"a": T}, {"b": T}),
]
EQUAL: list[Any] = [
    (math.nan, float("nan")),
    (0.1, 1 / 10),
    ([1, {"a": [2.0]}], [1, {"a": [2.0]}]),
    (Config(1.0, ["a"]), Config(1.0, ["a"])),
    (Color.RED, Color(1)),
    (double, double),
    (T, U),
    (nn.HuberLoss(delta=math.nan), nn.HuberLoss(delta=math.nan)),
]


def _name(value: Any) -> str:
    return getattr(value, "__name__", None) or str(value)


class TestArguments:
    @pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=_name)
    def test_that_differ_give_different_keys(self, one: Any, other: Any) -> None:
        assert key_of(identity, T, one) != key_of(identity, T, other)

    @pytest.mark.parametrize(("one", "other"), EQUAL, ids=_name)
    def test_that_mean_the_same_give_equal_keys(self, one: Any, other: Any) -> None:
        assert key_of(identity, T, one) == key_of(identity, T, other)

    def test_by_position_and_by_keyword_are_two(self) -> None:
        assert key_of(identity, T, 1) != key_of(identity, T, option=1)

    def test_that_do_not_fit_raise_a_type_error(self) -> None:
        with pytest.raises(TypeError):
            bind(double, inspect.signature(double), None, (T, T), {})


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.power = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**self.power


def scaling(factor: float) -> tuple[Callable[[Any], Any], Callable[[float], None]]:
    """A function that multiplies by a number which it closes over, and a way to change that."""

    def scaled(x: Any) -> Any:
        return x * factor

    def change(number: float) -> None:
        nonlocal factor
        factor = number

    return scaled, change


class Loss(nn.Module):
    """A loss with one of everything that a loss may read."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.margin = 1.0
        self.zero = 0.0
        self._private = 1.0
        self.scaled, self.change_factor = scaling(1.0)
        self.weights = [1.0, [2.0, 3.0]]
        self.options = {"eps": 1e-6, "nested": {"p": 2}}
        self.config = Config(1.0, ["a"])
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("absent", None)
        self.plain = torch.full((3,), 2.0)
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale * self.temperature + self.plain


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


CHANGES: dict[str, Callable[[Loss], None]] = {
    "private attribute": lambda m: _set(m, "_private", 2.0),
    "closure of an attribute": lambda m: m.change_factor(2.0),
    "attribute": lambda m: _set(m, "margin", 2.0),
    "sign of zero": lambda m: _set(m, "zero", -0.0),
    "longer list": lambda m: m.weights.append(1.0),
    "nested list": lambda m: m.weights[1].__setitem__(0, 9.0),  # type: ignore[index, union-attr, attr-defined]
    "nested dictionary": lambda m: m.options["nested"].__setitem__("p", 1),  # type: ignore[attr-defined]
    "object": lambda m: _set(m.config, "margin", 2.0),
    "attribute of a submodule": lambda m: _set(m.inner, "power", 3),
    "submodule of another class": lambda m: _set(m, "inner", nn.Identity()),
    "training mode": lambda m: _set(m, "training", False),
    "new attribute": lambda m: _set(m, "added", 0),
    **{f"all {store}": lambda m, store=store: _set(m, store, {}) for store in ("_parameters", "_buffers", "_modules")},
    "buffer that appears": lambda m: _set(m, "absent", torch.ones(3)),
}


@pytest.mark.parametrize(
    ("before", "now", "is_one"),
    [
        (0.0, -0.0, False),
        (1, 1.0, False),
        (1, True, False),
        (math.nan, float("nan"), True),
        ("ab", "".join("ab"), True),
    ],
)
def test_what_counts_as_assigned(before: Any, now: Any, is_one: bool) -> None:
    assert is_same(now, before) == is_one


class TestModules:
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_changes_the_key(self, change: str) -> None:
        module = Loss()
        before = key_of(module, T)
        assert key_of(module, T) == before
        CHANGES[change](module)
        assert key_of(module, T) != before

    def test_values_of_tensors_are_not_part_of_the_key(self) -> None:
        module = Loss()
        before = key_of(module, T)
        module.scale.mul_(3)
        module.plain = torch.zeros(3)
        assert key_of(module, U) == before

    def test_equal_modules_have_equal_keys(self) -> None:
        assert key_of(nn.HuberLoss(delta=2.0), T, T) == key_of(nn.HuberLoss(delta=2.0), T, T)

    def test_parameters_buffers_and_plain_tensors_are_inputs(self) -> None:
        module = Loss()
        binding = binding_of(module, T)
        found = dict(zip(binding.names, binding.tensors, strict=True))
        assert set(found) == {"x", "temperature", "scale", "plain"}
        assert found["temperature"] is module.temperature and found["plain"] is module.plain

    def test_a_submodules_tensors_are_named_by_their_path(self) -> None:
        outer = nn.Sequential(Loss())
        assert "_0_temperature" in binding_of(outer, T).names

    def test_replay_puts_other_tensors_in_their_place_and_takes_them_out_again(self) -> None:
        module = Loss()
        binding = binding_of(module, T)
        replaced = dict(zip(binding.names, (torch.full((3,), 5.0),) * 4, strict=True))
        result = binding.replay([replaced[name] for name in binding.names])
        torch.testing.assert_close(result, torch.full((3,), 5.0**2 * 5 * 5 + 5))
        assert module.plain is binding.tensors[binding.names.index("plain")]
        assert isinstance(module.temperature, nn.Parameter)

    def test_replay_restores_the_module_after_an_error(self) -> None:
        module = Loss()
        binding = binding_of(module, T)
        with pytest.raises(RuntimeError, match="size"):
            binding.replay([torch.zeros(2), *binding.tensors[1:]])
        assert module.scale is binding.tensors[binding.names.index("scale")]
        assert not is_replaying()


class TestClosures:
    def test_a_change_of_what_a_function_closes_over_changes_the_key(self) -> None:
        margin, weights = 1.0, [1.0, 2.0]

        def loss(x: torch.Tensor) -> torch.Tensor:
            return x * margin * weights[0]

        before = key_of(loss, T)
        weights[0] = 5.0
        between = key_of(loss, T)
        margin = 2.0
        assert len({before, between, key_of(loss, T)}) == 3


class TestNames:
    def test_are_the_parameters_of_the_signature(self) -> None:
        def loss(prediction: Any, target: Any, *, weight: Any = None) -> Any:
            return prediction

        binding = binding_of(loss, T, U, weight=torch.zeros(1))
        assert binding.names == ("prediction", "target", "weight")

    def test_tensors_in_a_list_are_numbered(self) -> None:
        assert binding_of(identity, [T, U]).names == ("x_0", "x_1")

    def test_names_that_would_collide_are_numbered(self) -> None:
        def loss(x: Any, x_0: Any) -> Any:
            return x

        names = binding_of(loss, [T, U], torch.zeros(2)).names
        assert len(set(names)) == 3 and names[0] == "x_0"

    def test_a_tensor_given_twice_has_the_names_of_both_parameters(self) -> None:
        def distance(anchor: torch.Tensor, positive: torch.Tensor, *, negative: torch.Tensor) -> torch.Tensor:
            return anchor - positive + negative

        for binding in (binding_of(distance, T, T, negative=T), binding_of(distance, negative=T, positive=T, anchor=T)):
            assert sorted(binding.names) == ["anchor", "negative", "positive"]


def test_replaying_is_known_while_it_lasts() -> None:
    binding = binding_of(lambda x: x * is_replaying(), torch.ones(1))
    assert not is_replaying()
    assert binding.replay(binding.tensors).item() == 1
    assert not is_replaying()


SCALE = 2.0
WEIGHT = torch.ones(3)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


class TestGlobals:
    def test_a_number_that_a_helper_reads_is_part_of_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = binding_of(lambda x: scaled(x).sum(), T).statics
        function = lambda x: scaled(x).sum()  # noqa: E731
        assert binding_of(function, T).statics == binding_of(function, T).statics != before
        one = binding_of(function, T).statics
        monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
        assert binding_of(function, T).statics != one

    def test_tensors_are_inputs(self) -> None:
        binding = binding_of(lambda x: x * WEIGHT, T)
        assert "WEIGHT" in binding.names
        doubled = [t if name != "WEIGHT" else 2 * t for name, t in zip(binding.names, binding.tensors, strict=True)]
        torch.testing.assert_close(binding.replay(doubled), 2 * T)
        torch.testing.assert_close(WEIGHT, torch.ones(3))


class TestCaptured:
    def test_tensors_of_closures_lists_and_objects_are_inputs(self) -> None:
        class Box:
            def __init__(self) -> None:
                self.inside = torch.ones(3)

        alone, several, box = torch.ones(3), {"a": [torch.ones(3)]}, Box()
        binding = binding_of(lambda x: x + alone + several["a"][0] + box.inside, T)
        assert set(binding.names) == {"x", "alone", "several_a_0", "box_inside"}
        torch.testing.assert_close(binding.replay([t * 2 for t in binding.tensors]), 2 * T + 6)
        assert box.inside.sum() == alone.sum() == 3

    @pytest.mark.parametrize("kind", ["attribute", "list", "dictionary", "variable", "buffer"])
    def test_what_the_loss_changes_is_put_back_and_named(self, kind: str) -> None:
        history: list[Any] = []
        table: dict[str, Any] = {}
        count = 0

        class Loss(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(3))
                self.last = 0

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                nonlocal count
                if kind == "attribute":
                    self.last = x
                elif kind == "list":
                    history.append(x)
                elif kind == "dictionary":
                    table["x"] = x
                elif kind == "variable":
                    count += 1
                else:
                    self.mean = self.mean + x
                return x.sum()

        loss = Loss()
        binding = bind(Loss.forward, inspect.signature(Loss.forward), loss, (T,), {})
        changes: list[Change] = binding.replay(binding.tensors, then=lambda returned, changed: changed())
        assert changes
        assert loss.last == 0 and not history and not table and count == 0 and not loss.mean.any()


class Schedule:
    """A callable object with a state."""

    def __init__(self) -> None:
        self.value = 1.0

    def __call__(self) -> float:
        return self.value


class Constants(nn.Module):
    factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def test_a_replay_that_is_interrupted_before_it_begins_is_undone() -> None:
    class Interrupting(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            raise KeyboardInterrupt

    own, later = [torch.ones(2)], Interrupting(a=torch.ones(3))
    kept = (Kept("own", own[0], own, 0), Kept("later", later["a"], later, "a"))
    before = own[0]
    with pytest.raises(KeyboardInterrupt), Surroundings(kept, ()).swapped([torch.zeros(2), torch.zeros(3)]):
        pytest.fail("it does not begin")
    assert own[0] is before


def test_the_state_of_a_callable_is_part_of_the_key() -> None:
    schedule = Schedule()
    function = lambda x: x * schedule()  # noqa: E731
    before = binding_of(function, T).statics
    assert binding_of(function, T).statics == before
    schedule.value = 2.0
    assert binding_of(function, T).statics != before


@pytest.mark.parametrize("one", [T, True, 2], ids=str)
@pytest.mark.parametrize("other", [None, 3, 0.5, "a"])
def test_where_an_argument_is_is_part_of_the_key(one: Any, other: Any) -> None:
    function = lambda x, *rest, **more: x  # noqa: E731
    pairs = [
        (binding_of(function, T, one, other), binding_of(function, T, other, one)),
        (binding_of(function, T, [one, other]), binding_of(function, T, [other, one])),
        (binding_of(function, T, low=one, high=other), binding_of(function, T, low=other, high=one)),
    ]
    assert all(one.statics != another.statics for one, another in pairs)


@pytest.mark.parametrize("key", [1, 1.0, (1,), b"1"], ids=repr)
def test_what_a_dictionary_is_asked_by_is_part_of_the_key(key: Any) -> None:
    held: dict[Any, float] = {key: 2.0}
    function = lambda x: x * len(held)  # noqa: E731
    before = binding_of(function, T).statics
    held[str(key)] = held.pop(key)
    assert binding_of(function, T).statics != before


def test_an_array_is_part_of_the_key() -> None:
    array = np.ones(3)
    function = lambda x: x * float(array.sum())  # noqa: E731
    before = binding_of(function, T).statics
    assert binding_of(function, T).statics == before
    array[0] = 5
    assert binding_of(function, T).statics != before


def test_a_constant_of_a_class_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = binding_of(Constants(), T).statics
    assert binding_of(Constants(), T).statics == before
    monkeypatch.setattr(Constants, "factor", 3.0)
    assert binding_of(Constants(), T).statics != before


def test_a_name_in_another_module_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    function = lambda x: x * evaluate.EXAMPLE  # type: ignore[attr-defined]  # noqa: E731
    monkeypatch.setattr(evaluate, "EXAMPLE", 1.0, raising=False)
    before = binding_of(function, T).statics
    assert binding_of(function, T).statics == before
    monkeypatch.setattr(evaluate, "EXAMPLE", 2.0)
    assert binding_of(function, T).statics != before
