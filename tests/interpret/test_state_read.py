"""What a loss keeps, and looks at after all: by another name, in other code, in another list."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.interpret.test_state_unread import Growing, Logging, NewDictionary, assert_kept, call
from torch import Tensor, nn

from autogen import autogen_loss
from tests.interpret.launches import Launches

LOGS = operator.attrgetter("logs")


def read_by_a_helper(module: Any) -> float:
    return 0.0 if module.logs is None else float(len(module.logs))


class ReadByAHelper(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        found = read_by_a_helper(self)
        self.logs = {"a": a.detach(), "b": b.detach()} if found < 2 else None
        return a + found


class ReadByAnother(Logging):
    def average(self) -> float:
        return sum(self.history) / max(len(self.history), 1)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        found = self.average()
        self.history.append(x.shape[0])
        return a + found


class ReadBySubscript(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        found = vars(self)["logs"] or {"n": 0}
        self.logs = {"n": found["n"] + 1}
        return a + found["n"]


class ReadFirst(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if self.logs is not None:
            a = a * self.logs["scale"]
        self.logs = {"scale": 2.0}
        return a


class ReadWhereItIsNotAssigned(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if len(x) > 4:
            self.logs = {"n": len(x)}
        return a if self.logs is None else a * self.logs["n"]


class Overridden(Logging):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "logs" and vars(self).get("logs") is not None:
            value = {"n": vars(self)["logs"]["n"] + 1}
        super().__setattr__(name, value)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> None:
        self.logs = {"n": 0}


def read_logs(self: Any) -> int:
    return 2 if self.logs is None else 3


BY_ANOTHER_NAME: dict[str, dict[str, Any]] = {
    "python": {"__len__": read_logs, "scale": lambda self: len(self)},
    "property": {"read": read_logs, "of": property(read_logs), "scale": lambda self: self.of},
    "partial": {"read": read_logs, "of": functools.partialmethod(read_logs), "scale": lambda self: self.of()},
    "bound": {"read": read_logs, "scale": lambda self: self.of()},
    "getter": {"scale": lambda self: 2 if LOGS(self) is None else 3},
    "state": {"scale": lambda self: 2 if self.__reduce_ex__(2)[2]["logs"] is None else 3},
    "text": {"scale": lambda self: len("{0.logs}".format(self))},  # noqa: UP030, UP032
}


class ReadByAnotherName(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        found = self.scale()
        self.logs = {"a": a.detach() > 0}
        return a * found


def read_by(way: str) -> Callable[[], Logging]:
    def make() -> Logging:
        loss: Logging = type("Loss", (ReadByAnotherName,), BY_ANOTHER_NAME[way])()
        if way == "bound":
            loss.of = loss.read
        return loss

    return make


class ReadByPlace(Logging):
    __match_args__ = ("logs",)

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        match self:
            case ReadByPlace(None):
                a = 2 * a
        self.logs = {"n": len(x)}
        return a


class ReadOfAnother(Logging):
    def __init__(self, *others: ReadOfAnother) -> None:
        super().__init__()
        self.others = others

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        self.logs = {"n": len(x)}
        self = self.others[0]
        return 2 * a if self.logs is None else a


class ReadInALibrary(nn.HuberLoss):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        self.delta = 0.25
        return loss


class ReadInAnotherList(Logging):
    def __init__(self) -> None:
        super().__init__()
        self.other = {"a": self.history}, self.history

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        self.history.append(1.0)
        return a * len(self.other[1])


class ReadInAnotherDictionary(Logging):
    def __init__(self) -> None:
        super().__init__()
        self.history = {"a": []}
        self.other = {"of": self.history["a"]}

    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        self.history["a"].append(x.shape[0])
        return a * len(self.other["of"])


class ReadInOneBranch(Logging):
    def log(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        loss = a + len(x)
        if len(x) == 3:
            loss = loss + (LOGS(self) or {"n": 0.0})["n"]
        self.logs = {"n": float(len(x))}
        return loss


@pytest.mark.parametrize(
    "kind",
    [
        *(ReadByAHelper, ReadByAnother, ReadBySubscript, ReadFirst, ReadWhereItIsNotAssigned, Overridden),
        *(ReadInAnotherList, ReadInAnotherDictionary, ReadInOneBranch, ReadByPlace),
        lambda: ReadOfAnother(ReadOfAnother()),
        *map(read_by, BY_ANOTHER_NAME),
    ],
)
def test_what_is_read_after_all(kind: Callable[[], Logging]) -> None:
    theirs = kind()
    ours = autogen_loss(copy.deepcopy(theirs))
    for seed, rows in enumerate((5, 3, 5, 5, 4, 3)):
        torch.testing.assert_close(call(ours, seed, rows), call(theirs, seed, rows))
        assert_kept(ours, theirs)


def test_what_a_library_reads(launches: Launches) -> None:
    theirs = ReadInALibrary(delta=0.25)
    ours = autogen_loss(copy.deepcopy(theirs))
    for seed in range(4):
        launches.take()
        found = call(ours, seed)
        assert launches.take() == 2
        torch.testing.assert_close(found, call(theirs, seed))
    assert ours.delta == theirs.delta


def test_a_list_that_grows_among_the_arguments() -> None:
    class Loss(Growing):
        def forward(self, x: Tensor, y: Tensor, before: list[float]) -> Any:
            self.history.append(1.0)
            return (x - y).square().mean() * len(before)

    ours = autogen_loss(Loss())
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    for k in range(4):
        torch.testing.assert_close(ours(x, y, ours.history), (x - y).square().mean() * (k + 1))


class Parent(nn.Module):
    """One that reads what another keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = NewDictionary()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        before = 0.0 if self.inner.logs is None else self.inner.logs["a"]
        loss: Tensor = self.inner(x, y) + before
        return loss


def test_what_another_module_reads() -> None:
    theirs = Parent()
    ours = autogen_loss(copy.deepcopy(theirs))
    for seed, rows in enumerate((5, 3, 5, 5, 4, 3)):
        torch.testing.assert_close(call(ours, seed, rows), call(theirs, seed, rows))
        assert_kept(ours.inner, theirs.inner)
