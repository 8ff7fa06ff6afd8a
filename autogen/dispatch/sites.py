"""Sites: what a decorated loss remembers of each module, or of itself as a function: its numbers, and its shortcuts."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autogen.calls.binding import Binding
from autogen.calls.modules import SHORTCUTS
from autogen.dispatch.plans import Key
from autogen.dispatch.shortcut import Shortcut, shortcut
from autogen.tracing.static_graph import Graph

MOST_SITES = 1024
_MOST_SHORTCUTS = 4  # of a site: those of training and of evaluation, say
_MOST_WRITTEN = 16  # of a site in all; one that needs more changes with every call


def _nothing() -> None:
    """What the site of a function refers to."""


@dataclass
class History:
    """The numbers in calls of one module, or of a function: last values and changes by name, and those that vary."""

    numbers: dict[str, tuple[float, int]] = field(default_factory=dict)
    varying: set[str] = field(default_factory=set)

    def note(self, numbers: Mapping[str, float]) -> bool:
        """Note the numbers of a call; returns whether more vary than before."""
        before = len(self.varying)
        for name, value in numbers.items():
            last, changes = self.numbers.get(name, (value, 0))
            changes += value is not last and repr(value) != repr(last)  # nan is nan, and -0.0 is not 0.0
            self.numbers[name] = value, changes
            if changes >= 2:
                self.varying.add(name)
        return len(self.varying) > before


class _Shortcuts(list[Any]):
    """Those of a module that keeps them itself; a copy of it has none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shortcuts, ()


class Site:
    """What is remembered of one module, or of a function."""

    def __init__(self, module: torch.nn.Module | None, forget: Callable[[Any], object]) -> None:
        self.module: Callable[[], torch.nn.Module | None] = _nothing if module is None else weakref.ref(module, forget)
        self.history = History()
        self.shortcuts: list[Shortcut] = []
        self.graphs: dict[Hashable, Graph] = {}  # the first ones, of a loss whose graph is to be static
        self._calls = 0
        self._written = 0

    def learn(
        self,
        binding: Binding,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: Sequence[str] = (),
    ) -> None:
        """Write a shortcut for the next calls like this one, if there are some to be expected. `values` names the
        arguments that are lists for a handwritten loss.
        """
        self._calls += 1
        if module is not None and binding.state.comes_back and not isinstance(self.shortcuts, weakref.ProxyType):
            self._hand_over(module)
            return  # the module is not what it was when the call was taken apart
        if self._calls < 2 or self._written >= _MOST_WRITTEN:
            return
        if any(each.read(module, args, kwargs) is not None for each in self.shortcuts):
            return  # one of them holds, but had not been prepared for a call of this geometry
        self._written += 1
        found = shortcut(binding, module, args, kwargs, values)
        if found is not None:
            self.shortcuts[:] = [found, *self.shortcuts[: _MOST_SHORTCUTS - 1]]

    def unplanned(
        self, module: torch.nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[Shortcut, Key, Sequence[torch.Tensor]]]:
        """The shortcuts that hold for a call and have no plan for its geometry, with that and the tensors."""
        for each in self.shortcuts:
            reading = each.read(module, args, kwargs)
            if reading is not None and isinstance(reading[1], tuple):
                yield each, reading[1], reading[0]

    def _hand_over(self, module: torch.nn.Module) -> None:
        """Have a module keep its own shortcuts: what they compare with refers to it, and nothing else may then."""

        def forget(_: object) -> None:
            self.shortcuts = []

        own = _Shortcuts()
        module.__dict__.setdefault(SHORTCUTS, _Shortcuts()).append(own)
        self.shortcuts = weakref.proxy(own, forget)


class Sites:
    """The sites of one loss, by module."""

    def __init__(self) -> None:
        self._sites: dict[int, Site] = {}

    def known(self, module: torch.nn.Module | None) -> Site | None:
        """The site of a module, if it has one."""
        site = self._sites.get(id(module))
        # A module that is gone may have had the same id.
        return site if site is not None and site.module() is module else None

    def of(self, module: torch.nn.Module | None) -> Site:
        """The site of a module."""
        site = self.known(module)
        if site is None:
            key = id(module)
            while len(self._sites) >= MOST_SITES:
                del self._sites[next(iter(self._sites))]
            site = self._sites[key] = Site(module, lambda _: self._sites.pop(key, None))
        return site

    def forget_shortcuts(self) -> None:
        """What they lead to is no longer to be run."""
        for site in list(self._sites.values()):
            site.shortcuts.clear()
