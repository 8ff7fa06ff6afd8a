"""What a loss finds by a name that it computes, or through a registry of torch's, is part of its key, too."""

from __future__ import annotations

import functools
import io
import itertools
import multiprocessing
import sys
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import AffineTransform, ComposeTransform, Normal, TanhTransform, kl, kl_divergence, register_kl

from autogen import autogen_loss, explain
from tests.interpret import computed_names
from tests.interpret.computed_names import COMPUTED, CONFIG, OfGlobals
from tests.interpret.launches import Launches
from tests.interpret.processes import result_of, start

X, Y = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 1, 12).reshape(3, 4)

OPS: Any = types.ModuleType("ops_of_a_test")
OPS.halved = lambda x: x / 2


class ByName(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(OPS, self.name)(x).mean()
        return result


class OfDict(ByName):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = OPS.__dict__[self.name](x).mean()
        return result


def _of(module: types.ModuleType, name: str) -> Any:
    return getattr(module, name)


class ByHelper(ByName):
    """The code that names the module does not look anything up."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _of(OPS, self.name)(x).mean()
        return result


@pytest.mark.parametrize("kind", [ByName, OfDict, ByHelper])
def test_a_function_of_another_module(kind: type[ByName], monkeypatch: pytest.MonkeyPatch, launches: Launches) -> None:
    loss = autogen_loss(kind("halved"))
    for factor in (0.5, 100.0, 3.0):
        if factor != 0.5:
            monkeypatch.setattr(OPS, "halved", lambda x, factor=factor: x * factor)
        for _ in range(3):
            torch.testing.assert_close(loss(Y), (Y * factor).mean())
    assert launches.take() == 9


def test_a_global_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = autogen_loss(OfGlobals("scaled"))
    torch.testing.assert_close(loss(Y), (Y * 2).mean())
    monkeypatch.setattr(computed_names, "FACTOR", 3.0)
    torch.testing.assert_close(loss(Y), (Y * 3).mean())
    monkeypatch.setattr(computed_names, "scaled", lambda x: x * 100)
    torch.testing.assert_close(loss(Y), (Y * 100).mean())


@pytest.mark.parametrize("how", COMPUTED)
def test_a_name_that_is_computed(how: str, monkeypatch: pytest.MonkeyPatch, launches: Launches) -> None:
    monkeypatch.setitem(sys.modules, "config_of_a_test", CONFIG)
    loss = autogen_loss(COMPUTED[how])
    for weight in (2.0, 5.0, 0.5):
        monkeypatch.setattr(CONFIG, "POS_WEIGHT", weight, raising=False)
        monkeypatch.setattr(computed_names, "POS_WEIGHT", weight, raising=False)
        for _ in range(3):
            torch.testing.assert_close(loss(Y), Y.mean() * weight)
    assert launches.take() == 9


class OfConfig(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.name = CONFIG, "MARGIN"

    def forward(self, x: Tensor) -> Tensor:
        return x.mean() * getattr(self.config, self.name, 1.0)


def with_what_can_be_imported(x: Tensor) -> Tensor:
    try:
        from config_of_a_test import MARGIN  # type: ignore[import-not-found]
    except ImportError:
        return x.mean()
    return x.mean() * float(MARGIN)


def with_what_is_there(x: Tensor) -> Tensor:
    try:
        return x.mean() * float(CONFIG.MARGIN)
    except AttributeError:
        return x.mean()


ABSENT: dict[str, Callable[[Tensor], Tensor]] = {
    "getattr": lambda x: x.mean() * getattr(CONFIG, "MARGIN", 1.0),
    "hasattr": lambda x: x.mean() * (CONFIG.MARGIN if hasattr(CONFIG, "MARGIN") else 1.0),
    "vars": lambda x: x.mean() * vars(CONFIG).get("MARGIN", 1.0),
    "an attribute": OfConfig(),
    "an error that is caught": with_what_is_there,
    "an import": with_what_can_be_imported,
    "computed": lambda x: x.mean() * getattr(CONFIG, "margin".upper(), 1.0),
    "all": lambda x: x.mean() * max([1.0, *(value for name, value in vars(CONFIG).items() if name.isupper())]),
}


@pytest.mark.parametrize("how", ABSENT)
def test_a_name_that_is_not_there_at_first(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "config_of_a_test", CONFIG)
    loss = autogen_loss(ABSENT[how])
    for _ in range(3):
        torch.testing.assert_close(loss(Y), Y.mean())
    for margin in (2.0, 3.0, 4.0):
        monkeypatch.setattr(CONFIG, "MARGIN", margin, raising=False)
        torch.testing.assert_close(loss(Y), Y.mean() * margin)
    monkeypatch.delattr(CONFIG, "MARGIN")
    torch.testing.assert_close(loss(Y), Y.mean())


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.parts = [1.0, 2.0]
        self.named = {"weight": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.parts[0] * self.named["weight"]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_module_of_torchscript(is_loaded: bool) -> None:
    scripted = torch.jit.script(Scripted())
    if is_loaded:
        file = io.BytesIO()
        torch.jit.save(scripted, file)
        scripted = torch.jit.load(io.BytesIO(file.getvalue()))
    loss = autogen_loss(lambda x: scripted(x).sum())
    changes: list[tuple[str, Callable[[float], Any]]]
    changes = [("scale", float), ("parts", lambda s: [s, 1.0]), ("named", lambda s: {"weight": s})]
    for attribute, made in changes:
        for scale in (2.0, 2.0, 2.0, 5.0, 7.0, 3.0, 4.0):
            setattr(scripted, attribute, made(scale))
            torch.testing.assert_close(loss(Y), scripted(Y).sum())


_PROGRAM = """
import torch
from autogen import autogen_loss
import {module}

@autogen_loss
class ByName(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return getattr({module}, {name})(x).mean()

print(ByName({case})(torch.full((3, 4), 2.0)).item())
"""


@pytest.mark.parametrize("name", ["self.name", "self.name.lower()"])
def test_a_module_that_is_edited(name: str, tmp_path: Path) -> None:
    """The next process does not run what the module was."""
    program = _PROGRAM.format(module="ops_to_edit", name=name, case=repr("scaled" if name == "self.name" else "SCALED"))
    for factor in (2.0, 7.0):
        (tmp_path / "ops_to_edit.py").write_text(f"def scaled(x):\n    return x * {factor}\n")
        assert float(result_of(start(program, tmp_path, 0))) == 2 * factor


class Own(Normal):
    """A distribution with a rule of the user's."""


WEIGHT = 0.5


@register_kl(Own, Own)
def _of_own(p: Own, q: Own) -> Tensor:
    return (p.loc - q.loc).square() * WEIGHT


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return kl_divergence(Own(x, 1.0, validate_args=False), Own(y, 1.0, validate_args=False)).mean()


def test_a_rule_of_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = autogen_loss(divergence)
    for weight in (0.5, 3.0):
        monkeypatch.setitem(globals(), "WEIGHT", weight)
        torch.testing.assert_close(loss(X, Y), (X - Y).square().mean() * weight)


def test_a_rule_that_is_registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_KL_REGISTRY", "_KL_MEMOIZE"):
        monkeypatch.setattr(kl, name, dict(getattr(kl, name)))
    loss = autogen_loss(divergence)
    for _ in range(3):
        torch.testing.assert_close(loss(X, Y), (X - Y).square().mean() * WEIGHT)
    register_kl(Own, Own)(lambda p, q: p.loc * q.loc)
    for _ in range(3):
        torch.testing.assert_close(loss(X, Y), (X * Y).mean())


class WithEvent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.is_warm = threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean() if self.is_warm.is_set() else x.abs().mean()


def test_an_event() -> None:
    loss = autogen_loss(WithEvent())
    for is_warm in (False, False, True, True, False):
        loss.is_warm.set() if is_warm else loss.is_warm.clear()
        torch.testing.assert_close(loss(X), X.square().mean() if is_warm else X.abs().mean())


class Shared(nn.Module):
    def __init__(self, lock: bool) -> None:
        super().__init__()
        self.step = multiprocessing.Value("i", 1, lock=lock)
        self.scales = multiprocessing.Array("d", [1.0, 2.0], lock=lock)

    def forward(self, x: Tensor) -> Tensor:
        return x.sum() * self.step.value


class SharedArray(Shared):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum() * self.scales[0]


@pytest.mark.parametrize("kind", [Shared, SharedArray])
@pytest.mark.parametrize("lock", [False, True])
def test_a_number_that_processes_share(kind: type[Shared], lock: bool) -> None:
    """Another process may change it at any time."""
    loss = autogen_loss(kind(lock))
    for step in (1, 1, 2, 3):
        loss.step.value = loss.scales[0] = step
        torch.testing.assert_close(loss(Y), Y.sum() * step)
    assert explain(loss, Y).path == "eager"


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform = ComposeTransform([TanhTransform(), AffineTransform(0.0, 2.0)])

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.transform(x).mean()
        return result


def test_a_transform_of_torchs() -> None:
    loss = autogen_loss(Flow())
    for scale in (2.0, 2.0, 5.0, 7.0, 9.0):
        loss.transform.parts[1].scale = scale
        torch.testing.assert_close(loss(Y), (Y.tanh() * scale).mean())


def _of_default(x: Tensor, counts: Any = itertools.count(2)) -> Tensor:  # noqa: B008
    return x.mean() * next(counts)


def _of_items(counts: Any) -> Any:
    table = {"first": counts}
    return lambda x: x.mean() * sum(next(each) for each in table.values())


def _of_pairs(x: Tensor, pairs: Any) -> Tensor:
    return x.mean() + sum((a - b).abs().mean() for a, b in pairs)


def test_pairs_that_a_loss_is_given() -> None:
    """A trace would take them out of the iterator."""
    loss = autogen_loss(_of_pairs)
    for _ in range(3):
        torch.testing.assert_close(loss(X, zip([X, Y], [Y, -Y], strict=True)), _of_pairs(X, [(X, Y), (Y, -Y)]))


@pytest.mark.parametrize(
    "loss",
    [_of_default, _of_items(itertools.count(2)), functools.partial(_of_default, counts=itertools.count(2))],
    ids=["default", "item of a dictionary", "argument of a partial function"],
)
def test_an_iterator_without_a_name(loss: Any) -> None:
    ours = autogen_loss(loss)
    for count in (2, 3, 4):
        torch.testing.assert_close(ours(Y), Y.mean() * count)


SETTINGS: Any = types.ModuleType("settings_of_a_test")
SETTINGS.scale = 2.0


def _scaled_by(x: Tensor, settings: Any) -> Tensor:
    result: Tensor = x.mean() * settings.scale
    return result


class WithSettings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = SETTINGS

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x.mean() * self.settings.scale
        return result


class OfClass(WithSettings):
    settings = SETTINGS

    def __init__(self) -> None:
        nn.Module.__init__(self)


@pytest.mark.parametrize(
    "loss",
    [
        WithSettings(),
        OfClass(),
        lambda x: _scaled_by(x, SETTINGS),
        lambda x: _scaled_by(x, sys.modules["settings_of_a_test"]),
        functools.partial(_scaled_by, settings=SETTINGS),
    ],
    ids=["attribute", "attribute of a class", "passed on", "looked up", "argument of a partial function"],
)
def test_a_module_that_other_code_reads(loss: Any, monkeypatch: pytest.MonkeyPatch, launches: Launches) -> None:
    monkeypatch.setitem(sys.modules, "settings_of_a_test", SETTINGS)
    ours = autogen_loss(loss)
    for scale in (2.0, 3.0, 4.0):
        monkeypatch.setattr(SETTINGS, "scale", scale)
        for _ in range(3):
            torch.testing.assert_close(ours(Y), Y.mean() * scale)
    assert launches.take() == 9


def test_a_module_that_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = autogen_loss(_scaled_by)
    for scale in (2.0, 2.0, 3.0):
        monkeypatch.setattr(SETTINGS, "scale", scale)
        torch.testing.assert_close(ours(Y, SETTINGS), Y.mean() * scale)


class Held(nn.Module):
    scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Holding(nn.Module):
    def __init__(self, held: nn.Module) -> None:
        super().__init__()
        self.held = weakref.proxy(held)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.held(x).mean()
        return result


def test_a_module_that_is_held_weakly(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    loss = autogen_loss(Holding(held))
    for scale in (2.0, 2.0, 3.0):
        monkeypatch.setattr(Held, "scale", scale)
        torch.testing.assert_close(loss(Y), Y.mean() * scale)
    assert explain(loss, Y).path == "eager"
