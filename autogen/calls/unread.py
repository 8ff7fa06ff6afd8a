"""What a loss keeps and never looks at: attributes that it only assigns, and lists that it only appends to.

Nothing there can change what the loss computes. So it is no part of the key of a call, where each call would be of
another kind, and need not be as it was for a call to be like an earlier one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import operator
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from autogen.calls.libraries import is_library, is_of_library
from autogen.calls.mentions import ANY, Uses, attributes_in, uses_in
from autogen.calls.spots import HIDDEN

_CONTAINERS = (tuple, list, collections.deque, dict)
_MAY_GROW = (list, collections.deque, dict, collections.defaultdict)
NONE = Uses()  # known of a name: all may be read
_Method = tuple[str, types.CodeType]
_FINDS_ATTRIBUTES = (operator.attrgetter, operator.methodcaller)
_GIVES_ATTRIBUTES = frozenset({"__getattribute__", "__setattr__", "__delattr__"})


class Unread:
    """What is taken to be unread in one walk over a call, but for names that are `known` to be read.

    That a module does not read an attribute says nothing of other code that the walk comes to: `misjudged` tells.
    """

    def __init__(self, known: frozenset[str] = frozenset()) -> None:
        self._known = known
        self._assumed: set[str] = set()
        self._entered: tuple[types.CodeType, ...] = ()
        self._methods: list[_Method] = []
        self._others: list[types.CodeType] = []
        self._classes: dict[type, None] = {}  # of modules of which something is hidden
        self._held: set[types.CodeType] = set()  # of functions that are kept elsewhere than in a class
        self._growing: set[int] = set()  # lists that are only appended to
        self._may_be_read = False  # by a name that is not known

    def enter(self, function: Any) -> None:
        """Hear of the function that is called, which may be a method that neither torch nor Python calls."""
        self._entered = tuple(_codes_of(function))

    def note(self, code: types.CodeType) -> None:
        """Hear of a function that the loss may run."""
        self._others.append(code)

    def note_growing(self, container: Any) -> None:
        """Hear of a list that is only appended to, or of what holds such lists."""
        self._growing.add(id(container))

    def meet(self, value: Any, container: Any) -> None:
        """Hear of what the loss may read in a container: a list that grows, or a method, by another name."""
        if isinstance(value, types.FunctionType):
            if not isinstance(container, type):
                self._held.add(value.__code__)
        elif id(value) in self._growing or isinstance(value, _FINDS_ATTRIBUTES):
            self._may_be_read = True

    def uses(self, module: torch.nn.Module) -> Uses:
        """The attributes of a module that it only assigns, and those that it only appends to, as far as it tells."""
        stores = module._buffers, module._parameters, module._modules  # where what is assigned goes instead
        found = self._uses_of(type(module)).without(frozenset().union(*stores))
        self._assumed |= found.appended | found.with_appended | found.assigned
        if found.assigned:
            self._classes[type(module)] = None
        return found

    def appended(self, value: Any) -> Uses:
        """The attributes of an object that is no module, such as a trainer, that are only appended to."""
        growing = frozenset(name for name, each in vars(value).items() if type(each) in _MAY_GROW)
        if not growing:
            return NONE
        uses = self._uses_of(type(value))
        found = Uses(uses.read, uses.appended & growing, uses.with_appended & growing)
        self._assumed |= found.appended | found.with_appended
        return found

    def _uses_of(self, kind: type) -> Uses:
        """What is done with names by the methods of a class that may run."""
        owners = [owner for owner in kind.__mro__ if owner not in torch.nn.Module.__mro__]
        if all(map(is_of_library, owners)) or any(not _GIVES_ATTRIBUTES.isdisjoint(vars(owner)) for owner in owners):
            return NONE
        methods = tuple(
            [
                (name, code)
                for owner in owners
                for name, each in vars(owner).items()
                if isinstance(each, types.FunctionType)
                for code in _codes_of(each)
            ]
        )
        self._methods += methods
        uses = _uses(methods, self._entered)
        return NONE if ANY in uses.read else uses.without(self._known)

    def is_appended(self, name: str, value: Any, code: types.CodeType) -> bool:
        """Whether a variable is a list, or holds lists, that some code only appends to."""
        if type(value) not in _MAY_GROW or not only_appended(name, value, uses_in(code).without(self._known)):
            return False
        self._assumed.add(name)
        return True

    @property
    def misjudged(self) -> frozenset[str]:
        """The names that are read after all."""
        if not self._assumed:
            return frozenset()
        if self._may_be_read:
            return frozenset(self._assumed)
        others = set(self._others).difference({code for _, code in self._methods} - self._held).union(self._entered)
        read = _uses(tuple(self._methods), tuple(others)).read
        return frozenset(self._assumed if ANY in read else self._assumed & read)

    @contextlib.contextmanager
    def watched(self, misread: set[str]) -> Iterator[None]:
        """While the loss is traced, what it reads of what is hidden is added to `misread`, however it comes to it."""

        def attribute(module: Any, name: str) -> Any:
            value = object.__getattribute__(module, name)
            if value is HIDDEN:
                misread.add(name)
            elif name == "__dict__" and not is_library(sys._getframe(1).f_globals.get("__name__")):
                misread.update(key for key, each in value.items() if each is HIDDEN)
            return value

        with contextlib.ExitStack() as undoing:
            for kind in self._classes:
                kind.__getattribute__ = attribute  # type: ignore[method-assign, assignment]
                undoing.callback(delattr, kind, "__getattribute__")
            yield


def only_appended(name: str, value: Any, uses: Uses) -> bool:
    """Whether a value is a list that is only appended to, or holds such lists, where `uses` are all of its name."""
    if type(value) in _MAY_GROW[:2]:
        return name in uses.appended and name not in uses.with_appended
    return type(value) in _MAY_GROW and name in uses.with_appended


def may_be_hidden(value: Any) -> bool:
    """Whether a value is of a kind that a trace knows how to make in each call."""
    return value is None or isinstance(value, (bool, int, float, str, torch.Tensor, *_CONTAINERS))


def _codes_of(value: Any) -> Iterator[types.CodeType]:
    """The code of a method, and of what it wraps."""
    while isinstance(value, types.FunctionType):
        yield value.__code__
        value = value.__dict__.get("__wrapped__")


def _may_be_called(name: str) -> bool:
    """Whether torch or Python may call a method of a module; of `__init__`, that is for another one."""
    return name != "__init__" and (hasattr(torch.nn.Module, name) or name.startswith("__"))


@functools.lru_cache(maxsize=1024)
def _uses(methods: tuple[_Method, ...], others: tuple[types.CodeType, ...] = ()) -> Uses:
    """What is done by all code that may run of a module's methods, and by others."""
    return functools.reduce(operator.or_, map(uses_in, _running(methods, others)), NONE)


def _running(methods: Iterable[_Method], others: Iterable[types.CodeType]) -> list[types.CodeType]:
    """The code that may run: that of others, of the methods that torch or Python calls, and of those that all these
    mention.
    """
    rest = list(methods)
    todo = [*others, *(code for name, code in rest if _may_be_called(name))]
    found = list(todo)
    rest = [each for each in rest if each[1] not in found]
    while todo and rest:
        mentioned = attributes_in(todo.pop())
        called = [each for each in rest if each[0] in mentioned]
        rest = [each for each in rest if each[0] not in mentioned]
        todo += [code for _, code in called]
        found += [code for _, code in called]
    return found
