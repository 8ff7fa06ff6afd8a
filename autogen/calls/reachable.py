"""What a loss reaches beside its arguments: the state of its module, its closure, and names of the modules it is from.

One walk finds the tensors, with the place where each is kept, so that another can be put there; makes a key of
everything else, which changes when anything changes that the loss may read; and notes every place that it looked at.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import functools
import importlib.util
import sys
import types
import weakref
from collections.abc import Collection, Hashable
from typing import Any

import torch

from autogen.calls import arrays, classes, libraries
from autogen.calls.answers import Answers, question_of, questions_in
from autogen.calls.behind import behind
from autogen.calls.conversions import Conversions, is_stood_in_for
from autogen.calls.identity import Identity
from autogen.calls.libraries import is_library, is_of_library
from autogen.calls.looked_up import LookedUp
from autogen.calls.memos import MAY_KEEP, MEMO, OF_MEMOS, is_memo
from autogen.calls.mentions import Uses, asks_for_types, attributes_in, calls_itself, globals_in, imports_in
from autogen.calls.modules import HOOKS, HOOKS_OF_ALL, scripted, torchs_own
from autogen.calls.numbers import Numbers, is_long
from autogen.calls.opaque import Opaque, is_memory
from autogen.calls.places import Appended, Attribute, Cell, Entries, Items, Kept, Name, contents, entries
from autogen.calls.spots import MISSING, Fixed, Names, Place, Spot
from autogen.calls.surroundings import Surroundings
from autogen.calls.unread import NONE, Unread, may_be_hidden, only_appended

MOST_VALUES = 20_000  # that a loss reaches
MOST_AT_ONCE = 1_000_000  # the same, to be looked at a single time
_DEEPEST = 50  # levels that are looked at at once: each takes up to six of the calls that Python has room for

_READ = object()  # where a Python module is that the code at hand only reads attributes of


class Reachable:
    """The walk over one call, whose `arguments` are kept in a list.

    `tensors` are those that were found, in order, and `numbers` those that are known to vary, by the names in
    `varying`; `fixed` are all others by name. `places` are all places where something was read that the loss may
    change, `spots` all others, `is_plain` says whether they tell of every change, and `is_endless` that there is too
    much to look at; much more than usually if the walk `is_wide`. `answers` are those of torch to the questions that
    the loss names, and the walk `comes_back` if the loss's module keeps something that refers to it. The loss
    `asks_for_types` if it may look at the very type of a number, and then none may be a symbol. If it is known which
    code is `executed`, no other function is looked into; `read` are names that are known to be read.
    """

    def __init__(
        self,
        varying: Collection[str] = (),
        arguments: list[Any] | None = None,
        executed: frozenset[types.CodeType] = frozenset(),
        *,
        is_wide: bool = False,
        read: frozenset[str] = frozenset(),
    ) -> None:
        self.arguments = arguments
        self.executed = executed
        self.is_wide = is_wide
        self.tensors: list[Kept] = []
        self._functions: list[Kept] = []  # in whose place a trace has its own
        numbers = Numbers(varying)
        self.numbers, self.fixed = numbers.kept, numbers.fixed
        self._note_number = numbers.note
        self.places: list[Place] = []
        self.spots: list[Spot] = []
        self.answers = Answers(self.spots)
        self.is_plain = True
        self._opaque = Opaque(arguments or ())
        self._codes: list[types.CodeType] = []
        self.is_endless = False
        self.asks_for_types = False
        self.comes_back = False
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # whose ids must not be given to others during the walk
        self._attributes: frozenset[str] = frozenset()
        self._modules_seen: set[tuple[int, frozenset[str]]] = set()
        self._noted: dict[int, set[str]] = {}  # names of libraries, which somebody may replace
        self._of_lists: dict[int, Uses] = {}  # of dictionaries
        self._outermost: torch.nn.Module | None = None
        self._count = 0
        self._depth = 0
        self._later: list[tuple[Any, str, frozenset[str]]] = []
        self._looked_up = LookedUp()
        self._conversions = Conversions()
        self.unread = Unread(read)

    @property
    def surroundings(self) -> Surroundings:
        """What is to be put in its place again for a replay: first the tensors, then the numbers."""
        return Surroundings((*self.tensors, *self.numbers), tuple(self.places))

    @property
    def stood_in_for(self) -> list[Kept]:
        """The functions in whose place a trace has its own, some of which make symbols."""
        return self._functions if self.asks_for_types else self._functions + self._conversions.kept()

    def visit_self(self, module: torch.nn.Module) -> Hashable:
        """`visit`, of the module whose method the loss is."""
        self._outermost = module
        return self.visit(module)

    def visit(self, value: Any, name: str = "", container: Any = None, key: Any = None) -> Hashable:
        """A key for a value; the tensors below it are noted, if they are in a `container`."""
        self._count += 1
        if type(value) is int and container is not None and (container is self.arguments or not is_long(container)):
            return self._note_number(value, name, container, key)
        if type(value) in classes.PLAIN:
            if type(value) is str:
                self._looked_up.words.add(value)
            return type(value), value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name, container, key)
        has_more = classes.is_derived_constant(value)
        if isinstance(value, float) and not has_more:
            return (type(value), repr(value)) if container is None else self._note_number(value, name, container, key)
        if value is MISSING or (isinstance(value, classes.CONSTANTS) and not has_more):
            return type(value), repr(value) if isinstance(value, complex) else value
        if type(value) in _MAY_BE_STOOD_IN_FOR and container is not None and (is_memo(value) or is_stood_in_for(value)):
            self._functions.append(Kept(name, value, container, key))
        self.unread.meet(value, container)
        if id(value) in self._seen:
            self.comes_back |= value is self._outermost
            return "seen", self._seen[id(value)]
        if self._count > (MOST_AT_ONCE if self.is_wide else MOST_VALUES):
            self.is_endless = True
            return Identity(value)
        if self._depth >= _DEEPEST:
            self._later.append((value, name, self._attributes))
            return "later", len(self._later)
        self._depth += 1
        found = self._composite(value, name, is_read=container is _READ)
        self._depth -= 1
        return found

    def visit_rest(self) -> Hashable:
        """Keys for what was too deep to be looked at where it was found, and for what strings name in modules."""
        found = []
        for value, name, attributes in self._later:  # of which there may be more with each
            self._attributes = attributes
            found.append(self.visit(value, name))
        for scope, attributes, names in self._looked_up.names():
            self._attributes = attributes
            found += [self._global(scope, name) for name in names]
        self.spots += self._looked_up.absent()
        if self._outermost is not None and any(map(calls_itself, self._codes)):
            found += self._hooks(self._outermost)
        return tuple(found)

    def _tensor(self, tensor: torch.Tensor, name: str, container: Any, key: Any) -> Hashable:
        if container is None:
            return Identity(tensor)
        self.tensors.append(Kept(name or "tensor", tensor, container, key))
        return torch.Tensor

    def _composite(self, value: Any, name: str, *, is_read: bool) -> Hashable:
        if isinstance(value, types.ModuleType):
            if not is_read:
                self._looked_up.note_kept(value)
            return self._python_module(value)
        if isinstance(value, types.FunctionType) and self._is_idle(value):
            return Identity(value)
        if isinstance(value, tuple) and not classes.is_derived(type(value)):
            return type(value), tuple(self.visit(item, f"{name}_{k}") for k, item in enumerate(value))
        self._see(value)
        if isinstance(value, classes.NUMBERS_AND_TEXTS):
            content = next(each for each in classes.NUMBERS_AND_TEXTS if isinstance(value, each)).__repr__(value)
            return content, *self._beside(value, name)
        if isinstance(value, tuple):
            items = tuple(self.visit(item, f"{name}_{k}") for k, item in enumerate(value))
            return items, *self._beside(value, name)
        if isinstance(value, (list, collections.deque)):
            self.places.append(Items(value, list(value)))
            items = tuple(self.visit(item, f"{name}_{k}", value, k) for k, item in enumerate(value))
            return type(value), items, *self._beside(value, name)
        if isinstance(value, weakref.WeakSet):
            self.is_plain = False
            return weakref.WeakSet, frozenset(map(self.visit, value))
        if isinstance(value, (set, frozenset)):
            if isinstance(value, set):
                self.places.append(Items(value, list(value)))
            return type(value), frozenset(map(self.visit, value)), *self._beside(value, name)
        if isinstance(value, (dict, types.MappingProxyType)):
            self._opaque.dictionaries.add(name)
            made: Hashable = ()
            if isinstance(value, collections.defaultdict):
                self.spots.append(Fixed(value, "default_factory", value.default_factory))
                made = self.visit(value.default_factory)
            uses = self._of_lists.get(id(value), NONE)
            return type(value), self._entries(value, name, is_ordered=True, uses=uses), self._object(value, name), made
        if isinstance(value, torch.nn.Module) and type(value) not in weakref.ProxyTypes:
            return self._module(value, name)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, _HOMES):
            return value.__name__, self.visit(value.__self__, name)
        if isinstance(value, functools.partial):
            called = self.visit(value.func, name), self.visit(value.args, name), self.visit(value.keywords, name)
            is_own = type(value) is not functools.partial
            return *called, *(self._beside(value, name) if is_own else self._entries(vars(value), name))
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, weakref.KeyedRef):  # of a dictionary that keeps nothing alive
            self.is_plain = False  # nor would a shortcut
            return type(value), self.visit(value(), name)
        if isinstance(value, MEMO):
            return Identity(value), self.visit(getattr(value, "__wrapped__", None), name), self._of_memo(value)
        if (parts := behind(value)) is not None:
            return type(value), tuple(self.visit(each, name) for each in parts)
        if arrays.is_array(value):
            return self._array(value)
        return self._object(value, name)

    def _see(self, value: Any) -> None:
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)

    def _of_memo(self, memo: Any) -> tuple[Hashable, ...]:
        """The attributes of a function that keeps what it returns: no others can be put there, as it has a stand-in."""
        if is_library(memo.__module__):
            return ()
        self.places.append(Entries(vars(memo), entries(vars(memo)), OF_MEMOS))
        return tuple((key, self.visit(item)) for key, item in vars(memo).items() if key not in OF_MEMOS)

    def _array(self, value: Any) -> Hashable:
        own = self._beside(value, "")
        if arrays.is_of_objects(value):
            self.is_plain = False
            return type(value), value.shape, tuple(map(self.visit, value.flat)), *own
        place = arrays.Content.of(value)
        if place is not None:
            self.places.append(place)
        else:
            self.is_plain &= arrays.is_number(value)  # of other kinds, nothing is known
        return arrays.key_of(value), *own

    def _object(self, value: Any, name: str) -> Hashable:
        """The attributes of an object and of its class, if it is not one with a life of its own."""
        kind: Any = type(value)
        attributes = getattr(value, "__dict__", None)
        # What decorates a module; `functools.update_wrapper` gives a dispatcher to objects of the user's, too.
        if isinstance(attributes, dict) and "__autogen_dispatcher__" in attributes and is_library(kind.__module__):
            return kind, self.visit(attributes["__autogen_dispatcher__"].function)
        if is_of_library(kind) or is_memory(kind):
            is_torchs = str(kind.__module__).partition(".")[0] == "torch"
            is_plain = is_torchs and not callable(value) and question_of(value) is None
            # Transforms of distributions can be called.
            if not (libraries.is_open(kind) or is_plain or str(kind.__module__).startswith("torch.distributions")):
                self._opaque.note(value, name)
                return kind if isinstance(value, dict) else self._of_library(value)
        parts = self._own(value, name)
        is_empty = attributes is None and len(parts) == 2
        keeps_more = classes.keeps_more(kind) and not isinstance(value, libraries.OPEN)
        if (is_empty or keeps_more) and not isinstance(value, dict):
            return Identity(value), *parts
        return parts

    def _beside(self, value: Any, name: str) -> tuple[Hashable, ...]:
        """What an object has beside its content, whose class may be Python's, or the user's and derived from it."""
        return self._own(value, name) if classes.is_derived(type(value)) else ()

    def _own(self, value: Any, name: str) -> tuple[Hashable, ...]:
        """The class of an object, and its attributes."""
        kind: Any = type(value)
        attributes = getattr(value, "__dict__", None)
        parts: list[Hashable] = [kind, self.visit(kind)]
        if not isinstance(value, torch.nn.Module):
            self.spots.append(Fixed(value, "__class__", kind))
        if isinstance(attributes, dict):
            self.spots.append(Fixed(value, "__dict__", attributes))
            parts.append(self._entries(attributes, name, uses=self.unread.appended(value)))
        return *parts, *self._in_slots(value, name)

    def _in_slots(self, value: Any, name: str) -> tuple[Hashable, ...]:
        """The attributes of an object that are not in its `__dict__`."""
        found: list[Hashable] = []
        kind: Any = type(value)
        for slot in classes.slots(kind):
            item = getattr(value, slot, MISSING)
            self.places.append(Attribute(value, slot, item))
            found.append((slot, self.visit(item, f"{name}.{slot}" if name else slot, value, slot)))
        return tuple(found)

    def knows(self, value: Any) -> bool:
        """Whether an object was there before the loss ran."""
        return id(value) in self._seen

    @property
    def opaque(self) -> str | None:
        """Something that the loss mentions and has another value whenever it is asked."""
        return self._opaque.mentioned_in(self._codes)

    @property
    def streams(self) -> list[Any]:
        """The random generators that the loss reaches."""
        return self._opaque.streams

    def _entries(
        self,
        items: Any,
        name: str,
        skipped: frozenset[str] = frozenset(),
        owner: Any = None,
        *,
        is_ordered: bool = False,
        uses: Uses = NONE,
    ) -> tuple[Hashable, ...]:
        held = entries(items)
        unread, appended = uses.assigned, frozenset[str]()
        if uses is not NONE:
            unread = frozenset(key for key in uses.assigned if may_be_hidden(held.get(key)))
            appended = frozenset(key for key, value in held.items() if only_appended(key, value, uses))
        self.places.append(Entries(items, held, skipped, owner, is_ordered, unread))
        prefix = f"{name}." if name else ""
        owner = owner or (items if isinstance(items, dict) else None)
        return tuple(
            (
                key if type(key) is str else self._key(key),
                (self._appended if key in appended else self.visit)(item, f"{prefix}{key}", owner, key),
            )
            for key, item in held.items()
            if key not in skipped and key not in unread
        )

    def _appended(self, value: Any, name: str, container: Any = None, key: Any = None) -> Hashable:
        """A list that is only appended to, or what holds such lists, whatever is in them."""
        if id(value) in self._seen:
            return "seen", self._seen[id(value)]
        found: Hashable = type(value).__name__
        if isinstance(value, dict):
            self._of_lists[id(value)] = Uses(appended=frozenset(entries(value)))
            found = self.visit(value, name, container, key)
        else:
            self._see(value)
            self.places.append(Appended(value, list(value)))
        self.unread.note_growing(value)
        return found

    def _key(self, key: Any) -> Hashable:
        """What something is asked by. A class or a function is only that there: nothing is called of it."""
        if type(key) is tuple:
            return tuple(map(self._key, key))
        return Identity(key) if isinstance(key, (type, types.FunctionType, types.ModuleType)) else self.visit(key)

    def _module(self, module: Any, name: str) -> Hashable:
        owner: Any = type(module)
        self.spots.append(Fixed(module, "__class__", owner))
        self.spots.append(Fixed(module, "__dict__", module.__dict__))
        stores = [self._entries(store, name, is_ordered=True) for store in (module._parameters, module._buffers)]
        rest = self._entries(module.__dict__, name, torchs_own(module), uses=self.unread.uses(module))
        for store in ("_parameters", "_buffers", "_modules"):
            self.spots.append(Fixed(module, store, getattr(module, store)))
        # Those of the outermost module run around `forward`, outside what is traced, but where the loss calls it.
        hooked = () if module is self._outermost else self._hooks(module)
        self.places.append(Entries(module._modules, dict(module._modules), is_ordered=True))
        self.places.append(Items(module._non_persistent_buffers_set, list(module._non_persistent_buffers_set)))
        prefix = f"{name}." if name else ""
        inner = tuple((key, self.visit(child, f"{prefix}{key}")) for key, child in module._modules.items())
        scripted = self._scripted(module) if isinstance(module, torch.jit.ScriptModule) else ()
        return owner, self.visit(owner), *stores, rest, hooked, inner, self._in_slots(module, name), scripted

    def _hooks(self, module: Any) -> tuple[Hashable, ...]:
        """The hooks that run where a module is called."""
        stores = [(module.__dict__, HOOKS), (vars(torch.nn.modules.module), HOOKS_OF_ALL)]
        return tuple(self._entries(store[hook], hook) for store, hooks in stores for hook in hooks)

    def _scripted(self, module: torch.jit.ScriptModule) -> tuple[Hashable, ...]:
        self.is_plain = False
        return tuple((name, self.visit(value)) for name, value in scripted(module).items())

    def _class(self, owner: Any) -> Hashable:
        """What a class and its bases have; those of libraries do not change, but for what they may answer."""
        parts: list[Hashable] = [Identity(owner), self.answers.to([*filter(None, map(question_of, owner.__mro__))])]
        if not is_of_library(type(owner)):
            parts.append(self.visit(type(owner)))
        if not is_of_library(owner):
            self.spots.append(Fixed(owner, "__mro__", owner.__mro__))
        for base in owner.__mro__:
            if not is_of_library(base):
                parts.append(self._entries(vars(base), "", classes.pythons_own(base), base))
        return tuple(parts)

    def _is_idle(self, function: types.FunctionType) -> bool:
        """Whether a function is known not to run."""
        return (
            bool(self.executed)
            and function.__code__ not in self.executed
            and not is_library(function.__globals__.get("__name__"))
        )

    def _function(self, function: types.FunctionType) -> Hashable:
        scope = function.__globals__
        of_library = is_library(scope.get("__name__"))
        if of_library and function.__closure__ is None:
            return self._of_library(function)
        dispatcher = function.__dict__.get("__autogen_dispatcher__")
        # Wrappers of others have it too, by `functools.wraps`.
        if dispatcher is not None and function.__dict__.get("__wrapped__") is dispatcher.function:
            return self.visit(dispatcher.function), self._entries(function.__dict__, function.__name__, _OF_WRAPPERS)
        self._codes.append(function.__code__)
        if not of_library:
            self.asks_for_types |= asks_for_types(function.__code__)
            self._looked_up.note_code(function.__code__, scope)
            self._conversions.note(function.__code__, scope)
            self.unread.note(function.__code__)
        outside, self._attributes = self._attributes, attributes_in(function.__code__)
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            self.spots.append(Fixed(function, attribute, getattr(function, attribute)))
        closure = []
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            held = contents(cell)
            self.places.append(Cell(cell, held))
            is_appended = self.unread.is_appended(name, held, function.__code__)
            closure.append(self._appended(held, name) if is_appended else self.visit(held, name, cell))
        defaults = self.visit(function.__defaults__), self.visit(function.__kwdefaults__)
        names = () if of_library else globals_in(function.__code__)
        found = tuple(self._global(scope, name, function.__code__) for name in names)
        imported = () if of_library else tuple(self._imported(scope, each) for each in imports_in(function.__code__))
        self._attributes = outside
        answers = () if of_library else self.answers.to(questions_in(function.__code__))
        rules = self._rules() if "kl_divergence" in attributes_in(function.__code__) and not of_library else ()
        own = () if of_library else self._entries(function.__dict__, function.__name__, _OF_WRAPPERS)
        own += () if of_library else self._put_on_classes(attributes_in(function.__code__))
        return function.__code__, tuple(closure), defaults, found, imported, answers, rules, own

    def _put_on_classes(self, attributes: frozenset[str]) -> tuple[Hashable, ...]:
        """The user's own functions among these attributes of torch's classes."""
        found: list[Hashable] = []
        for scope in (vars(torch.Tensor), vars(torch.nn.Module)):
            names = sorted(name for name in attributes if libraries.is_foreign(scope.get(name)))
            if names:
                self.spots.append(Names.of(scope, names))
                found += [(name, self.visit(scope[name])) for name in names]
        return tuple(found)

    def _rules(self) -> tuple[Hashable, ...]:
        """The user's own rules of `torch.distributions.kl_divergence`."""
        rules = libraries.rules_of_divergence()
        self.places.append(Entries(rules, dict(rules)))
        return tuple(self.visit(rule) for rule in rules.values() if libraries.is_foreign(rule))

    def _imported(self, scope: dict[str, Any], name: str) -> Hashable:
        """What a function may read of a module that it imports itself."""
        with contextlib.suppress(ImportError):
            name = importlib.util.resolve_name(name, scope.get("__package__"))
        return self.visit(sys.modules.get(name))

    def _of_library(self, value: Any) -> Hashable:
        """What does not change, but for what it may answer."""
        question = question_of(value)
        return Identity(value) if question is None else (Identity(value), self.answers.to((question,)))

    def _global(self, scope: dict[str, Any], name: str, code: types.CodeType | None = None) -> Hashable:
        value = scope.get(name, MISSING)
        self.places.append(Name(scope, name, value))
        if value is MISSING and name not in libraries.BUILTINS and scope is not vars(builtins):
            return self._global(vars(builtins), name)
        if code is not None and self.unread.is_appended(name, value, code):
            return self._appended(value, name)
        is_read = isinstance(value, types.ModuleType) and name not in self._looked_up.passed_on
        return self.visit(value, name, _READ if is_read else scope, name)

    def _python_module(self, module: types.ModuleType) -> Hashable:
        """What the function that is being looked at may read of a module."""
        scope = vars(module)
        if not is_library(module.__name__):
            self._looked_up.note(scope, self._attributes)
        mentioned = self._attributes if is_library(module.__name__) else self._attributes | {"__getattr__"}
        names = sorted(mentioned & scope.keys())
        if not names or (id(module), self._attributes) in self._modules_seen:
            return self._of_library(module)
        self._modules_seen.add((id(module), self._attributes))
        if is_library(module.__name__):
            noted = self._noted.setdefault(id(module), set())
            if not noted.issuperset(names):
                self.spots.append(Names.of(scope, [name for name in names if name not in noted]))
                noted.update(names)
            names = [name for name in names if libraries.is_replaced(module, name)]
            if not names:
                return self._of_library(module)
        return self._of_library(module), tuple(self._global(scope, each) for each in names)


# What functions written in C are of; others are methods.
_HOMES = (types.ModuleType, type, types.NoneType, type(datetime.datetime_CAPI))
_OF_WRAPPERS = frozenset({"__autogen_dispatcher__", "__wrapped__"})
_MAY_BE_STOOD_IN_FOR = MAY_KEEP | {types.BuiltinFunctionType}
