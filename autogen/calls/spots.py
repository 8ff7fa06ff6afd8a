"""Spots that a walk over a call looks at: each tells, as Python text, how to see that nothing has changed there.

`autogen.dispatch.shortcut` makes one function of that, which is much cheaper than looking at everything again.
"""

from __future__ import annotations

import enum
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from autogen.frozen import frozen


class Key(enum.Enum):
    """Keys that no place has."""

    ADDED = enum.auto()  # of what is added to a list


MISSING = object()
HELD = object()  # stands for a tensor of the call, which is put there by itself
HIDDEN = object()  # stands for what the loss does not look at, so that it is seen whether it assigns that
_BY_VALUE = (int, float, str)  # an equal one of these is the same, but for zeros and nan

Namer = Callable[[Any], str]
"""Gives an object a name in the text."""


@frozen
class Difference:
    """What a place holds under a key now, and held `before`; `key` is `MISSING` where that cannot be assigned, and
    `Key.ADDED` where a list has got more.
    """

    name: str
    key: Any
    before: Any
    now: Any


class Spot(ABC):
    """What was looked at. `kept`, where it is asked for, are the (container's id, key) of what may change freely."""

    @abstractmethod
    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        """Python expressions that are true while nothing has changed."""


class Place(Spot):
    """A spot where the loss may change something."""

    @abstractmethod
    def look(self) -> Place:
        """The same place, as it is now."""

    @abstractmethod
    def differences(self) -> Iterator[Difference]:
        """What has changed since it was looked at."""

    @abstractmethod
    def put_back(self) -> None:
        """Put back what was there."""

    def hide(self) -> None:
        """Take away what the loss does not look at, until that is put back."""

    @abstractmethod
    def without(self, kept: Collection[tuple[int, Any]]) -> Place:
        """The same without the values of `kept`, so as not to keep them alive."""

    def assign(self, key: Any, value: Any) -> None:
        """Assign what a call of the loss has made to the key of a difference."""
        raise NotImplementedError


@frozen
class Fixed(Spot):
    """An attribute of an object that a loss does not assign, such as its class."""

    owner: Any
    name: str
    before: Any

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        owner = name(self.owner)
        is_class = self.name == "__class__"
        yield reads_as(f"type({owner})" if is_class else f"{owner}.{self.name}", self.before, name)


@frozen
class Names(Spot):
    """Names of a module or class that no loss assigns, such as the functions of a library; there are at least two."""

    scope: Mapping[str, Any]
    names: tuple[str, ...]
    before: tuple[Any, ...]

    @classmethod
    def of(cls, scope: Mapping[str, Any], names: Sequence[str]) -> Names:
        """What they are now."""
        names = tuple(names) * (2 if len(names) == 1 else 1)
        return cls(scope, names, operator.itemgetter(*names)(scope))

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        # At once, as there are many: tuples of the same objects are equal without a look at these.
        yield f"{name(operator.itemgetter(*self.names))}({name(self.scope)}) == {name(self.before)}"


@frozen
class Absent(Spot):
    """Names that a module has not; where a loss may ask for any name, how many it has."""

    scope: Mapping[str, Any]
    names: tuple[str, ...]
    count: int | None

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        if self.count is not None:
            yield f"len({name(self.scope)}) == {self.count}"
        elif self.names:
            yield f"{name(self.scope)}.keys().isdisjoint({name(self.names)})"


def is_same(now: Any, before: Any) -> bool:
    """Whether nothing was assigned, or a number or string that equals what was there in all."""
    if now is before:
        return True
    return type(now) is type(before) and type(now) in _BY_VALUE and repr(now) == repr(before)


def literal(key: Any, name: Namer) -> str:
    """A key as text."""
    return repr(key) if type(key) in (int, str) else name(key)


def reads_as(text: str, value: Any, name: Namer) -> str:
    """That what `text` reads is `value`, or a number or string that equals it in all."""
    if type(value) in _BY_VALUE and value and value == value:
        kind = type(value).__name__
        return f"((v := {text}) is {name(value)} or type(v) is {kind} and v == {name(value)})"
    return f"{text} is {name(value)}"
