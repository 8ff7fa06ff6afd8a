"""What a loss reaches through names, classes and objects is part of its key; what it changes there is put back."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autogen import autogen_loss
from autogen.calls.reachable import MOST_VALUES, Reachable
from autogen.calls.spots import MISSING
from autogen.calls.surroundings import Change
from tests.unit.pipeline import binding_of

T = torch.zeros(3)
THIS = sys.modules[__name__]


class Slotted:
    __slots__ = ("margin", "table")

    def __init__(self) -> None:
        self.margin = 1.0


class Plain:
    factor = 1.0

    def __init__(self) -> None:
        self.margin = 1.0


class Flags:
    is_on = False
    table = (1.0, 2.0)


class Named(dict[str, float]):
    """A dictionary with attributes."""


def helper(x: Any) -> Any:
    return 2 * x


def other_helper(x: Any) -> Any:
    return 3 * x


NOTHING = None
SLOTTED, PLAIN, NAMED = Slotted(), Plain(), Named()
NAMESPACE = types.SimpleNamespace(margin=1.0)
CHAIN = collections.ChainMap({"margin": 1.0})
LONG = list(range(200))
SET, QUEUE = {1}, collections.deque([1])
BYTES = bytearray(b"ab")
INNER = nn.Linear(3, 3)
DEEP: Any = [[[[[[[[[[1.0]]]]]]]]]]


def reads_names(x: Any) -> Any:
    if Flags.is_on or MAYBE:  # type: ignore[name-defined]  # noqa: F821
        return x
    return helper(x), NOTHING, SLOTTED, PLAIN, NAMED, NAMESPACE, CHAIN, LONG, SET, QUEUE, INNER(x), DEEP


class Loss(nn.Module):
    constant: float | None = None
    table: Any = (1.0,)

    def scaled(self, x: Any) -> Any:
        return x

    @staticmethod
    def fixed(x: Any) -> Any:
        return x

    @property
    def margin(self) -> float:
        return 1.0

    def forward(self, x: Any) -> Any:
        return self.fixed(self.scaled(x)) * self.margin


def bottom(values: Any) -> Any:
    return bottom(values[0]) if isinstance(values[0], list) else values


class _Sequence(dict[int, Any]):
    """A sequence as `monkeypatch.setitem` takes one."""

    def __init__(self, sequence: Any) -> None:
        super().__init__(enumerate(sequence))
        self.sequence = sequence

    def __setitem__(self, key: int, value: Any) -> None:
        self.sequence[key] = value


def _set(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any) -> None:
    monkeypatch.setattr(owner, name, value, raising=False)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "function by name": lambda m: _set(m, THIS, "helper", other_helper),
    "code of a function": lambda m: _set(m, helper, "__code__", other_helper.__code__),
    "defaults of a function": lambda m: _set(m, helper, "__defaults__", (1,)),
    "defaults by keyword": lambda m: _set(m, helper, "__kwdefaults__", {"scale": 1}),
    "name that was None": lambda m: _set(m, THIS, "NOTHING", 1.0),
    "name that was not there": lambda m: _set(m, THIS, "MAYBE", True),
    "name that hides a builtin": lambda m: _set(m, THIS, "len", lambda x: 0),
    "constant of a class by name": lambda m: _set(m, Flags, "is_on", True),
    "new constant of a class": lambda m: _set(m, Flags, "added", True),
    "slot": lambda m: _set(m, SLOTTED, "margin", 2.0),
    "slot that was empty": lambda m: _set(m, SLOTTED, "table", 2.0),
    "attribute of an object by name": lambda m: _set(m, PLAIN, "margin", 2.0),
    "constant of an object's class": lambda m: _set(m, Plain, "factor", 2.0),
    "class of an object": lambda m: _set(m, PLAIN, "__class__", Flags),
    "attribute of a dictionary": lambda m: _set(m, NAMED, "margin", 2.0),
    "namespace": lambda m: _set(m, NAMESPACE, "margin", 2.0),
    "chain of dictionaries": lambda m: m.setitem(CHAIN.maps[0], "margin", 2.0),
    "long list": lambda m: m.setitem(_Sequence(LONG), 150, -1),
    "set": lambda m: _set(m, THIS, "SET", {1, 2}),
    "queue": lambda m: m.setitem(_Sequence(QUEUE), 0, 5),
    "hook of an inner module": lambda m: m.setitem(INNER._forward_hooks, 0, print),
    "far down": lambda m: m.setitem(_Sequence(bottom(DEEP)), 0, 2.0),
}


def uses_len(x: Any) -> Any:
    return len(x), reads_names(x)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_the_key(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = binding_of(uses_len, T).statics
    assert binding_of(uses_len, T).statics == before
    CHANGES[change](monkeypatch)
    assert binding_of(uses_len, T).statics != before
    monkeypatch.undo()
    assert binding_of(uses_len, T).statics == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("constant", 1.0),
        ("table", [2.0]),
        ("scaled", lambda self, x: 2 * x),
        ("fixed", staticmethod(lambda x: 0 * x)),
        ("margin", property(lambda self: 2.0)),
        ("added", 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_change_of_a_class_changes_the_key(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Loss()
    before = binding_of(loss, T).statics
    assert binding_of(loss, T).statics == before
    monkeypatch.setattr(Loss, name, value, raising=False)
    assert binding_of(loss, T).statics != before


def test_bytes_are_part_of_the_key() -> None:
    function = lambda x: x * BYTES[0]  # noqa: E731
    before = binding_of(function, T).statics
    BYTES[0] += 1
    assert binding_of(function, T).statics != before


def test_what_another_module_has_is_reached_through_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    package, inner = types.ModuleType("package"), types.ModuleType("package.inner")
    package.inner, inner.CONSTANT = inner, 1.0  # type: ignore[attr-defined]
    monkeypatch.setattr(THIS, "package", package, raising=False)
    function = lambda x: x * package.inner.CONSTANT  # type: ignore[attr-defined]  # noqa: E731
    before = binding_of(function, T).statics
    monkeypatch.setattr(inner, "CONSTANT", 2.0)
    assert binding_of(function, T).statics != before


def test_two_floats_of_one_name_are_two() -> None:
    class Part:
        def __init__(self, eps: float) -> None:
            self.eps = eps

    function = lambda x, one, other: x * one.eps * other.eps  # noqa: E731
    binding = binding_of(function, T, Part(2.0), Part(3.0))
    assert sorted(binding.fixed.values()) == [2.0, 3.0]


def test_tensors_of_classes_and_slots_are_inputs() -> None:
    class Weights:
        weight = torch.full((3,), 2.0)

    slotted = Slotted()
    slotted.table = torch.full((3,), 3.0)
    binding = binding_of(lambda x: x + Weights.weight + slotted.table, T)
    assert set(binding.names) == {"x", "weight", "slotted_table"}
    torch.testing.assert_close(binding.replay([2 * each for each in binding.tensors]), T + 10)
    assert Weights.weight.sum() == 6 and slotted.table.sum() == 9


CALLS = 0


def counts(x: Any) -> Any:
    global CALLS
    CALLS += 1
    Flags.is_on = True
    SLOTTED.margin = 7.0
    SLOTTED.table = 7.0
    SET.add(7)
    QUEUE.append(7)
    return x


def test_what_the_loss_changes_is_put_back_and_named() -> None:
    binding = binding_of(counts, T)
    changes: list[Change] = binding.replay(binding.tensors, then=lambda returned, changed: changed())
    assert {each.difference.name for each in changes} == {"CALLS", "is_on", "margin", "table", "a set", "a deque"}
    assert CALLS == 0 and not Flags.is_on and SLOTTED.margin == 1.0 and len(SET) == 1 and list(QUEUE) == [1]
    assert getattr(SLOTTED, "table", MISSING) is MISSING


def test_too_much_to_look_at_is_given_up() -> None:
    state = Reachable()
    state.visit([[] for _ in range(MOST_VALUES + 1)])
    assert state.is_endless


class Link:
    """One of a list, each of which is kept by the one before."""

    def __init__(self, following: Link | None, scale: Any) -> None:
        self.following, self.scale = following, scale


def test_what_lies_deeper_than_python_calls() -> None:
    last = first = Link(None, torch.tensor(2.0))
    for _ in range(2000):
        first = Link(first, 1)

    def loss(x: torch.Tensor) -> torch.Tensor:
        link = first
        while link.following is not None:
            link = link.following
        return (x * link.scale).sum()

    x = torch.ones(2)
    before = binding_of(loss, x)
    assert before.tensors[1] is last.scale and before.statics == binding_of(loss, x).statics
    assert before.replay([x, torch.tensor(3.0)]) == 6
    last.scale = 4.0
    assert binding_of(loss, x).statics != before.statics


class Lazy(dict[str, list[int]]):
    """Makes what it is asked for, as registries do that import what they name."""

    made = 0

    def __getitem__(self, key: str) -> list[int]:
        Lazy.made += 1
        return dict.__getitem__(self, key)

    def __iter__(self) -> Iterator[str]:
        Lazy.made += 1
        return dict.__iter__(self)

    def keys(self) -> Any:
        Lazy.made += 1
        return dict.keys(self)

    def items(self) -> Any:
        Lazy.made += 1
        return dict.items(self)


LAZY = Lazy(a=[1])


def test_a_dictionary_is_not_asked_for_what_it_makes() -> None:
    def loss(a: torch.Tensor) -> torch.Tensor:
        return a.sum() * len(LAZY)

    ours = autogen_loss(loss, policy="mandatory")
    a, before = torch.rand(5), Lazy.made
    for _ in range(3):
        torch.testing.assert_close(ours(a), loss(a))
    assert Lazy.made == before
    dict.__setitem__(LAZY, "b", [2])
    torch.testing.assert_close(ours(a), loss(a))
    assert Lazy.made == before


class Stubborn:
    """Raises for whatever is asked of it, as packages put in the place of what is not installed."""

    def __getattr__(self, name: str) -> object:
        raise ImportError(name)


STUBBORN = Stubborn()


def test_objects_that_raise_for_every_attribute() -> None:
    def loss(a: torch.Tensor) -> torch.Tensor:
        if a.dim() == 0:
            STUBBORN.anything()  # type: ignore[operator]
        return a.exp().sum()

    a = torch.rand(5)
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(a), loss(a))


class OfCython(type):
    """Classes without the name of a module, as Cython 3.0 makes them for functions, such as those of NumPy 2.2."""

    __module__ = property(lambda cls: object())  # type: ignore[assignment]


class CythonFunction(metaclass=OfCython):
    def __call__(self, number: float) -> float:
        return 2 * number


DOUBLED = CythonFunction()


@pytest.mark.parametrize("named", ["an object", "its class"])
def test_classes_without_the_name_of_a_module(named: str) -> None:
    def of_object(a: torch.Tensor) -> torch.Tensor:
        return (a * DOUBLED(1.5)).sum()

    def of_class(a: torch.Tensor) -> torch.Tensor:
        return a.sum() if isinstance(named, CythonFunction) else a.exp().sum()

    loss = of_object if named == "an object" else of_class
    a = torch.rand(5)
    torch.testing.assert_close(autogen_loss(loss, policy="mandatory")(a), loss(a))


def _key(function: Any) -> Any:
    walk = Reachable()
    return walk.visit(function), [each.name for each in walk.tensors]


def _module(name: str, file: str | None, text: str) -> Any:
    module = types.ModuleType(name)
    module.__file__ = file
    exec(text, vars(module))
    return module


LOSS = "SCALE = 1.0\nclass Held:\n    scale = 2.0\ndef loss(x): return x * SCALE * Held.scale\n"


def test_a_module_of_the_users_that_is_named_as_one_of_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    own = _module("this.losses", "/home/user/this/losses.py", LOSS)
    monkeypatch.setitem(sys.modules, "this.losses", own)
    before = _key(own.loss)
    own.SCALE = 2.0
    after = _key(own.loss)
    own.Held.scale = 3.0
    assert before != after != _key(own.loss)


def test_a_function_that_exec_makes_is_the_users() -> None:
    scope: dict[str, Any] = {}
    exec(LOSS, scope)
    before = _key(scope["loss"])
    scope["SCALE"] = 2.0
    after = _key(scope["loss"])
    scope["Held"].scale = 3.0
    assert before != after != _key(scope["loss"])


class Marked:
    __scale__ = 1.0


SETTING = 1.0
HELPERS = types.ModuleType("helpers")
HELPERS.scale = 1.0  # type: ignore[attr-defined]


def with_scale(x: Any) -> Any:
    return x * with_scale.scale  # type: ignore[attr-defined]


SETTINGS = {"scale": 1.0}
get_setting, all_settings = SETTINGS.get, SETTINGS.values()


def importing(x: Any) -> Any:
    import helpers  # type: ignore[import-not-found]

    return x * helpers.scale


IMPORTING = _module("package.losses", None, "def loss(x):\n    from .helpers import scale\n    return x * scale")
IMPORTING.__package__ = "package"


@pytest.mark.parametrize(("loss", "name"), [(importing, "helpers"), (IMPORTING.loss, "package.helpers")])
def test_a_module_that_the_loss_imports(loss: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, HELPERS)
    monkeypatch.setattr(HELPERS, "scale", 1.0)
    before = _key(loss)
    monkeypatch.setattr(HELPERS, "scale", 2.0)
    assert _key(loss) != before


@pytest.mark.parametrize("loss", [lambda x: x * get_setting("scale"), lambda x: x * sum(all_settings)])
def test_what_is_read_by_way_of_a_dictionary(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _key(loss)
    monkeypatch.setitem(SETTINGS, "scale", 2.0)
    assert _key(loss) != before


@pytest.mark.parametrize(
    ("loss", "owner", "name"),
    [
        (lambda x: with_scale(x), with_scale, "scale"),
        (lambda x: x * Marked.__scale__, Marked, "__scale__"),
        (lambda x: x * globals()["SETTING"], sys.modules[__name__], "SETTING"),
        (lambda x: x * getattr(HELPERS, "scale"), HELPERS, "scale"),  # noqa: B009
    ],
)
def test_what_is_read_in_an_unusual_way(loss: Any, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for value in (1.0, 2.0):
        monkeypatch.setattr(owner, name, value, raising=False)
        keys.append(_key(loss))
    assert keys[0] != keys[1]
