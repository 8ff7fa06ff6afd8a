"""What a loss keeps and never looks at: its last losses in a new dictionary, lists that grow with each call."""

from __future__ import annotations

import collections
import copy
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from autogen import autogen_loss, explain, trace_count
from autogen.decorator import dispatcher_of
from autogen.options import PLANS_VARIABLE
from autogen.runtime import build
from tests.interpret.launches import Launches

SEEN: list[float] = []


class Logging(nn.Module):
    """A loss of two terms, which subclasses log."""

    logs: Any
    history: Any

    def __init__(self) -> None:
        super().__init__()
        self.logs = None
        self.history = []

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Any:
        """What the loss keeps of its terms; what it returns, if that is more than the loss."""

    def forward(self, x: Tensor, y: Tensor) -> Any:
        a, b = (x - y).square().mean(), (x - y).abs().mean()
        returned = self.log(x, a, b)
        return a + 0.5 * b if returned is None else returned


class NewDictionary(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = {"a": a.item(), "b": b.detach(), "rows": x.shape[0], "of": ("a", None, 1.5), "dtype": x.dtype}


class Nested(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        terms = collections.OrderedDict(a=a, b=b)
        self.logs = {"terms": {name: term.detach().clone() for name, term in terms.items()}, "all": [a.item(), [x]]}


class FilledLater(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = {}
        for name, term in (("a", a), ("b", b)):
            self.logs[name] = term.detach()
        self.logs["share"] = (a / b).item()


class NewTuple(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = a.item(), (b.detach(), x.shape)


class NewList(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = []
        self.logs.append(a.detach())
        self.logs.append(b.item())


class Plain(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = a.detach()
        self.name, self.rows, self.is_run = "mse", x.shape[0], True


class Growing(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.history.append(a.item())
        self.history.append((b.detach(), x.shape[0]))


class Latest(Logging):
    def __init__(self) -> None:
        super().__init__()
        self.history = collections.deque([0.0], maxlen=3)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.history.append(a.item())


class Full(Logging):
    """Nothing in it tells what is new."""

    def __init__(self) -> None:
        super().__init__()
        self.history = collections.deque([True, True], maxlen=2)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.history.append(True)


class Lists(Logging):
    def __init__(self) -> None:
        super().__init__()
        self.history = collections.defaultdict(list)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        for name in ("a",):
            self.history[name].append(a.item())
        self.history["b"].append(b.detach())


class OneList(Logging):
    """Under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = self.history

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.history.append(a.item())
        self.logs.append(b.item())


class WithGraph(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = {"loss": a, "other": [x.detach(), a]}
        self.history.append(b)


class ReturnedToo(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Any:
        self.logs = {"a": a.detach(), "terms": [b.detach()]}
        self.history = self.logs["terms"]
        return a + 0.5 * b, {"logs": self.logs}


class Loads(Logging):
    """What is not looked at has a getter, which does not run."""

    def summary(self) -> str:
        return str(self.logs)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = {"a": a.detach()}


KINDS = [
    NewDictionary,
    Nested,
    FilledLater,
    NewTuple,
    NewList,
    Plain,
    Growing,
    Latest,
    Full,
    Lists,
    OneList,
    ReturnedToo,
    Loads,
    WithGraph,
]


def kept_by(module: nn.Module) -> tuple[list[Any], Any]:
    return pytree.tree_flatten({name: value for name, value in vars(module).items() if name in ("logs", "history")})


def assert_kept(ours: nn.Module, theirs: nn.Module) -> None:
    (found, structure), (wanted, expected) = kept_by(ours), kept_by(theirs)
    assert structure == expected
    for got, value in zip(found, wanted, strict=True):
        assert type(got) is type(value)
        if isinstance(value, Tensor):
            assert got.requires_grad == value.requires_grad
        if isinstance(value, (Tensor, float)):
            torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-6)
        assert isinstance(value, (Tensor, float)) or got == value


def call(loss: Callable[..., Any], seed: int, rows: int = 5) -> tuple[Any, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=generator, requires_grad=True)
    returned = loss(x, torch.randn(rows, 3, generator=generator))
    pytree.tree_leaves(returned)[0].backward(retain_graph=True)
    return returned, x.grad


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_only_kept(kind: type[Logging], launches: Launches) -> None:
    theirs = kind()
    ours = autogen_loss(copy.deepcopy(theirs))
    for seed, rows in enumerate((5, 5, 5, 4, 3, 5, 6, 5)):
        launches.take()
        results = call(ours, seed, rows)
        assert launches.take() == 2
        torch.testing.assert_close(results, call(theirs, seed, rows))
        assert_kept(ours, theirs)
    assert trace_count(ours) <= 2
    assert explain(ours, torch.randn(5, 3), torch.randn(5, 3)).path == "generated"


@pytest.mark.parametrize("kind", [each for each in KINDS if each is not WithGraph])
def test_it_is_no_matter_to_the_short_way(kind: type[Logging]) -> None:
    ours = autogen_loss(kind())
    for seed in range(4):
        call(ours, seed)
    dispatcher = dispatcher_of(ours)[0]
    before = list(dispatcher._sites.of(ours).shortcuts)
    dispatcher.prepare = None  # the long way
    call(ours, 5)
    assert dispatcher._sites.of(ours).shortcuts == before


def test_what_is_kept_with_its_graph() -> None:
    theirs = WithGraph()
    ours = autogen_loss(copy.deepcopy(theirs))
    gradients = []
    for loss in (ours, theirs):
        _, gradient = call(loss, 0)
        (loss.logs["loss"] + 2 * loss.logs["other"][1] + 3 * loss.history[-1]).backward()
        gradients.append(gradient)
    torch.testing.assert_close(*gradients)


def test_what_is_returned_is_the_same_object() -> None:
    ours = autogen_loss(ReturnedToo())
    for seed in range(4):
        (_, returned), _ = call(ours, seed)
        assert returned["logs"] is ours.logs
        assert ours.logs["terms"] is ours.history


def test_what_the_user_puts_there_meanwhile_is_replaced() -> None:
    ours = autogen_loss(Plain())
    for seed in range(4):
        call(ours, seed)
    for kept in ({"name": None, "rows": "many", "is_run": False}, {"name": [1]}):
        vars(ours).update(kept)
        call(ours, 5, 4)
        assert (ours.name, ours.rows, ours.is_run) == ("mse", 4, True)
    del ours.name, ours.logs
    call(ours, 6)
    assert ours.name == "mse"
    assert ours.logs.shape == ()
    history = autogen_loss(Growing())
    for seed in range(4):
        call(history, seed)
        history.history = history.history[:1]
    assert len(history.history) == 1
    call(history, 5)
    assert len(history.history) == 3


def test_a_full_deque_that_is_emptied_meanwhile() -> None:
    ours = autogen_loss(Full())
    for seed in range(3):
        call(ours, seed)
    ours.history.clear()
    call(ours, 3)
    assert list(ours.history) == [True]


class NewBuffer(Logging):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(()))

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.last = a.detach()


def test_a_buffer_that_is_only_assigned() -> None:
    theirs = NewBuffer()
    ours = autogen_loss(copy.deepcopy(theirs))
    for seed in range(4):
        torch.testing.assert_close(call(ours, seed), call(theirs, seed))
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert "last" not in vars(ours)


def test_in_a_decorated_class() -> None:
    @autogen_loss
    class Loss(Growing):
        """One more class around the method."""

    ours = Loss()
    for seed in range(3):
        call(ours, seed)
    assert len(ours.history) == 6
    assert trace_count(ours) == 1


def test_nothing_keeps_what_was_kept_before() -> None:
    ours = autogen_loss(NewDictionary())
    seen = []
    for seed in range(6):
        call(ours, seed)
        seen.append(weakref.ref(ours.logs["b"]))
    gc.collect()
    assert [each() is None for each in seen] == [True] * 5 + [False]


def test_a_graph_keeps_nothing_that_the_loss_does_not_look_at() -> None:
    ours, results, seen = autogen_loss(NewBuffer()), [], []
    for seed in range(4):
        results.append(call(ours, seed))  # with their graphs
        seen.append(weakref.ref(ours.last))
    gc.collect()
    assert [each() is None for each in seen] == [True] * 3 + [False]


def test_a_list_of_the_module_and_one_of_a_function() -> None:
    mine: list[Tensor] = []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        error = (x - y).square().mean()
        SEEN.append(error.item())
        mine.append(error.detach())
        return error

    SEEN.clear()
    ours = autogen_loss(loss)
    for rows in (5, 5, 5, 4, 5):
        x, y = torch.randn(rows, 3), torch.randn(rows, 3)
        expected = (x - y).square().mean()
        torch.testing.assert_close(ours(x, y), expected)
        torch.testing.assert_close((torch.tensor(SEEN[-1]), mine[-1]), (expected, expected))
    assert len(SEEN) == len(mine) == 5
    assert trace_count(ours) == 1


def existing(self: Any, x: Any) -> None:
    self.logs = self.other


def of_an_argument(self: Any, x: Any) -> None:
    self.logs = x


def twice(self: Any, x: Any) -> None:
    self.logs = self.history = {"n": 1}


def within(self: Any, x: Any) -> None:
    self.history = {"n": 1}
    self.logs = [self.history]


@pytest.mark.parametrize("keep", [existing, of_an_argument, twice, within])
def test_what_is_seen_elsewhere_stays_the_same_object(keep: Callable[..., None]) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other, self.history = {"n": 2}, None

        def forward(self, x: list[Tensor], y: Tensor) -> Tensor:
            keep(self, x)
            return (x[0] - y).square().mean() * self.other["n"]

    ours, logs = autogen_loss(Loss()), None
    for _ in range(4):
        given = [torch.randn(5, 3)]
        ours(given, torch.randn(5, 3))
        same = {existing: ours.other, of_an_argument: given, twice: ours.history, within: ours.history}[keep]
        assert (ours.logs[0] if keep is within else ours.logs) is same
        assert ours.logs is not logs or keep is existing
        logs = ours.logs


TEXT = "{0.scale}"


class Formatting(nn.Module):
    """Reads what it seems only to assign."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 0:
            self.scale = 1.0
        return x.exp() * len(TEXT.format(self))


def test_other_processes_find_no_trace_that_has_read_what_was_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.delenv(PLANS_VARIABLE)
    x = torch.randn(5, 3)
    for _ in range(2):  # the second is decorated as it would be in another process
        torch.testing.assert_close(autogen_loss(Formatting())(x), Formatting()(x))
    assert list(tmp_path.glob(f"*/*/*{build.PLAN}"))


class Trainer:
    """No module: its method is the loss."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.terms: dict[str, list[float]] = {"share": []}
        self.step = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        error = (x - y).square().mean()
        self.losses.append(error.item())
        self.terms["share"].append((error / 2).item())
        return self.finish(error)

    def finish(self, error: Tensor) -> Tensor:
        return error

    def report(self) -> float:  # which the loss does not call
        return sum(self.losses[-2:]) + self.terms["share"][-1]


class ModuleTrainer(nn.Module):
    """A module whose `forward` is not the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        error = (x - y).square().mean()
        self.losses.append(error.item())
        return error

    def report(self) -> float:
        return sum(self.losses[-2:])


class Reading(Trainer):
    def finish(self, error: Tensor) -> Tensor:
        return error * len(self.losses)


class ReadingByProperty(Trainer):
    @property
    def weight(self) -> float:
        return 1.0 + self.losses[0]

    def finish(self, error: Tensor) -> Tensor:
        return error * self.weight


def reports(trainer: Any) -> Tensor:
    return torch.tensor([*trainer.losses, trainer.report()])


@pytest.mark.parametrize("kind", [Trainer, ModuleTrainer])
def test_the_lists_of_an_object_whose_method_is_the_loss(kind: Any) -> None:
    class Decorated(kind):  # type: ignore[misc]
        loss = autogen_loss(kind.loss)

    ours, theirs = Decorated(), kind()
    for seed, rows in enumerate((5, 5, 4, 5, 6)):
        torch.testing.assert_close(call(ours.loss, seed, rows), call(theirs.loss, seed, rows))
        torch.testing.assert_close(reports(ours), reports(theirs))
    assert trace_count(ours.loss) == 1
    assert explain(ours.loss, torch.randn(5, 3), torch.randn(5, 3)).path == "generated"


@pytest.mark.parametrize("kind", [Reading, ReadingByProperty])
def test_the_lists_of_an_object_that_are_read(kind: type[Trainer]) -> None:
    class Decorated(kind):  # type: ignore[misc, valid-type]
        loss = autogen_loss(Trainer.loss)

    ours, theirs = Decorated(), kind()
    for seed in range(4):
        torch.testing.assert_close(call(ours.loss, seed), call(theirs.loss, seed))
        torch.testing.assert_close(reports(ours), reports(theirs))
