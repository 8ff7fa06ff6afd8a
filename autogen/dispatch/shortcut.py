"""Shortcuts: a call that is like an earlier one goes straight to its launches.

Taking a call apart (`autogen.calls.binding`) looks at everything that the loss may read, which costs some 50 µs. When a
module, or a function, has been called twice, the places that were looked at become one generated function of a few
comparisons by identity: it returns the tensors of a call and what is prepared for their geometry
(`autogen.dispatch.plans`), or None where anything at all has changed; then the call is taken apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from autogen.availability import default_device
from autogen.calls.binding import Binding, run_again
from autogen.calls.libraries import is_of_library
from autogen.calls.numbers import UNLIKE
from autogen.calls.surroundings import Surroundings
from autogen.dispatch.plans import InTorch, Key, Plan, Plans
from autogen.frozen import frozen
from autogen.runtime import geometry
from autogen.runtime.replays import read_autocast

if TYPE_CHECKING:
    from autogen.runtime.handwritten import BoundHandwritten

Reading = tuple[tuple[torch.Tensor, ...], Plan | InTorch | Key, tuple[Any, ...]]
"""The tensors of a call, their plan, or a key of their geometry if there is none yet, and the values that vary:
numbers, or lists of which a handwritten loss makes what it finds ahead."""

Reader = Callable[[Any, tuple[Any, ...], dict[str, Any]], Reading | None]

_MOST_CONDITIONS = 20_000  # which together take less than a ms; to look at as much otherwise takes 100 times as long

# What the text calls, to know of what holds for all tensors.
_CALLED = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_inference": torch.is_inference_mode_enabled,
    "is_autocast": torch._C._is_any_autocast_enabled,
    "read_autocast": read_autocast,
    "default_dtype": torch.get_default_dtype,
    "has_modes": torch._C._len_torch_function_stack,
    "default_device": default_device,
    "Tensor": torch.Tensor,
}


_TENSOR = object()


@frozen
class _Varying:
    """The place of a value that varies among the arguments of a call."""

    name: str


class Shortcut:
    """The calls of a module, or of a function, that read the same from the same places.

    `statics` and `names` are those of their binding, `places` where they may change something, `values` the arguments
    that are lists for a handwritten loss.
    """

    def __init__(
        self,
        binding: Binding,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        values: Sequence[str],
        read: Reader,
        plans: Plans,
    ) -> None:
        self.statics = binding.statics
        self.names = binding.names
        self.read = read
        self.plans = plans
        state = binding.state
        holes = {each.key: each.name for each in state.numbers if each.container is state.arguments}
        self._around = [k for k, each in enumerate(state.numbers) if each.container is not state.arguments]
        kept = (*state.tensors, *(state.numbers[k] for k in self._around))
        self._surroundings = Surroundings(kept, tuple(state.places)).released()
        self.places = self._surroundings.places
        lists = {name: _Varying(name) for name in values}
        names = dict(enumerate(binding.arguments))
        by_position = tuple(lists.get(names.get(k, ""), value) for k, value in enumerate(args))
        by_name = {name: lists.get(name, value) for name, value in kwargs.items()}
        given, self._structure = pytree.tree_flatten((by_position, by_name))
        first = len(state.arguments or ()) - len(given)  # of a loss that has numbers, and no lists
        self._given = [
            _TENSOR if isinstance(value, torch.Tensor) else _Varying(holes[k]) if k in holes else value
            for k, value in enumerate(given, first)
        ]
        self._varying = [*binding.numbers, *values]

    def handwritten(self, key: Key, call: BoundHandwritten, tensors: Sequence[torch.Tensor]) -> Plan:
        """A plan for a `call` on handwritten kernels, which is kept for calls of its geometry if that comes again."""
        is_again = self.plans.note(key)
        plan = Plan.of_handwritten(call, tensors, is_again=is_again)
        if is_again:
            self.plans.keep(key, plan, is_again=True)
        return plan

    def replay(self, tensors: Sequence[torch.Tensor], values: Sequence[Any], loss: Callable[..., Any]) -> Any:
        """Run the `loss` again as torch would, on the tensors and values of a call, and all else as it was then."""
        args, kwargs = self.call(tensors, values)
        count = sum(each is _TENSOR for each in self._given)
        around = (*tensors[count:], *(values[k] for k in self._around))
        return run_again(self._surroundings, around, lambda: loss(args, kwargs))

    def call(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, positional and by keyword, given all its tensors and values."""
        rest, varying = iter(tensors), dict(zip(self._varying, values, strict=True))
        filled = [
            next(rest) if each is _TENSOR else varying[each.name] if isinstance(each, _Varying) else each
            for each in self._given
        ]
        args, kwargs = pytree.tree_unflatten(filled, self._structure)
        return tuple(args), kwargs


def shortcut(
    binding: Binding, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: Sequence[str] = ()
) -> Shortcut | None:
    """The shortcut for calls like this one; None if it reads something that has to be looked at each time.

    `values` names the arguments that are lists of which a handwritten loss takes any.
    """
    writer = _Writer(binding, module, values)
    text = writer.text(args, kwargs)
    if text is None:
        return None
    plans = Plans()
    scope: dict[str, Any] = {**writer.objects, **_CALLED, "plans": plans}
    exec(compile(text, "<shortcut>", "exec"), scope)
    return Shortcut(binding, args, kwargs, values, scope["read"], plans)


def _leaves(
    text: str, container: Any, whole: Collection[str], own: str, conditions: list[str]
) -> Iterator[tuple[str, Any]]:
    """Where the items of a container are, and the items; within others in turn, of which the `conditions` are noted:
    none is the loss's `own`. Those in some places are taken `whole`.
    """
    for key, value in container.items() if isinstance(container, dict) else enumerate(container):
        place, kind = f"{text}[{key!r}]", type(value)
        is_plain = kind in (list, tuple, dict) and all(type(each) in (str, int) for each in value if kind is dict)
        if not is_plain or place in whole:
            yield place, value
            continue
        conditions.append(f"type({place}) is {kind.__name__}")
        if kind is not tuple:
            conditions.append(f"id({place}) not in {own}")
        conditions.append(f"tuple({place}) == {tuple(value)!r}" if kind is dict else f"len({place}) == {len(value)}")
        if kind is dict and any(type(each) is int for each in value):  # 1 equals True
            conditions.append(f"[*map(type, {place})] == [{', '.join(type(each).__name__ for each in value)}]")
        yield from _leaves(place, value, whole, own, conditions)


class _Writer:
    """The text of a reader."""

    def __init__(self, binding: Binding, module: Any, values: Sequence[str]) -> None:
        self._arguments = binding.arguments
        self._values = values
        self._state = binding.state
        self._module = module
        self.objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def _name(self, value: Any) -> str:
        if value is self._module and value is not None:
            return "module"  # held weakly: the text has no reference to it
        if value is None or value is True or value is False:
            return repr(value)
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"object_{len(self.objects)}"
            self.objects[name] = value
        return name

    def text(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """A function of the module and the arguments; None if some change would go unseen."""
        state = self._state
        if not state.is_plain or state.is_endless:
            return None
        conditions = [f"len(args) == {len(args)}", f"tuple(kwargs) == {tuple(kwargs)!r}" if kwargs else "not kwargs"]
        named = [f"args[{k}]" if k < len(args) else f"kwargs[{name!r}]" for k, name in enumerate(self._arguments)]
        lists = [named[list(self._arguments).index(name)] for name in self._values]
        own = self._name(state.surroundings.containers)
        spots = [*_leaves("args", args, lists, own, conditions), *_leaves("kwargs", kwargs, lists, own, conditions)]
        tensors: list[str] = []
        first = 0 if self._module is None else 1  # where the arguments begin among the leaves of the binding
        varying = {each.key - first for each in state.numbers if each.container is state.arguments}
        for position, (text, value) in enumerate(spots):
            if isinstance(value, torch.Tensor):
                tensors.append(text)
            elif text in lists and type(value) in (list, tuple):
                conditions.append(f"type({text}) is {type(value).__name__}")
            elif position in varying:
                continue
            elif value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
                conditions.append(self._equals(text, value))
            else:
                return None
        kept = {(id(each.container), each.key) for each in (*state.tensors, *state.numbers)}
        for spot in (*state.spots, *state.places):
            conditions += spot.conditions(self._name, kept)
        if len(conditions) > _MOST_CONDITIONS:
            return None
        tensors += [each.text(self._name) for each in state.tensors]
        numbers = [
            spots[each.key - first][0] if each.container is state.arguments else each.text(self._name)
            for each in state.numbers
        ]
        return "\n".join(self._lines(dict.fromkeys(conditions), tensors, numbers, lists))

    def _equals(self, text: str, value: Any) -> str:
        """That an argument is a number or a string that equals `value` in all."""
        is_own = not is_of_library(type(value))  # which may have attributes
        if isinstance(value, (bool, type(None))) or is_own or value != value or not value:
            return f"{text} is {self._name(value)}"
        kind = self._name(type(value))
        return f"({text} is {self._name(value)} or type({text}) is {kind} and {text} == {self._name(value)})"

    def _lines(
        self, conditions: dict[str, None], tensors: Sequence[str], numbers: Sequence[str], lists: Sequence[str]
    ) -> Iterator[str]:
        yield "def read(module, args, kwargs):"
        yield "    try:"
        yield "        if not ("
        yield from (f"            {'and ' if k else ''}{condition}" for k, condition in enumerate(conditions))
        yield "        ):"
        yield "            return None"
        for k, text in enumerate(numbers):
            kind = type(self._state.numbers[k].value)
            yield f"        n{k} = {text}"
            yield f"        if type(n{k}) is not {kind.__name__} or {UNLIKE[kind].format(f'n{k}')}:"
            yield "            return None"
        values = [f"n{k}" for k in range(len(numbers))]
        for k, text in enumerate(lists):
            yield f"        v{k} = {text}[:]"  # which may be changed before backward
            values.append(f"v{k}")
        for k, text in enumerate(tensors):
            yield f"        t{k} = {text}"
        tensors_text = "".join(f"t{k}, " for k in range(len(tensors)))
        key = ", ".join(f"t{k}.{each}" for k in range(len(tensors)) for each in geometry.ATTRIBUTES)
        autocast, device = "is_autocast() and read_autocast()", "has_modes() and default_device()"
        yield f"        state = is_grad_enabled() and not is_inference(), {autocast}, default_dtype(), {device}"
        yield "        before, is_alike, plan = plans.latest"
        nested = "".join(f" or t{k}.is_nested" for k in range(len(tensors)))
        yield f"        if before != state{nested} or not is_alike({tensors_text}):"
        # What stands for a tensor, such as a `torch.fx.Proxy`, would record what it is asked.
        yield f"            if not ({' and '.join(f'isinstance(t{k}, Tensor)' for k in range(len(tensors)))}):"
        yield "                return None"
        yield f"            plan = plans.find((state, {key}), ({tensors_text}))"
        # Something has changed: an item, an attribute or a variable is gone, or is no tensor, or one without strides. A
        # tensor's class may also raise what it likes.
        yield "    except Exception:"
        yield "        return None"
        yield f"    return ({tensors_text}), plan, ({''.join(f'{each}, ' for each in values)})"
