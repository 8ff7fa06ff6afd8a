"""What a loss may find in a module that other code names than what reads it, or by a name that no code mentions: one
that it is given, or computes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from autogen.calls.libraries import is_library
from autogen.calls.mentions import (
    asked_for,
    attributes_in,
    computes_names,
    finds_modules,
    looks_up,
    names_in,
    passed_on,
)
from autogen.calls.spots import Absent

_OWN_SCOPE = frozenset({"globals", "eval", "exec"})


class LookedUp:
    """The modules in which a loss may look; `words` are the strings that it has, which may be names there, `passed_on`
    the names of what other code may read than that which has it.

    Where a name is computed, it may be that of anything in these modules but of tensors, and of modules.
    """

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.passed_on: set[str] = set()
        self._mentioned: set[str] = set()
        self._asked_for: set[str] = set()
        self._kept: dict[int, dict[str, Any]] = {}
        self._is_guessing = False
        self._scopes: dict[int, tuple[dict[str, Any], frozenset[str]]] = {}
        self._given: dict[int, set[str]] = {}
        self._may_look_up = False
        self._computes = False
        self._finds_modules = False

    def note(self, scope: dict[str, Any], attributes: frozenset[str]) -> None:
        """Note a module that code reaches which mentions these attributes."""
        self._scopes.setdefault(id(scope), (scope, attributes))

    def note_kept(self, module: types.ModuleType) -> None:
        """Note a module of the user's that any code may have: an attribute, or an argument, is one. Not what is found
        because a name may be any: that reaches whole packages.
        """
        if not (self._is_guessing or is_library(module.__name__)):
            self._kept[id(module)] = vars(module)

    def note_code(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        """Note how the code of a function of the user's looks things up; its module is `scope`."""
        self.passed_on |= passed_on(code)
        self._mentioned |= attributes_in(code)
        self._asked_for |= asked_for(code)
        self._may_look_up |= looks_up(code)
        self._computes |= computes_names(code)
        if not _OWN_SCOPE.isdisjoint(code.co_names):
            self.note(scope, attributes_in(code))
        if finds_modules(code):
            self._finds_modules = True
            self.words.update(names_in(code))

    def names(self) -> Iterator[tuple[dict[str, Any], frozenset[str], list[str]]]:
        """Modules, with the attributes that code mentions which reaches them, and what else may be looked up there; as
        long as there are more, as what is found may look up other things.
        """
        while True:
            found = list(self._found())
            if not found:
                return
            yield from found

    def absent(self) -> Iterator[Absent]:
        """What these modules have not, and code may ask for all the same: `getattr(config, "margin", 0.5)`."""
        words = self._asked_for | self.words if self._may_look_up else self._asked_for
        scopes = [*self._kept.values(), *(scope for scope, _ in self._scopes.values())]
        for scope in {id(each): each for each in scopes}.values():
            yield Absent(scope, tuple(sorted(words - scope.keys())), len(scope) if self._computes else None)

    def _found(self) -> Iterator[tuple[dict[str, Any], frozenset[str], list[str]]]:
        for word in sorted(self.words) if self._finds_modules else ():
            module = sys.modules.get(word)
            if module is not None and not is_library(word):
                self.note(vars(module), frozenset())
                self.note_kept(module)
        for scope in list(self._kept.values()):
            yield from self._new(scope, frozenset(self._mentioned), self._mentioned & scope.keys())
        for scope, attributes in list(self._scopes.values()) if self._may_look_up else ():
            self._is_guessing |= self._computes
            words = self.words & scope.keys() - attributes
            yield from self._new(scope, attributes, words | _everything(scope) if self._computes else words)

    def _new(
        self, scope: dict[str, Any], attributes: frozenset[str], names: set[str]
    ) -> Iterator[tuple[dict[str, Any], frozenset[str], list[str]]]:
        """Those of the names in a module that have not been looked up before."""
        given = self._given.setdefault(id(scope), set())
        new = sorted(names - given)
        given.update(new)
        if new:
            yield scope, attributes, new


def _everything(scope: Mapping[str, Any]) -> set[str]:
    """The names in a module that may be computed."""
    others = (types.ModuleType, torch.Tensor, torch.nn.Module)
    return {name for name, value in scope.items() if not (name.startswith("__") or isinstance(value, others))}
