"""Places that a loss reads or may write to, as they were when they were looked at.

What the loss has changed there is told, and put back.
"""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.calls.spots import (
    HELD,
    HIDDEN,
    MISSING,
    Difference,
    Key,
    Namer,
    Place,
    is_same,
    literal,
    reads_as,
)
from autogen.frozen import frozen

_FEW = 8  # items that are compared one by one


@frozen
class Kept:
    """A tensor or the like, and where it is kept: `container[key]`, an attribute, or the contents of a cell."""

    name: str
    value: Any
    container: Any
    key: Any

    def now(self) -> Any:
        """What is there."""
        if isinstance(self.container, types.CellType):
            return self.container.cell_contents
        if isinstance(self.container, dict):
            return self.container.get(self.key, MISSING)
        if _has_items(self.container):
            return self.container[self.key]
        own = isinstance(self.container, type)  # where reading a method does more
        return vars(self.container)[self.key] if own else getattr(self.container, self.key)

    def put(self, value: Any) -> None:
        """Keep another value there."""
        if isinstance(self.container, types.CellType):
            self.container.cell_contents = value
        elif value is MISSING:
            self.container.pop(self.key, None)
        elif _has_items(self.container):
            self.container[self.key] = value
        else:
            _assign(self.container, self.key, value)

    def text(self, name: Namer) -> str:
        """How to read it."""
        container = name(self.container)
        if isinstance(self.container, types.CellType):
            return f"{container}.cell_contents"
        return f"{container}[{literal(self.key, name)}]" if _has_items(self.container) else f"{container}.{self.key}"


def entries(container: Mapping[Any, Any]) -> dict[Any, Any]:
    """What a dictionary holds, whatever its class makes of that: a lazy one would import all that it names."""
    if isinstance(container, collections.OrderedDict):
        return dict(collections.OrderedDict.items(container))
    return dict(dict.items(container)) if isinstance(container, dict) else dict(container)


def containers_in(value: Any) -> list[Any]:
    """The lists and dictionaries in a value, itself first."""
    found: list[Any] = []

    def note(each: Any) -> bool:
        if isinstance(each, (list, collections.deque, dict)):
            found.append(each)
        return type(each) is torch.Size

    pytree.tree_flatten(value, is_leaf=note)
    return found


def _assign(owner: Any, name: str, value: Any) -> None:
    """Assign an attribute where it is kept, whatever its class makes of that: a frozen one would raise."""
    try:
        (type if isinstance(owner, type) else object).__setattr__(owner, name, value)
    except TypeError:  # one that is written in C, and keeps them in its own way
        setattr(owner, name, value)


def _remove(owner: Any, name: str) -> None:
    """Delete an attribute where it is kept."""
    try:
        (type if isinstance(owner, type) else object).__delattr__(owner, name)
    except TypeError:
        delattr(owner, name)


def _has_items(container: Any) -> bool:
    return isinstance(container, (list, collections.deque, MutableMapping)) and not isinstance(
        container, torch.nn.Module
    )


@frozen
class Cell(Place):
    """A variable of an enclosing function."""

    cell: types.CellType
    before: Any

    def look(self) -> Cell:
        return Cell(self.cell, contents(self.cell))

    def differences(self) -> Iterator[Difference]:
        now = contents(self.cell)
        if not is_same(now, self.before):
            yield Difference("a variable of an enclosing function", None, self.before, now)

    def put_back(self) -> None:
        if contents(self.cell) is not self.before and self.before is not HELD:
            self.cell.cell_contents = self.before

    def without(self, kept: Collection[tuple[int, Any]]) -> Cell:
        return replace(self, before=HELD) if (id(self.cell), None) in kept else self

    def assign(self, key: Any, value: Any) -> None:
        self.cell.cell_contents = value

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        if (id(self.cell), None) not in kept:
            # An empty cell raises, which is a change; one that was empty is never taken for unchanged.
            yield reads_as(f"{name(self.cell)}.cell_contents", self.before, name)


@frozen
class Items(Place):
    """The items of a list, a set or a deque."""

    container: Any
    before: list[Any]

    def look(self) -> Items:
        return Items(self.container, list(self.container))

    def differences(self) -> Iterator[Difference]:
        if self._has_changed():
            yield Difference(f"a {type(self.container).__name__}", MISSING, self.before, self.container)

    def put_back(self) -> None:
        if self._has_changed():
            self.container.clear()
            (self.container.update if isinstance(self.container, set) else self.container.extend)(self.before)

    def without(self, kept: Collection[tuple[int, Any]]) -> Items:
        if isinstance(self.container, set):
            return self
        place = id(self.container)
        return replace(self, before=[HELD if (place, k) in kept else each for k, each in enumerate(self.before)])

    def _has_changed(self) -> bool:
        now = list(self.container)
        if len(now) != len(self.before):
            return True
        return not all(a is b or b is HELD for a, b in zip(now, self.before, strict=True))

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        container = name(self.container)
        if not self.before and type(self.container) in (list, set):
            yield f"not {container}"
            return
        yield f"len({container}) == {len(self.before)}"
        free = [(id(self.container), k) in kept for k in range(len(self.before))]
        if isinstance(self.container, set) or (len(self.before) > _FEW and not any(free)):
            yield f"all(map({name(operator.is_)}, {container}, {name(self.before)}))"
            return
        for k, (value, is_free) in enumerate(zip(self.before, free, strict=True)):
            if not is_free:
                yield reads_as(f"{container}[{k}]", value, name)


@frozen
class Appended(Place):
    """A list or a deque that a loss only appends to, which is empty meanwhile; what is in it, if it has to be put
    back, is `before`.
    """

    container: Any
    before: list[Any] | None

    def look(self) -> Appended:
        return Appended(self.container, list(self.container))

    def differences(self) -> Iterator[Difference]:
        if self.container:
            yield Difference(f"a {type(self.container).__name__}", Key.ADDED, [], list(self.container))

    def put_back(self) -> None:
        if self.before is not None:
            self.container.clear()
            self.container.extend(self.before)

    def hide(self) -> None:
        self.container.clear()  # else a full deque would not tell what is new

    def without(self, kept: Collection[tuple[int, Any]]) -> Appended:
        return replace(self, before=None)

    def assign(self, key: Any, value: Any) -> None:
        self.container.extend(value)

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        yield from ()


@frozen
class Entries(Place):
    """The entries of a dictionary, or of a class; all but those whose keys are `skipped`, or that are `unread`."""

    container: Mapping[Any, Any]
    before: dict[Any, Any]
    skipped: Collection[Any] = ()
    owner: Any = None  # of a class's entries, which are changed through it
    is_ordered: bool = False  # whether a loss may go through them; attributes are read by their names
    unread: Collection[str] = ()

    def look(self) -> Entries:
        return replace(self, before=entries(self.container))

    def differences(self) -> Iterator[Difference]:
        held = entries(self.container)
        for key in self._added(held):
            yield self._difference(key, HIDDEN if key in self.unread else MISSING, held[key])
        for key, value in self.before.items():
            now = held.get(key, MISSING)
            if not is_same(now, value):
                yield self._difference(key, value, now)
        if self._is_reordered(held):
            yield Difference(f"the order of a {type(self.container).__name__}", MISSING, list(self.before), list(held))

    def _is_reordered(self, held: dict[Any, Any]) -> bool:
        """Whether what was there, and still is, comes in another order."""
        if not self.is_ordered or not isinstance(self.container, dict):
            return False
        return [key for key in held if key in self.before] != [key for key in self.before if key in held]

    def _difference(self, key: Any, before: Any, now: Any) -> Difference:
        is_assigned = now is not MISSING and self.owner is None
        return Difference(str(key), key if is_assigned else MISSING, before, now)

    def put_back(self) -> None:
        held = entries(self.container)
        for key in self._added(held):
            self._delete(key)
        for key, value in self.before.items():
            now = held.get(key, MISSING)
            if now is not value and (value is not HELD or now is MISSING):
                self._put(key, value)
        if self._is_reordered(entries(self.container)):
            for key in self.before:
                _move_to_end(self.container, key)

    def hide(self) -> None:
        for key in self.unread:
            if key in self.before:  # what is new comes in the order in which it is assigned
                self._put(key, HIDDEN)

    def without(self, kept: Collection[tuple[int, Any]]) -> Entries:
        place = id(self.container if self.owner is None else self.owner)
        held = {key for key in self.before if (place, key) in kept or key in self.unread}
        return replace(self, before={key: HELD if key in held else value for key, value in self.before.items()})

    def assign(self, key: Any, value: Any) -> None:
        self._put(key, value)

    def _added(self, held: dict[Any, Any]) -> list[Any]:
        return [key for key in held if key not in self.before and not self._is_pythons(key)]

    def _is_pythons(self, key: Any) -> bool:
        return self.owner is not None and key.startswith("__")

    def _put(self, key: Any, value: Any) -> None:
        if self.owner is not None:
            _assign(self.owner, key, value)
        else:
            self.container[key] = value  # type: ignore[index]

    def _delete(self, key: Any) -> None:
        if self.owner is not None:
            _remove(self.owner, key)
        else:
            del self.container[key]  # type: ignore[attr-defined]

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        container = name(self.container)
        if type(self.container) not in (dict, collections.OrderedDict, types.MappingProxyType):
            container = f"{name(entries)}({container})"  # of which any method may do anything
        if self.is_ordered and (len(self.before) > 1 or not all(type(key) is str for key in self.before)):
            yield _has_keys(container, list(self.before), name)
        else:
            yield f"len({container}) == {len(self.before)}" if self.before else f"not {container}"
        place = id(self.container if self.owner is None else self.owner)
        free = {key for key in self.before if (place, key) in kept or key in self.skipped or key in self.unread}
        if len(self.before) > 4 * _FEW and not free:
            yield f"all(map({name(operator.is_)}, {container}.values(), {name(list(self.before.values()))}))"
            return
        for key, value in self.before.items():
            if key not in free:
                yield reads_as(f"{container}[{literal(key, name)}]", value, name)


@frozen
class Name(Place):
    """A global name, which need not be there."""

    scope: dict[str, Any]
    name: str
    before: Any

    def look(self) -> Name:
        return replace(self, before=self.scope.get(self.name, MISSING))

    def differences(self) -> Iterator[Difference]:
        now = self.scope.get(self.name, MISSING)
        if not is_same(now, self.before):
            yield Difference(self.name, MISSING if now is MISSING else self.name, self.before, now)

    def put_back(self) -> None:
        now = self.scope.get(self.name, MISSING)
        if now is self.before or (self.before is HELD and now is not MISSING):
            return
        if self.before is MISSING:
            del self.scope[self.name]
        else:
            self.scope[self.name] = self.before

    def without(self, kept: Collection[tuple[int, Any]]) -> Name:
        return replace(self, before=HELD) if (id(self.scope), self.name) in kept else self

    def assign(self, key: Any, value: Any) -> None:
        self.scope[self.name] = value

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        if (id(self.scope), self.name) not in kept:
            yield reads_as(f"{name(self.scope)}.get({self.name!r}, {name(MISSING)})", self.before, name)


@frozen
class Attribute(Place):
    """An attribute of an object, as it is found from outside."""

    owner: Any
    name: str
    before: Any

    def look(self) -> Attribute:
        return replace(self, before=getattr(self.owner, self.name, MISSING))

    def differences(self) -> Iterator[Difference]:
        now = getattr(self.owner, self.name, MISSING)
        if not is_same(now, self.before):
            yield Difference(self.name, MISSING if now is MISSING else self.name, self.before, now)

    def put_back(self) -> None:
        now = getattr(self.owner, self.name, MISSING)
        if now is self.before or (self.before is HELD and now is not MISSING):
            return
        if self.before is MISSING:
            _remove(self.owner, self.name)
        else:
            _assign(self.owner, self.name, self.before)

    def without(self, kept: Collection[tuple[int, Any]]) -> Attribute:
        return replace(self, before=HELD) if (id(self.owner), self.name) in kept else self

    def assign(self, key: Any, value: Any) -> None:
        _assign(self.owner, self.name, value)

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        owner = name(self.owner)
        if (id(self.owner), self.name) in kept:
            return
        if self.before is MISSING:
            yield f"not hasattr({owner}, {self.name!r})"
        else:
            yield reads_as(f"{owner}.{self.name}", self.before, name)


def contents(cell: types.CellType) -> Any:
    """What a cell holds; None if its variable is not assigned yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _move_to_end(container: Any, key: Any) -> None:
    """Make an entry of a dictionary the last, whatever its class makes of that."""
    if isinstance(container, collections.OrderedDict):
        collections.OrderedDict.move_to_end(container, key)
    else:
        dict.__setitem__(container, key, dict.pop(container, key))


def _has_keys(container: str, keys: list[Any], name: Namer) -> str:
    """That a dictionary has these keys, in this order."""
    if all(type(key) is str for key in keys):  # 1 equals True
        return f"[*{container}] == {name(keys)}"
    return f"len({container}) == {len(keys)} and all(map({name(operator.is_)}, {container}, {name(keys)}))"
