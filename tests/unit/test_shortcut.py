"""The reader of a shortcut: it returns what a call is made of, and sees every change that the key sees."""

from __future__ import annotations

import collections
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import autogen.dispatch.plans
import autogen.dispatch.sites
from autogen.calls.binding import Binding, bind
from autogen.dispatch.compilations import key_of
from autogen.dispatch.plans import Family, Plan, Plans
from autogen.dispatch.shortcut import Shortcut, shortcut
from autogen.dispatch.sites import Sites
from autogen.runtime import geometry
from tests.unit import test_binding, test_reachable

T = torch.zeros(3)


def bound(loss: Any, *args: Any, varying: tuple[str, ...] = (), **kwargs: Any) -> tuple[Binding, Shortcut | None]:
    module = loss if isinstance(loss, nn.Module) else None
    function = type(loss).forward if module is not None else loss
    binding = bind(function, inspect.signature(function), module, args, kwargs, varying)
    return binding, shortcut(binding, module, args, kwargs)


def found(loss: Any, *args: Any, varying: tuple[str, ...] = (), **kwargs: Any) -> Shortcut:
    short = bound(loss, *args, varying=varying, **kwargs)[1]
    assert short is not None
    return short


@pytest.mark.parametrize("change", test_reachable.CHANGES)
def test_a_change_of_what_a_function_reaches_is_seen(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = found(test_reachable.uses_len, T)
    assert short.read(None, (T,), {}) is not None
    test_reachable.CHANGES[change](monkeypatch)
    assert short.read(None, (T,), {}) is None
    monkeypatch.undo()
    assert short.read(None, (T,), {}) is not None


@pytest.mark.parametrize("change", test_binding.CHANGES)
def test_a_change_of_a_module_is_seen(change: str) -> None:
    module = test_binding.Loss()
    short = found(module, T)
    assert short.read(module, (T,), {}) is not None
    test_binding.CHANGES[change](module)
    assert short.read(module, (T,), {}) is None


@pytest.mark.parametrize("key", [True, 1.0, 2])
def test_keys_of_another_kind_are_others(key: Any) -> None:
    def loss(given: Any) -> Any:
        return next(iter(given.values()))

    short = found(loss, {1: T})
    assert short.read(None, ({1: T},), {}) is not None
    assert short.read(None, ({key: T},), {}) is None


def test_what_is_no_tensor_is_not_asked() -> None:
    """As in `torch.fx.symbolic_trace`, which would record the questions."""
    short = found(lambda x: x.sum(), T)
    graph = torch.fx.Graph()
    assert short.read(None, (torch.fx.Proxy(graph.placeholder("x")),), {}) is None
    assert len(graph.nodes) == 1


def test_another_module_is_another() -> None:
    one, other = test_binding.Loss(), test_binding.Loss()
    assert found(one, T).read(other, (T,), {}) is None


@pytest.mark.parametrize(("one", "other"), test_binding.DIFFERENT, ids=test_binding._name)
def test_arguments_that_differ_are_seen(one: Any, other: Any) -> None:
    short = bound(test_binding.identity, T, one)[1]
    assert short is None or short.read(None, (T, other), {}) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(0.1, float("0.1"), True), (0.0, -0.0, False), (float("nan"), float("nan"), False), (1, True, False)],
)
def test_numbers_among_the_arguments(one: Any, other: Any, same: bool) -> None:
    assert (found(test_binding.identity, T, one).read(None, (T, other), {}) is not None) == same


def test_arguments_by_keyword_and_missing_ones() -> None:
    short = found(test_binding.identity, T, option=T)
    assert short.read(None, (T,), {"option": T}) is not None
    for args, kwargs in (((T, T), {}), ((T,), {}), ((), {}), ((T,), {"other": T}), ((T,), {"option": None})):
        assert short.read(None, args, kwargs) is None


OTHERS: list[Callable[[], Any]] = [
    lambda: T.to(torch.float64),
    lambda: torch.zeros(4),
    lambda: torch.zeros(6)[::2],
    lambda: T.clone().requires_grad_(),
    lambda: nn.Parameter(T),
    lambda: torch.zeros(3, device="meta"),
    lambda: torch.complex(T, T).conj().imag,
    lambda: None,
    lambda: T.to_sparse(),
    lambda: torch.zeros(2, 2).to_sparse_csr(),
    lambda: T.to_mkldnn(),
    lambda: torch.quantize_per_tensor(T, 1.0, 0, torch.quint8),
    lambda: torch.nested.nested_tensor([T, torch.zeros(2)]),
    lambda: torch.ones(3, dtype=torch.complex64),
]
"""Tensors that differ from `T` in what a launch depends on, and what is none."""


def remembered(short: Shortcut, *args: Any) -> Any:
    """A plan for a call, which the shortcut has found before."""
    reading, plan = short.read(None, args, {}), object()
    assert reading is not None and isinstance(reading[1], tuple)
    short.plans.keep(reading[1], plan, is_again=short.plans.note(reading[1]))  # type: ignore[arg-type]
    for _ in range(2):
        assert plan_of(short, *args) is plan
    return plan


def plan_of(short: Shortcut, *args: Any) -> Any:
    reading = short.read(None, args, {})
    assert reading is not None
    return reading[1]


@pytest.mark.parametrize("make", OTHERS)
def test_tensors_of_another_kind_have_another_key(make: Callable[[], Any]) -> None:
    short = found(test_binding.identity, T)
    expected = short.read(None, (T,), {})
    reading = short.read(None, (make(),), {})
    assert expected is not None and (reading is None or reading[1] != expected[1])


@pytest.mark.parametrize("make", OTHERS)
def test_the_latest_plan_is_for_no_tensors_of_another_kind(make: Callable[[], Any]) -> None:
    short = found(test_binding.identity, T)
    plan = remembered(short, T)
    reading = short.read(None, (make(),), {})
    assert reading is None or isinstance(reading[1], tuple)
    assert plan_of(short, torch.ones(3)) is plan


def test_the_latest_plan_among_others() -> None:
    short = found(test_binding.identity, T, T)
    arguments = [(T, T), (torch.zeros(4), torch.zeros(4)), (torch.zeros(4), T), (T, torch.ones(3))]
    one, other, third = (remembered(short, *each) for each in arguments[:3])
    for _ in range(2):
        assert [plan_of(short, *each) for each in arguments] == [one, other, third, one]


def test_the_latest_plan_in_and_out_of_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that was made in one is renewed in the other."""
    short = found(test_binding.identity, T)
    with torch.no_grad():
        plan = remembered(short, T)
        for _ in range(2):
            assert plan_of(short, T) is plan
            with torch.inference_mode():
                assert plan_of(short, T) is plan
        monkeypatch.setattr(short.plans, "find", None)
        with torch.inference_mode():
            assert plan_of(short, T) is plan


def test_the_latest_plan_holds_no_tensor() -> None:
    short, tensor = found(test_binding.identity, T), torch.zeros(7)
    remembered(short, tensor)
    reference = weakref.ref(tensor)
    del tensor
    assert reference() is None


class ShapesOnly:
    """A test of tensors that does not look at all that there is to them."""

    def __init__(self, *tensors: torch.Tensor, **more: Any) -> None:
        self.shapes = [each.shape for each in tensors]

    def check(self, *tensors: torch.Tensor) -> bool:
        return [each.shape for each in tensors] == self.shapes


@pytest.mark.parametrize("guards", [None, ShapesOnly])
def test_another_torch_has_no_test_for_the_latest_plan(guards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if guards is None:
        monkeypatch.delattr("torch._C._dynamo.guards.TensorGuards")
    else:
        monkeypatch.setattr("torch._C._dynamo.guards.TensorGuards", guards)
    geometry._is_thorough.cache_clear()
    try:
        short = found(test_binding.identity, T)
        remembered(short, T)
        assert isinstance(plan_of(short, torch.zeros(6)[::2]), tuple)
        assert short.plans.latest == (None, None, None)
    finally:
        geometry._is_thorough.cache_clear()


def test_what_holds_for_all_tensors_is_in_the_key() -> None:
    short = found(test_binding.identity, T)

    def key() -> Any:
        reading = short.read(None, (T,), {})
        assert reading is not None
        return reading[1]

    keys = [key()]
    remembered(short, T)
    with torch.no_grad():
        keys.append(key())
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key())
    with torch.autocast("cpu", torch.float16):
        keys.append(key())
    torch.set_default_dtype(torch.float64)
    try:
        keys.append(key())
    finally:
        torch.set_default_dtype(torch.float32)
    assert len(set(keys)) == 5 and not isinstance(key(), tuple)


def test_tensors_are_those_of_this_call() -> None:
    module = test_binding.Loss()
    binding, short = bound(module, T)
    assert short is not None
    other = torch.ones(3)
    module.plain = other
    reading = short.read(module, (other,), {})
    assert reading is not None
    tensors = dict(zip(binding.names, reading[0], strict=True))
    assert tensors["x"] is other and tensors["plain"] is other and tensors["scale"] is module.scale


def test_floats_that_vary_are_read_and_must_be_floats() -> None:
    class Annealed(nn.Module):
        weight = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.margin = 0.5

        def forward(self, x: Any, scale: Any) -> Any:
            return x * self.weight + self.margin - scale

    module = Annealed()
    binding, short = bound(module, T, 2.0, varying=("weight", "margin", "scale"))
    assert short is not None
    module.margin = 0.75
    reading = short.read(module, (T, 3.0), {})
    assert reading is not None and set(reading[2]) == {1.0, 0.75, 3.0}
    assert dict(zip(binding.numbers, reading[2], strict=True))["scale"] == 3.0
    assert short.call(reading[0], reading[2]) == ((T, 3.0), {})
    for odd in (1, None, T, float("inf"), float("nan")):
        assert short.read(module, (T, odd), {}) is None
    module.margin = float("inf")
    assert short.read(module, (T, 3.0), {}) is None


def test_what_cannot_be_compared_by_identity_has_no_shortcut() -> None:
    objects = np.array([T], dtype=object)
    assert bound(lambda x: x * objects[0], T)[1] is None
    assert bound(test_binding.identity, collections.OrderedDict(x=T))[1] is None
    read_only = np.ones(3)[:]  # what is in it may be written to by another name
    read_only.flags.writeable = False
    assert bound(lambda x: x * read_only[0], T)[1] is None


@pytest.mark.parametrize(
    "make", [lambda held: weakref.WeakSet([held]), lambda held: weakref.WeakValueDictionary({1: held})]
)
def test_what_a_loss_holds_weakly_is_not_kept_alive(make: Callable[[Any], Any]) -> None:
    held: Any = test_reachable.Plain()
    table, gone = make(held), weakref.ref(held)
    short = bound(lambda x: x * len(table), T)[1]
    del held
    gc.collect()
    assert gone() is None and short is None


def test_containers_are_compared_by_what_is_in_them() -> None:
    _, short = bound(test_binding.identity, [T, (T, {"x": T, 1: 2.0})])
    assert short is not None
    other = torch.zeros(5)
    reading = short.read(None, ([T, (other, {"x": T, 1: 2.0})],), {})
    assert reading is not None and [*map(id, reading[0])] == [id(T), id(other), id(T)]
    assert short.call(reading[0], ()) == (([T, (other, {"x": T, 1: 2.0})],), {})
    last = {"x": T, 1: 2.0}
    others = [(T, (T, last)), [T, [T, last]], [T, (T, {1: 2.0, "x": T})], [T, (T, {"x": T})], [T, (T, T, last)], T]
    for given in (*others, [T, (T, {"x": T, 1: 3.0})], [T, (T, {"y": T, 1: 2.0})]):
        assert short.read(None, (given,), {}) is None


def test_the_oldest_plan_is_forgotten_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.plans, "MOST_PLANS", 3)
    plans, kept = Plans(), [cast("Plan", object()) for _ in range(5)]
    for k, plan in enumerate(kept):
        plans.keep((None, k), plan, is_again=plans.note((None, k)))
        assert plans.find((None, k), [torch.zeros(k)]) is plan  # which makes it the second time
    assert [plans.find((None, k), [torch.zeros(k)]) for k in range(5)] == [(None, 0), (None, 1), *kept[2:]]
    assert set(plans._tests) <= set(plans._plans)


def test_plans_of_geometries_that_come_once_are_not_kept() -> None:
    plans, kept = Plans(), [cast("Plan", object()) for _ in range(4)]
    for k, plan in enumerate(kept):
        plans.keep((None, k), plan, is_again=plans.note((None, k)))
    assert [plans.find((None, k), [torch.zeros(k)]) for k in range(4)] == [kept[0], (None, 1), (None, 2), kept[3]]
    for k in (1, 2):
        assert plans.note((None, k))
        plans.keep((None, k), kept[k], is_again=True)
    assert [plans.find((None, k), [torch.zeros(k)]) for k in range(4)] == kept


def test_the_oldest_family_is_forgotten_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.plans, "_MOST_FAMILIES", 3)
    plans, known = Plans(), [cast("Family", object()) for _ in range(5)]
    keys = [(k, *(eval(f"t.{name}", {"t": T}) for name in geometry.ATTRIBUTES)) for k in range(5)]
    for key, family in zip(keys, known, strict=True):
        plans.know(plans.family(key)[0], family)
    assert [plans.family(key)[1] for key in keys] == [None, None, *known[2:]]


def test_not_all_geometries_that_come_are_noted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.plans, "_MOST_NOTED", 3)
    plans = Plans()
    for k in range(10):
        plans.note((None, k))
    assert len(plans._noted) <= 3


def test_the_oldest_site_is_forgotten_and_that_of_a_module_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autogen.dispatch.sites, "MOST_SITES", 2)
    sites, modules = Sites(), [nn.Identity() for _ in range(4)]
    for module in modules:
        assert sites.of(module) is sites.known(module)
    assert [sites.known(module) is not None for module in modules] == [False, False, True, True]
    modules.pop()
    del module
    assert len(sites._sites) == 1 and sites.known(modules[2]) is not None


def test_there_is_room_for_hundreds_of_sizes_that_come_again() -> None:
    assert autogen.dispatch.plans.MOST_PLANS >= 1024


def many(**options: Any) -> list[torch.Tensor]:
    shapes = [(), (0,), (1,), (2,), (5,), (2, 3), (4, 1), (1, 4), (4, 0), (7, 9), (2, 3, 4)]
    return [torch.empty(shape, **options) for shape in shapes]


def test_calls_of_one_family_are_known_by_one_key() -> None:
    with torch.inference_mode():
        inference = many()
    others = many(dtype=torch.float64), many(requires_grad=True), many(device="meta"), inference
    tensors = [*many(), *(each for group in others for each in group), torch.empty(3, 2).t()]
    tensors += [nn.Parameter(torch.empty(2, 3)), torch._neg_view(torch.empty(2, 3)), torch.empty(2, 3).to_sparse()]
    first = torch.empty(4)
    short = found(lambda x, y: x * y, first, first)
    families: dict[Any, set[Any]] = {}
    strided = [each for each in tensors if each.layout == torch.strided]
    for each in strided:
        attributes = [eval(f"t.{name}", {"t": t}) for t in (first, each) for name in geometry.ATTRIBUTES]
        families.setdefault(geometry.kinds_of(attributes), set()).add(
            (key_of(short, (first, each)), type(each), each.layout, each.is_neg(), each.is_inference())
        )
    assert all(len(keys) == 1 for keys in families.values())
    assert 20 < len(families) < len(strided)


def test_sizes_that_keep_changing_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether kernels can run on tensors, and which have been compiled, is asked for each family of calls."""
    from autogen import autogen_loss
    from autogen.dispatch import planning

    asked: list[Any] = []
    original = planning.needs_of_plain
    monkeypatch.setattr(planning, "needs_of_plain", lambda *given: asked.append(given) or original(*given))
    loss = autogen_loss(lambda x, y: ((x - y) ** 2).mean())
    for n in (3, 4, 5, 6, 7, 8, 6):
        loss(torch.zeros(n), torch.ones(n))
    assert len(asked) == 1
    for n in (1, 1, 9, 1):  # of another family, and so traced
        loss(torch.zeros(n), torch.ones(n))
    assert len(asked) == 3
    for n in (2, 3):
        x = torch.zeros(n, requires_grad=True)
        loss(x, torch.ones(n)).backward()
        assert torch.equal(x.grad, torch.full((n,), -2 / n))
        with torch.no_grad():
            assert not loss(x, torch.ones(n)).requires_grad
    with torch.inference_mode():
        kept = torch.zeros(11)
    assert loss(kept, torch.ones(11)) == 1
    y = torch.ones(11, requires_grad=True)
    loss(kept, y).backward()  # by torch: it cannot be saved for the kernels of backward
    assert torch.equal(y.grad, torch.full((11,), 2 / 11))
