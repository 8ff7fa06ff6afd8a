"""Digests of keys: the same in every process, and another for every change that a key tells."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import enumerate as threads
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as distribution
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.calls.digest
from autogen.calls.binding import bind
from autogen.calls.digest import UnstableKeyError, digest
from autogen.calls.identity import Identity
from tests.unit import test_binding, test_reachable

T = torch.zeros(3)
MODES = frozenset({"a", "b", "c", "d"})


def of(loss: Any, *args: Any) -> str:
    module = loss if isinstance(loss, nn.Module) else None
    function = type(loss).forward if module is not None else loss
    return digest(bind(function, inspect.signature(function), module, args, {}).statics)


def chosen(x: Tensor, mode: str = "a") -> Tensor:
    """A loss that names a set in its code and one outside, a function of torch, and a module."""
    return F.relu(x).mean() * math.pi if mode in {"e", "f", "a"} and mode in MODES else torch.exp(x).sum()


LOSSES: dict[str, Callable[[], str]] = {
    "a function": lambda: of(chosen, T),
    "a module": lambda: of(nn.CrossEntropyLoss(label_smoothing=0.1), T, T),
    "a module of the user's": lambda: of(test_binding.Loss(), T),
    "what a function reaches": lambda: of(test_reachable.uses_len, T),
}


def test_it_is_the_same_in_every_process() -> None:
    here = Path(__file__).parents[2]
    program = "from tests.unit.test_digest import LOSSES; print(*(each() for each in LOSSES.values()))"
    seen = set()
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", program], cwd=here, env=environment, capture_output=True, text=True, check=True
        )
        seen.add(run.stdout.strip())
    assert seen == {" ".join(each() for each in LOSSES.values())}
    assert len(set(seen.pop().split())) == len(LOSSES)


@pytest.mark.parametrize("change", test_reachable.CHANGES)
def test_a_change_of_what_a_function_reaches_is_another(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(test_reachable.uses_len, T)
    test_reachable.CHANGES[change](monkeypatch)
    with contextlib.suppress(UnstableKeyError):  # nothing is kept on disk then
        assert of(test_reachable.uses_len, T) != before
    monkeypatch.undo()
    assert of(test_reachable.uses_len, T) == before


@pytest.mark.parametrize("change", test_binding.CHANGES)
def test_a_change_of_a_module_is_another(change: str) -> None:
    module = test_binding.Loss()
    before = of(module, T)
    test_binding.CHANGES[change](module)
    with contextlib.suppress(UnstableKeyError):
        assert of(module, T) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ((1, 2), (12,)), (("a", "b"), ("ab",)), ((), ((),)), (None, "None")],
)
def test_values_that_differ(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


def test_integers_of_more_digits_than_python_writes() -> None:
    most = 1 << 20_000
    assert len({digest(each) for each in (most, -most, most + 1)}) == 3


def test_code_that_differs_in_a_line_alone() -> None:
    """Kernels name the user's lines."""
    text = "def loss(x):\n    return x.sum()\n"
    scopes: list[dict[str, Any]] = [{}, {}]
    for scope, before in zip(scopes, ("", "\n"), strict=True):
        exec(before + text, scope)
    assert digest(scopes[0]["loss"].__code__) != digest(scopes[1]["loss"].__code__)


def test_a_function_of_ones_own_in_the_place_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = of(chosen, T)
    monkeypatch.setattr(F, "relu", lambda x: x)
    first = of(chosen, T)
    monkeypatch.setattr(F, "relu", lambda x: x + 1)
    assert len({before, first, of(chosen, T)}) == 3


def asks_the_environment(x: Tensor) -> Tensor:
    return x.sum() * float(os.environ.get("SCALE", "1"))


def asks_for_a_rank(x: Tensor) -> Tensor:
    return x.sum() + torch.distributed.get_rank()


def asks_by_another_name(x: Tensor) -> Tensor:
    return x.sum() + len(threads())


def asks_a_module(x: Tensor) -> Tensor:
    return x.sum() + distribution.get_world_size()


def imports(x: Tensor) -> Tensor:
    import tests.formulas

    return x.sum() if tests.formulas else x.mean()


def asks_inside(x: Tensor) -> Tensor:
    return sum((lambda each: each.sum() * hash("a"))(part) for part in x)


def asks_for_a_file(x: Tensor) -> Tensor:
    return x.sum() * float(numpy.loadtxt("scale.txt"))


def asks_how_numpy_prints(x: Tensor) -> Tensor:
    return x.sum() * float(numpy.get_printoptions()["precision"])


def asks_for_an_unknown_setting(x: Tensor) -> Tensor:
    return x.sum() * torch.autograd.is_view_replay_enabled()


def asks_for_a_version(x: Tensor) -> Tensor:
    return x.sum() + x._version


def imports_what_computes(x: Tensor) -> Tensor:
    import math

    from torch.nn import functional

    return functional.relu(x).sum() * math.pi


@pytest.mark.parametrize(
    "loss",
    [
        asks_the_environment,
        asks_for_a_rank,
        asks_by_another_name,
        asks_a_module,
        asks_for_a_file,
        asks_how_numpy_prints,
        asks_for_an_unknown_setting,
        asks_for_a_version,
        imports,
        asks_inside,
    ],
)
def test_what_may_differ_between_processes(loss: Callable[..., Tensor]) -> None:
    with pytest.raises(UnstableKeyError):
        of(loss, T)


def asks_a_setting(x: Tensor) -> Tensor:
    return x.sum() * (2.0 if torch.are_deterministic_algorithms_enabled() else 1.0)


def test_the_answer_of_torch_is_part_of_it() -> None:
    before = of(asks_a_setting, T)
    torch.use_deterministic_algorithms(True)
    try:
        assert of(asks_a_setting, T) != before
    finally:
        torch.use_deterministic_algorithms(False)
    assert of(asks_a_setting, T) == before


def test_modules_that_compute() -> None:
    assert of(imports_what_computes, T) == of(imports_what_computes, T)


def test_a_file_that_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what the walk may miss there, such as a function that is found by a name that was put together."""
    before = of(chosen, T)
    monkeypatch.setattr(autogen.calls.digest, "_content_of", lambda file: b"another")
    assert of(chosen, T) != before


HELD = iter("ab")


def uses_held(x: Tensor) -> Tensor:
    return x.sum() if HELD is None else x.mean()


def test_an_object_that_other_processes_do_not_have() -> None:
    with pytest.raises(UnstableKeyError):
        of(uses_held, T)


def test_a_class_without_the_name_of_a_module_is_not_known_elsewhere() -> None:
    for key in (Identity(test_reachable.CythonFunction), Identity(test_reachable.DOUBLED)):
        with pytest.raises(UnstableKeyError):
            digest((key,))
