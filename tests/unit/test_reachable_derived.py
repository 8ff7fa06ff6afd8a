"""What objects have beside their content, and what is reached by a way of its own, is part of a loss's key."""

from __future__ import annotations

import builtins
import collections
import configparser
import contextlib
import dataclasses
import decimal
import enum
import functools
import optparse
import queue
import sys
import types
import unittest.mock
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from autogen.calls.digest import digest
from tests.unit.pipeline import binding_of
from tests.unit.test_shortcut import bound

T = torch.zeros(3)
THIS = sys.modules[__name__]
SCALE = 1.0


class OfList(list[float]):
    factor = 1.0

    def scaled(self) -> float:
        return SCALE


class OfTuple(tuple[float, ...]): ...


class OfSet(set[float]): ...


class OfFrozenSet(frozenset[float]): ...


class OfQueue(collections.deque[float]): ...


class OfFloat(float): ...


class OfInt(int): ...


class OfBytes(bytes): ...


class OfStr(str): ...


class Slotted(str):
    __slots__ = ()


class OfArray(np.ndarray): ...  # type: ignore[type-arg]


class OfPartial(functools.partial[Any]): ...


class OfDecimal(decimal.Decimal): ...


class Mode(str, enum.Enum):
    A = "a"
    B = "b"

    @property
    def scale(self) -> float:
        return SCALE


class Options(NamedTuple):
    eps: float = 1.0

    def scaled(self) -> float:
        return self.eps * SCALE


class Meta(type):
    factor = 1.0

    @property
    def scale(cls) -> float:
        return SCALE


class WithMeta(metaclass=Meta): ...


class Named:
    """Objects that look alike."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def __repr__(self) -> str:
        return "Named()"


class WithSetter:
    number = 0.0

    @property
    def doubled(self) -> float:
        return self.number

    @doubled.setter
    def doubled(self, value: Any) -> None:
        self.number = value * SCALE


class Level(enum.Enum):
    LOW = 1

    @types.DynamicClassAttribute
    def scale(self) -> float:
        return SCALE


Item = TypeVar("Item")


class Box(Generic[Item]):
    def __init__(self, item: Any) -> None:
        self.item = item * SCALE


@contextlib.contextmanager
def _scaling() -> Iterator[None]:
    with torch.autocast("cpu", enabled=SCALE == 1.0):
        yield


def _given(x: Any) -> Any:
    given = WithSetter()
    given.doubled = x
    return given.doubled


BOX = Box[float]
MADE = dataclasses.make_dataclass("Made", ["x"], namespace={"scale": lambda self: self.x * SCALE})
NEW = types.new_class("New", (), {}, lambda names: names.update(scale=lambda: SCALE))


class SlottedModule(nn.Module):
    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: Any) -> Any:
        return x * self.scale


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = SlottedModule()

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@functools.lru_cache
def memo() -> float:
    return 1.0


def _module(text: str) -> Any:
    module = types.ModuleType("lazily")
    exec(text, vars(module))
    return module


def from_module(x: Any) -> Any:
    from lazily import scale  # type: ignore[import-not-found]

    return x * scale


LIST, TUPLE, SET, FROZEN, QUEUE = OfList([1.0]), OfTuple([1.0]), OfSet([1.0]), OfFrozenSet([1.0]), OfQueue([1.0])
FLOAT, INT, STR, BYTES = OfFloat(1.0), OfInt(1), OfStr("a"), OfBytes(b"a")
MODE, OPTIONS = Mode.A, Options()
ARRAY = np.ones(2).view(OfArray)
PARTIAL, OWN_PARTIAL = functools.partial(max, 1.0), OfPartial(max, 1.0)
DECIMAL = OfDecimal(1)
MAKING = collections.defaultdict(lambda: SCALE)
HELD = Named()
WEAK = weakref.WeakValueDictionary({"held": HELD})
BY_OBJECT, ALIKE = {HELD: 1.0}, {Named(): 1.0}
OBJECTS, LISTS = np.array([HELD], dtype=object), np.empty(1, dtype=object)
LISTS[0] = [1.0]
TEXT = collections.UserString("a")
PARSER = configparser.ConfigParser()
PARSER["loss"] = {"scale": "1"}
MODULE, OUTER, LINEAR = SlottedModule(), Outer(), nn.Linear(3, 3)


def scaled_by(self: Any, scale: float, x: Any) -> Any:
    return x * scale * SCALE


class Dunder:
    __mode__ = "sum"
    __table__ = {"scale": 1.0}  # noqa: RUF012

    @property
    def __scale__(self) -> float:
        return SCALE

    @classmethod
    def __class_getitem__(cls, x: Any) -> Any:
        return x * SCALE


class Dispatching:
    @functools.singledispatchmethod
    def scaled(self, x: Any) -> Any:
        return x * SCALE

    partly = functools.partialmethod(scaled_by, 1.0)


SIGNED, KEYS = types.SimpleNamespace(number=complex(-1, 0.0)), {1: "a"}
DUNDER, DISPATCHING = Dunder(), Dispatching()
WEAKLY, OPTIONAL, MOCK = weakref.WeakSet([HELD]), optparse.Values({"scale": 1.0}), unittest.mock.Mock(scale=1.0)
WAITING: queue.Queue[float] = queue.Queue()
WAITING.put(1.0)
LAZILY = _module("held = {'scale': 1.0}\ndef __getattr__(name): return held[name]\n")

Patch = pytest.MonkeyPatch
REACHED: dict[str, tuple[Any, Callable[[Patch], None]]] = {
    **{
        f"attribute of {type(value).__name__}": (
            lambda x, value=value: x * value.scale,
            lambda m, value=value: m.setattr(value, "scale", 2.0, raising=False),
        )
        for value in (LIST, TUPLE, SET, FROZEN, QUEUE, FLOAT, INT, STR, BYTES, ARRAY, PARTIAL, OWN_PARTIAL, memo)
    },
    **{
        f"what a method of {type(value).__name__} reads": (
            lambda x, value=value: x * value.scale(),
            lambda m: m.setattr(THIS, "SCALE", 2.0),
        )
        for value in (LIST, MODE, OPTIONS, WithMeta)
    },
    "constant of a class of lists": (lambda x: x * LIST.factor, lambda m: m.setattr(OfList, "factor", 2.0)),
    "constant of a class of classes": (lambda x: x * WithMeta.factor, lambda m: m.setattr(Meta, "factor", 2.0)),
    "slot of a module": (MODULE, lambda m: m.setattr(MODULE, "scale", 2.0)),
    "slot of an inner module": (OUTER, lambda m: m.setattr(OUTER.inner, "scale", 2.0)),
    "what a lazy module reads": (lambda x: x * LAZILY.scale, lambda m: m.setitem(LAZILY.held, "scale", 2.0)),
    "what is imported of it": (from_module, lambda m: m.setitem(LAZILY.held, "scale", 2.0)),
    "name among the builtins": (
        lambda x: x * ADDED,  # type: ignore[name-defined]  # noqa: F821
        lambda m: m.setattr(builtins, "ADDED", 2.0, raising=False),
    ),
    "attribute of a key": (lambda x: x * next(iter(BY_OBJECT)).scale, lambda m: m.setattr(HELD, "scale", 2.0)),
    "another key that looks alike": (
        lambda x: x * next(iter(ALIKE)).scale,
        lambda m: (m.delitem(ALIKE, next(iter(ALIKE))), m.setitem(ALIKE, Named(2.0), 1.0))[0],
    ),
    "attribute of what is held weakly": (lambda x: x * WEAK["held"].scale, lambda m: m.setattr(HELD, "scale", 2.0)),
    "attribute of an object in an array": (lambda x: x * OBJECTS[0].scale, lambda m: m.setattr(HELD, "scale", 2.0)),
    "item of a list in an array": (lambda x: x * LISTS[0][0], lambda m: m.setattr(THIS, "LISTS", _other_lists())),
    "a string that can be changed": (lambda x: x * len(TEXT), lambda m: m.setattr(TEXT, "data", "ab")),
    "number that is no attribute": (lambda x: x * DECIMAL, lambda m: m.setattr(THIS, "DECIMAL", OfDecimal(2))),
    "what makes an item": (lambda x: x * MAKING["a"], lambda m: m.setattr(THIS, "SCALE", 2.0)),
    "another that makes items": (lambda x: x * MAKING["a"], lambda m: m.setattr(MAKING, "default_factory", float)),
    "text in a class": (lambda x: x * len(DUNDER.__mode__), lambda m: m.setattr(Dunder, "__mode__", "mean")),
    "dictionary in a class": (
        lambda x: x * DUNDER.__table__["scale"],
        lambda m: m.setitem(Dunder.__table__, "scale", 2.0),
    ),
    **{
        f"what {name} reads": (loss, lambda m: m.setattr(THIS, "SCALE", 2.0))
        for name, loss in {
            "a property with underscores": lambda x: x * DUNDER.__scale__,
            "a class method with underscores": lambda x: Dunder[x],
            "a method that dispatches": lambda x: DISPATCHING.scaled(x),
            "a partial method": lambda x: DISPATCHING.partly(x),
            "the setter of a property": _given,
            "a property of an enumeration": lambda x: x * Level.LOW.scale,
            "a generic class of another name": lambda x: BOX(x).item,
            "a context manager that decorates": _scaling()(lambda x: x * 2),
            "a class that dataclasses makes": lambda x: MADE(x).scale(),
            "a class that is made anew": lambda x: x * NEW.scale(),
        }.items()
    },
    "item of a set that holds weakly": (
        lambda x: sum(x * each.scale for each in WEAKLY),
        lambda m: m.setattr(HELD, "scale", 2.0),
    ),
    "options of a program": (lambda x: x * OPTIONAL.scale, lambda m: m.setattr(OPTIONAL, "scale", 2.0)),
    "item of a queue": (
        lambda x: x * WAITING.queue[0],
        lambda m: m.setattr(WAITING, "queue", collections.deque([2.0])),
    ),
    "attribute of a mock": (lambda x: x * MOCK.scale, lambda m: m.setattr(MOCK, "scale", 2.0)),
    "method on a class of torch's": (lambda x: x.scaled(), lambda m: m.setattr(THIS, "SCALE", 2.0)),
    "another method on a class of torch's": (
        lambda x: x.scaled(),
        lambda m: m.setattr(torch.Tensor, "scaled", lambda self: self),
    ),
    "method on torch's class of modules": (lambda x: LINEAR.weighed(x), lambda m: m.setattr(THIS, "SCALE", 2.0)),
    "sign of a zero": (
        lambda x: x * SIGNED.number,
        lambda m: m.setattr(SIGNED, "number", complex(-1, -0.0)),
    ),
    "kind of a key": (lambda x: x * next(iter(KEYS)), lambda m: (m.delitem(KEYS, 1), m.setitem(KEYS, True, "a"))[0]),
    "a parser": (
        lambda x: x * PARSER.getfloat("loss", "scale"),
        lambda m: m.setitem(PARSER._sections["loss"], "scale", "2"),  # type: ignore[attr-defined]
    ),
}


def _other_lists() -> Any:
    other = np.empty(1, dtype=object)
    other[0] = [2.0]
    return other


@pytest.fixture
def _on_torchs() -> Iterator[None]:
    """Methods of the user's that all tensors and modules have."""
    torch.Tensor.scaled = lambda self: self * SCALE  # type: ignore[attr-defined]
    nn.Module.weighed = lambda self, x: x * SCALE  # type: ignore[assignment]
    yield
    del torch.Tensor.scaled, nn.Module.weighed  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_on_torchs")
@pytest.mark.parametrize("case", REACHED)
def test_a_change_changes_the_key_and_is_seen(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, change = REACHED[case]
    monkeypatch.setitem(sys.modules, "lazily", LAZILY)
    binding, short = bound(loss, T)
    before, module = binding.statics, loss if isinstance(loss, nn.Module) else None
    assert binding_of(loss, T).statics == before
    assert short is None or short.read(module, (T,), {}) is not None
    change(monkeypatch)
    assert binding_of(loss, T).statics != before
    assert short is None or short.read(module, (T,), {}) is None
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "lazily", LAZILY)
    assert binding_of(loss, T).statics == before


def test_an_item_of_a_list_in_an_array() -> None:
    function = lambda x: x * LISTS[0][0]  # noqa: E731
    before = binding_of(function, T).statics
    LISTS[0][0] = 2.0
    after = binding_of(function, T)
    LISTS[0][0] = 1.0
    assert after.statics != before == binding_of(function, T).statics


def scaled(x: Any, given: Any) -> Any:
    return x * given.scaled() if isinstance(given, Options) else x * given.scale


@pytest.mark.parametrize("given", [MODE, OPTIONS, FLOAT, STR, TUPLE, LIST])
def test_what_arguments_have_beside_their_content(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(THIS, "SCALE", 1.0)
    if not isinstance(given, (Mode, Options)):
        monkeypatch.setattr(given, "scale", 1.0, raising=False)
    binding, short = bound(scaled, T, given)
    assert short is None or short.read(None, (T, given), {}) is not None
    if isinstance(given, (Mode, Options)):
        monkeypatch.setattr(THIS, "SCALE", 2.0)
    else:
        monkeypatch.setattr(given, "scale", 2.0)
    assert binding_of(scaled, T, given).statics != binding.statics
    assert short is None or short.read(None, (T, given), {}) is None


def test_arguments_that_are_equal_but_for_their_attributes() -> None:
    one, other = OfStr("a"), OfStr("a")
    one.scale, other.scale = 1.0, 2.0  # type: ignore[attr-defined]
    binding, short = bound(scaled, T, one)
    assert binding_of(scaled, T, other).statics != binding.statics
    assert short is None or short.read(None, (T, other), {}) is None


@pytest.mark.parametrize("given", [{Named(1.0): T}, {"inner": {Named(1.0): T}}])
def test_keys_of_arguments(given: Any) -> None:
    function = lambda x, given: x  # noqa: E731
    keys = [binding_of(function, T, each).statics for each in (given, {Named(1.0): T}, {Named(2.0): T})]
    assert keys[0] != keys[2] != keys[1]


class Pair:
    """A container of the user's, as torch takes it apart; its kind is a part of how."""

    scale = 1.0

    def __init__(self, items: Any, kind: Any) -> None:
        self.items, self.kind = items, kind


pytree.register_pytree_node(Pair, lambda pair: (pair.items, pair.kind), Pair, serialized_type_name="tests.Pair")


@pytest.mark.parametrize("owner", [Pair, HELD])
def test_what_containers_of_the_users_have(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    function, given = lambda x, given: x * given.scale * given.kind.scale, Pair([T], HELD)
    before = binding_of(function, T, given).statics
    monkeypatch.setattr(owner, "scale", 2.0)
    assert binding_of(function, T, given).statics != before


def test_equal_content_is_the_same_key() -> None:
    function = lambda x, given: x * len(given)  # noqa: E731
    for kind in (Options, lambda each: OfTuple([each]), lambda each: Slotted(f"{each}"), lambda each: OfList([each])):
        one, same, other = (binding_of(function, T, kind(each)).statics for each in (1.0, 1.0, 2.0))
        assert one == same != other


def test_what_refers_to_itself() -> None:
    for value in (OfTuple([1.0]), OfFloat(1.0), OfStr("a"), OfList([1.0]), OfSet()):
        value.me = value  # type: ignore[attr-defined]
        assert binding_of(lambda x, value=value: x * len(value.me), T).statics


@pytest.mark.parametrize("given", [MODE, OPTIONS])
def test_other_processes_know_enumerations_and_named_tuples(given: Any) -> None:
    assert digest(binding_of(lambda x: x * given.scale, T).statics)
    assert digest(binding_of(scaled, T, given).statics)


def test_what_is_referred_to_weakly_has_another_value_whenever_it_is_asked() -> None:
    held = types.SimpleNamespace(reference=weakref.ref(HELD), scale=1.0)
    reached = binding_of(lambda x: x * held.reference().scale, T).state
    assert reached.opaque == "reference (ReferenceType)"
    assert binding_of(lambda x: x * held.scale, T).state.opaque is None
