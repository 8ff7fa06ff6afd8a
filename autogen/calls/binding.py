"""Binding: one call of a loss, taken apart into its tensors, by name, and everything else, as a key.

What a loss computes depends on its arguments, on the state of its module, and on what its functions close over or read
from their module. Tensors among these become inputs of the trace; numbers, strings and flags are baked into it and so
belong to the key, which makes a changed attribute another trace.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import itertools
import threading
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.calls import settings
from autogen.calls.places import Entries, Items, containers_in, entries
from autogen.calls.reachable import Reachable
from autogen.calls.surroundings import Change, Surroundings, make_parameter
from autogen.errors import StateChangeError
from autogen.frozen import frozen
from autogen.locks import replaced
from autogen.names import of_input, unique


class _Replaying(threading.local):
    """How many replays of losses this thread is in."""

    def __init__(self) -> None:
        self.depth = 0


_replaying = _Replaying()

Then = Callable[[Any, Callable[[], list[Change]]], Any]
"""What is made of what a loss has returned, while it is still in other surroundings; a function tells what has been
changed there so far."""

Replay = Callable[..., Any]
"""Runs a loss on other tensors, and something `then`."""


def is_replaying() -> bool:
    """Whether this thread is running a loss in torch on behalf of a decorated one: then nothing is generated."""
    return _replaying.depth > 0


def run_again(
    surroundings: Surroundings,
    values: Sequence[Any],
    call: Callable[[], Any],
    then: Then | None = None,
) -> Any:
    """Run a loss as torch would, by a `call` of it, `then` something more, with other `values` in its surroundings.

    What is changed there, but for the values of tensors, is put back.
    """
    _replaying.depth += 1
    try:
        with replaced.replacing(), surroundings.swapped(values) as changed:
            returned = call()
            return returned if then is None else then(returned, changed)
    finally:
        _replaying.depth -= 1


class ArgumentsError(TypeError):
    """The arguments of a call do not fit the signature."""


@frozen
class Bound:
    """A call that kernels are made for: its sizes and floats by name, and the tensors that were found ahead."""

    sizes: dict[str, Any]
    found: tuple[torch.Tensor, ...] = ()


@frozen
class Binding:
    """A call: `tensors` and their `names`, `statics` for all else, and how to run the loss on other tensors.

    `arguments` are those of the call by name, of a method without its `self`; `given` are the lists and dictionaries
    in them, for which a replay has others; `state` is what else the loss reaches.
    When it has been traced, `ran` is the code that ran, if that was watched, and `misread` names what it has read
    although it was hidden: then the trace is worth nothing.
    """

    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    statics: Hashable
    arguments: Mapping[str, Any]
    given: tuple[Items | Entries, ...]
    _run: Replay
    state: Reachable
    ran: set[types.CodeType] = field(default_factory=set)
    misread: set[str] = field(default_factory=set)

    def replay(
        self,
        tensors: Sequence[torch.Tensor],
        numbers: Sequence[Any] | None = None,
        stand_in: Callable[[Any], Any] | None = None,
        then: Then | None = None,
    ) -> Any:
        """Run the loss as torch would, on the given tensors, and numbers, in the place of its own; see `run_again`.

        In the place of some functions (`autogen.calls.reachable`) the loss finds their `stand_in`.
        """
        values = [*tensors, *(self.numbers.values() if numbers is None else numbers)]
        surroundings = self.state.surroundings
        if stand_in is not None:
            stood_in_for = self.state.stood_in_for
            values += [stand_in(each.value) for each in stood_in_for]
            surroundings = Surroundings((*surroundings.kept, *stood_in_for), surroundings.places)
        with replaced.replacing(), self.state.unread.watched(self.misread):
            return self._run(surroundings, values, _unless_known(then, self.state.knows))

    def remember(self) -> Replay:
        """`replay`, which then keeps none of the call's tensors alive."""
        run, surroundings, numbers = self._run, self.state.surroundings.released(), tuple(self.numbers.values())
        return lambda tensors, then=None: run(surroundings, (*tensors, *numbers), then)

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers that vary, by name."""
        return {each.name: each.value for each in self.state.numbers}

    @property
    def fixed(self) -> dict[str, float]:
        """All other numbers that the loss may read, by name."""
        return self.state.fixed


def bind(
    function: Callable[..., Any],
    signature: inspect.Signature,
    module: torch.nn.Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    varying: Collection[str] = (),
    executed: frozenset[types.CodeType] = frozenset(),
    *,
    is_wide: bool = False,
    read: frozenset[str] = frozenset(),
    whole: frozenset[int] = frozenset(),
) -> Binding:
    """Take a call of `function(*args, **kwargs)` apart; for a method of `module`, its state too.

    `varying` names numbers that are not to be part of the key. Of the functions that the loss reaches only those are
    looked into whose code is `executed`, if that is known. A walk that `is_wide` looks at much more, and takes seconds.
    `read` are names that are known to be read, whatever it seems. `whole` are the ids of lists and dictionaries that
    the loss is given, and has elsewhere, too: a replay is given the same ones, whose tensors it puts there.

    Raises:
        ArgumentsError: the arguments do not fit the signature.
    """
    given = ((module, *args) if module is not None else args, kwargs)

    def is_whole(each: Any) -> bool:
        return id(each) in whole

    leaves, structure = pytree.tree_flatten(given, is_leaf=is_whole)
    spots = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    arguments = _arguments(function, signature, *given)
    labels = _labels(arguments, kwargs)
    names = [next(labels[id(leaves[k])]) for k in spots]
    places = _places(signature, *given, is_whole)
    state = Reachable(varying, leaves, executed, is_wide=is_wide, read=read)
    state.unread.enter(function)
    statics: list[Hashable] = [str(structure), tuple(spots)]
    statics += [state.visit(each) for each in _beside_leaves(structure)]
    if module is not None:
        statics.append(state.visit_self(module))
    for position, leaf in enumerate(leaves):
        if (leaf is not module or leaf is None) and not isinstance(leaf, torch.Tensor):
            statics.append(state.visit(leaf, places[position], leaves, position))
    statics.append(state.visit(function))
    statics.append(state.visit_rest())
    misjudged = state.unread.misjudged
    had = frozenset(id(each) for each in containers_in(given) if state.knows(each))
    if misjudged or not had <= whole:
        known: dict[str, Any] = {"is_wide": is_wide, "read": read | misjudged, "whole": whole | had}
        return bind(function, signature, module, args, kwargs, varying, executed, **known)
    state.is_plain &= not whole
    tensors = [*(leaves[k] for k in spots), *(each.value for each in state.tensors)]
    names += [each.name for each in state.tensors]
    parameters = {k for k in spots if isinstance(leaves[k], torch.nn.Parameter)}
    for spot in spots:  # a result keeps `run` for as long as it lives, and is not to keep the call's tensors
        leaves[spot] = None
    ends = set(map(id, leaves))
    containers = tuple(_containers((*args, *kwargs.values()), ends))

    def run(surroundings: Surroundings, values: Sequence[Any], then: Then | None = None) -> Any:
        given: list[Items | Entries] = []

        def call() -> Any:
            filled = list(leaves)
            for spot, tensor in zip(spots, values, strict=False):
                if spot in parameters:
                    make_parameter(tensor)
                filled[spot] = tensor
            new_args, new_kwargs = pytree.tree_unflatten(filled, structure)
            given.extend(_containers((*new_args, *new_kwargs.values()), ends))
            own = list(_containers(leaves))
            with settings.unchanged():
                returned = function(*new_args, **new_kwargs)
            for place in own:
                if any(place.differences()):
                    raise StateChangeError(_called(place))
            return returned

        def is_given(container: Any) -> bool:
            return any(place.container is container for place in given)

        checked = _unless_known(then, is_given)

        def with_given(returned: Any, changed: Callable[[], list[Change]]) -> Any:
            return checked and checked(returned, lambda: [*changed(), *_changes_of(given)])

        return run_again(surroundings, values[len(spots) :], call, checked and with_given)

    if module is not None:
        arguments = dict(list(arguments.items())[1:])
    return Binding(tuple(_unique(names)), tuple(tensors), tuple(statics), arguments, containers, run, state)


def _unless_known(then: Then | None, is_known: Callable[[Any], bool]) -> Then | None:
    """The same as `then`, but an error where a list or a dictionary is assigned that was there before: what is kept for
    later calls makes a new one in each.
    """
    if then is None:
        return None

    def checked(returned: Any, changed: Callable[[], list[Change]]) -> Any:
        def refused() -> list[Change]:
            changes = changed()
            for each in changes:
                if any(map(is_known, containers_in(each.difference.now))):
                    raise StateChangeError(each.difference.name)
            return changes

        return then(returned, refused)

    return checked


def _arguments(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name. A wrapper that says it is what it wraps may take others."""
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as fault:
        with contextlib.suppress(TypeError):
            return inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs).arguments
        raise ArgumentsError(str(fault)) from None


def _places(
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_whole: Callable[[Any], bool],
) -> list[str]:
    """What the function calls each leaf of a call: its parameter, numbered inside lists that are no leaf as a whole."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    known = [name for name, each in signature.parameters.items() if each.kind in kinds]
    named = itertools.zip_longest(known[: len(args)], args, fillvalue="argument")
    places: list[str] = []
    for name, value in (*named, *kwargs.items()):
        count = 1 if isinstance(value, torch.Tensor) else len(pytree.tree_leaves(value, is_whole))
        places += [name] if count == 1 else [f"{name}_{k}" for k in range(count)]
    return places


def _beside_leaves(structure: pytree.TreeSpec) -> Iterator[Any]:
    """What the arguments hold that are no plain lists and dictionaries: keys, and classes, such as of named tuples."""
    if structure.is_leaf():
        return
    if structure.type is dict:
        yield from (key for key in structure.context if type(key) is not str)
    elif structure.type not in (list, tuple):
        yield structure.type
        yield structure.context
    for child in structure.children():
        yield from _beside_leaves(child)


def _containers(values: Iterable[Any], without: Collection[int] = ()) -> Iterator[Items | Entries]:
    """The lists and dictionaries among arguments, but for objects of some ids and what is in these."""
    for value in values:
        if id(value) in without:
            continue
        if isinstance(value, (list, collections.deque)):
            yield Items(value, list(value))
            yield from _containers(value, without)
        elif isinstance(value, dict):
            yield Entries(value, entries(value), is_ordered=True)
            yield from _containers(entries(value).values(), without)
        elif isinstance(value, tuple):
            yield from _containers(value, without)


def _called(place: Items | Entries) -> str:
    return f"a {type(place.container).__name__} that it is given"


def _changes_of(given: Sequence[Items | Entries]) -> Iterator[Change]:
    """What a replay has changed in the lists and dictionaries that it is given, which are not the user's own."""
    for k, place in enumerate(given):
        for each in place.differences():
            yield Change(k, replace(each, name=_called(place)), is_given=True)


def _labels(arguments: Mapping[str, Any], kwargs: Mapping[str, Any]) -> dict[int, Iterator[str]]:
    """What the function calls each tensor: its parameter, numbered inside lists; one after the other, in the order of
    the call, if it has several names, as it is passed more than once.
    """
    labels: dict[int, list[str]] = {}
    for name in (*(name for name in arguments if name not in kwargs), *(name for name in kwargs if name in arguments)):
        value = arguments[name]
        leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for position, leaf in enumerate(leaves):
            labels.setdefault(id(leaf), []).append(name if len(leaves) == 1 else f"{name}_{position}")
    return {tensor: iter(names) for tensor, names in labels.items()}


def _unique(names: Sequence[str]) -> list[str]:
    taken: dict[str, None] = {}
    for name in names:
        taken[unique(of_input(name), taken)] = None
    return list(taken)
