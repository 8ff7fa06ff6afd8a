"""Shortcuts: a call that is like an earlier one goes straight to its launches.

Taking a call apart (`autogen.calls.binding`) looks at everything that the loss may read, which costs some 50 µs. When a
module, or a function, has been called twice, the places that were looked at become one generated function of a few
comparisons by identity: it returns the tensors of a call and what is prepared for their geometry
(`autogen.runtime.prepared`), or None where anything at all has changed; then the call is taken apart again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import _pytree as pytree

from autogen.calls.binding import Binding, run_again
from autogen.calls.surroundings import Surroundings
from autogen.dispatch.state import copy_of
from autogen.frozen import frozen
from autogen.runtime import geometry
from autogen.runtime.replays import Settings, read_autocast

if TYPE_CHECKING:
    from autogen.calls.changes import State
    from autogen.runtime.checks import Holds
    from autogen.runtime.compiled import CompiledLoss
    from autogen.runtime.handwritten import BoundHandwritten
    from autogen.runtime.handwritten_prepared import PreparedHandwritten, UnpreparedHandwritten
    from autogen.runtime.prepared import Prepared

Key = tuple[Any, ...]
Reading = tuple[tuple[torch.Tensor, ...], "Plan | Key", tuple[float, ...]]
"""The tensors of a call, their plan, or a key of their geometry if there is none yet, and the floats that vary."""

Reader = Callable[[Any, tuple[Any, ...], dict[str, Any]], Reading | None]

Taken = tuple["Plan", "dict[str, Any] | None", tuple[torch.Tensor, ...]]
"""How a call runs: its plan, its sizes if floats among them vary, and the tensors that were found ahead."""

MOST_PLANS = 1024  # geometries of one shortcut, before the oldest is forgotten
_MOST_NOTED = 2**13  # hashes, before all are forgotten
_MOST_ALIKE = 256  # sizes of what is found ahead, for one geometry
_MOST_CONDITIONS = 2000

# What the generated function may meet where something has changed: an item, an attribute or a variable that is gone, or
# something that is no tensor, or one without strides.
_CHANGES = (KeyError, IndexError, AttributeError, ValueError, TypeError, RuntimeError)


# What the text calls, to know of what holds for all tensors.
_CALLED = {
    "is_grad_enabled": torch.is_grad_enabled,
    "is_autocast": torch._C._is_any_autocast_enabled,
    "read_autocast": read_autocast,
    "default_dtype": torch.get_default_dtype,
}


@frozen
class Plan:
    """A compiled loss, prepared for one geometry of its tensors."""

    loss: CompiledLoss | BoundHandwritten
    prepared: Prepared | PreparedHandwritten | UnpreparedHandwritten
    needs_gradient: bool
    is_early: bool  # forward computes gradients
    is_random: bool
    outputs: int
    constant: tuple[int, ...]  # outputs without a gradient
    returns_tensor: bool  # and makes nothing else
    cut: tuple[int, ...] = ()  # tensors that autograd comes to from no output, whose graph may not be the loss's own
    copied: tuple[int, ...] = ()  # those that the loss writes to, and backward may read
    state: State | None = None  # what a call changes, if anything
    holds: Holds | None = None  # where values decide which branches a loss takes: whether they are these
    by_values: bool = False  # whether values decide if a call runs on the plan
    settings: Settings = field(default_factory=Settings)
    is_found: bool = False  # the loss is given what torch finds ahead; there is a plan for each of its sizes
    alike: dict[Key, Plan] = field(default_factory=dict, repr=False)  # those plans
    branches: list[Plan] = field(default_factory=list, repr=False)  # of all traces for the geometry

    @classmethod
    def of(cls, loss: CompiledLoss, sizes: dict[str, Any], needs: tuple[bool, ...], branches: list[Plan]) -> Plan:
        """Prepare a loss for the sizes of a call, and the tensors of it that are to be differentiated.

        `branches` are all plans for its geometry, where more than that decides.
        """
        from autogen.runtime.checks import checks_of  # these import sympy
        from autogen.runtime.prepared import Prepared

        domain = loss.trace.domain
        common = loss.common.get(needs)
        if common is None:
            common = loss.common[needs] = {
                "needs_gradient": any(needs),
                "is_early": loss.early > 0,
                "is_random": loss.is_random,
                "outputs": len(loss.trace.outputs),
                "constant": tuple(k for k, varies in enumerate(loss.differentiable) if not varies),
                "returns_tensor": loss.returns_tensor and not loss.state,
                "cut": _both(loss.unconnected[: len(needs)], needs),
                "copied": tuple(each.position for each in loss.state.written) if any(needs) else (),
                "state": loss.state or None,
                "is_found": loss.is_found,
            }
        holds = checks_of(domain, sizes) if domain.ahead and not common["is_found"] else None
        by_values = common["is_found"] or holds is not None
        return cls(loss, Prepared(loss, sizes), holds=holds, by_values=by_values, branches=branches, **common)

    @classmethod
    def of_handwritten(
        cls, call: BoundHandwritten, tensors: Sequence[torch.Tensor], needs: Sequence[bool], *, is_again: bool
    ) -> Plan:
        """Prepare a handwritten loss for calls like one, if such have come before: that takes a while."""
        from autogen.runtime.handwritten_prepared import PreparedHandwritten, UnpreparedHandwritten

        prepared = PreparedHandwritten(call, tensors) if is_again else UnpreparedHandwritten(call)
        return cls(
            prepared.call,
            prepared,
            bool(call.wanted),
            is_early=False,
            is_random=False,
            outputs=1,
            constant=(),
            returns_tensor=True,
            cut=_both(call.unconnected, needs),
        )

    def taken(self, tensors: Sequence[torch.Tensor], floats: Sequence[float]) -> Taken | None:
        """How a call of the geometry runs, if its loss takes the branches that it is planned for."""
        if not floats and not self.is_found:
            return (self, None, ()) if self.holds is None or self.holds(tensors) else None
        loss = cast("CompiledLoss", self.loss)
        bound = loss.bind(tensors, floats)
        if bound is None:
            return None
        sizes = bound.sizes
        integers = tuple([size for size in sizes.values() if not isinstance(size, float)])
        varying = sizes if len(integers) < len(sizes) else None
        if not self.is_found:
            return self, varying, ()
        plan = self.alike.get(integers)
        if plan is None:
            from autogen.runtime.prepared import Prepared

            plan = replace(self, prepared=Prepared(loss, sizes))
            _make_room(_MOST_ALIKE, self.alike)
            self.alike[integers] = plan
        return plan, varying, bound.found

    def given(self, tensors: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What kernels and autograd are given in the place of a call's tensors, and what was found ahead."""
        given = list(tensors)
        for k in self.copied:
            given[k] = copy_of(given[k])
        for k in self.cut:
            given[k] = given[k].detach()
        return [*given, *(map(copy_of, found) if self.copied else found)]  # it may lie in memory that is written to

    def outputs_of(self, results: list[torch.Tensor]) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The outputs among the results of forward; one that is all the loss returns, alone."""
        return results[0] if self.returns_tensor else tuple(results[: self.outputs])


class Plans:
    """The plans of a shortcut, by geometry; most calls have that of the `latest`, which a faster test finds.

    Where sizes keep changing, most geometries come once. Their plans go as soon as there is a newer one: Python's
    collector goes through all that is kept.
    """

    def __init__(self) -> None:
        self._plans: dict[Key, Plan] = {}
        self._newest: tuple[Key, Plan] | None = None  # which has come once
        self._noted: dict[int, None] = {}  # what has come, by hash
        self._tests: dict[Key, geometry.Alike] = {}
        self.example: tuple[Any, Plan] | None = None  # the last that was kept, after what held for all tensors
        # What holds for all tensors, a test for their geometry, and the plan.
        self.latest: tuple[Any, geometry.Alike, Plan] | tuple[None, None, None] = (None, None, None)

    def find(self, key: Key, tensors: Sequence[torch.Tensor]) -> Plan | Key:
        """The plan for a key, the first part of which holds for all tensors; the key if there is none."""
        plan = self._plans.get(key)
        if plan is None:
            if self._newest is None or self._newest[0] != key:
                return key
            plan = self._newest[1]
            self.keep(key, plan)
        same = self._tests.get(key)
        if same is None or not same(*tensors):  # made in another inference mode
            same = geometry.alike(tensors)
            if same is None:
                return plan
            self._tests[key] = same
        self.latest = key[0], same, plan
        return plan

    def comes_again(self, key: Key) -> bool:
        """Whether a geometry has come before, or is the first of all, as that of most losses stays what it is."""
        noted = hash(key)
        if noted in self._noted:
            return True
        is_first = not self._noted
        if len(self._noted) >= _MOST_NOTED:
            self._noted = {}
        self._noted[noted] = None
        return is_first

    def keep(self, key: Key, plan: Plan) -> None:
        """Remember the plan of a geometry: if that comes again, for good."""
        if self.comes_again(key):
            _make_room(MOST_PLANS, self._plans, self._tests)
            self._plans[key] = plan
            self.example = key[0], plan
        else:
            self._newest = key, plan


def _both(*conditions: Sequence[bool]) -> tuple[int, ...]:
    """Where all of some conditions are true."""
    return tuple(k for k, each in enumerate(zip(*conditions, strict=True)) if all(each))


def _make_room(most: int, table: dict[Key, Any], *others: dict[Key, Any]) -> None:
    """Drop the oldest of a table's entries, and what others have under their keys, if there are too many."""
    if len(table) >= most:
        for oldest in list(table)[: max(most // 8, 1)]:
            for each in (table, *others):
                each.pop(oldest, None)


_TENSOR = object()


@frozen
class _Float:
    """The place of a float that varies among the arguments of a call."""

    name: str


class Shortcut:
    """The calls of a module, or of a function, that read the same from the same places.

    `statics` and `names` are those of their binding, `places` where they may change something.
    """

    def __init__(
        self, binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any], read: Reader, plans: Plans
    ) -> None:
        self.statics = binding.statics
        self.names = binding.names
        self.read = read
        self.plans = plans
        state = binding.state
        holes = {each.key: each.name for each in state.floats if each.container is state.arguments}
        self._around = [k for k, each in enumerate(state.floats) if each.container is not state.arguments]
        kept = (*state.tensors, *(state.floats[k] for k in self._around))
        self._surroundings = Surroundings(kept, tuple(state.places)).released()
        self.places = self._surroundings.places
        given, self._structure = pytree.tree_flatten((args, kwargs))
        first = len(state.arguments or ()) - len(given)
        self._given = [
            _TENSOR if isinstance(value, torch.Tensor) else _Float(holes[k]) if k in holes else value
            for k, value in enumerate(given, first)
        ]
        self._floats = list(binding.floats)

    def handwritten(
        self, key: Key, call: BoundHandwritten, tensors: Sequence[torch.Tensor], needs: Sequence[bool]
    ) -> Plan:
        """A plan for a `call` on handwritten kernels, which is kept for calls of its geometry if that comes again."""
        is_again = self.plans.comes_again(key)
        plan = Plan.of_handwritten(call, tensors, needs, is_again=is_again)
        if is_again:
            self.plans.keep(key, plan)
        return plan

    def replay(self, tensors: Sequence[torch.Tensor], floats: Sequence[float], loss: Callable[..., Any]) -> Any:
        """Run the `loss` again as torch would, on the tensors and floats of a call, and all else as it was then."""
        args, kwargs = self.call(tensors, floats)
        count = sum(each is _TENSOR for each in self._given)
        values = (*tensors[count:], *(floats[k] for k in self._around))
        return run_again(self._surroundings, values, lambda: loss(args, kwargs))

    def call(self, tensors: Sequence[torch.Tensor], floats: Sequence[float]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, positional and by keyword, given all its tensors and floats."""
        rest, numbers = iter(tensors), dict(zip(self._floats, floats, strict=True))
        filled = [
            next(rest) if each is _TENSOR else numbers[each.name] if isinstance(each, _Float) else each
            for each in self._given
        ]
        args, kwargs = pytree.tree_unflatten(filled, self._structure)
        return tuple(args), kwargs


def shortcut(binding: Binding, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shortcut | None:
    """The shortcut for calls like this one; None if it reads something that has to be looked at each time."""
    writer = _Writer(binding, module)
    text = writer.text(args, kwargs)
    if text is None:
        return None
    plans = Plans()
    scope: dict[str, Any] = {**writer.objects, **_CALLED, "CHANGES": _CHANGES, "plans": plans}
    exec(compile(text, "<shortcut>", "exec"), scope)
    return Shortcut(binding, args, kwargs, scope["read"], plans)


def _leaves(text: str, container: Any, conditions: list[str]) -> Iterator[tuple[str, Any]]:
    """Where the items of a container are, and the items; within others in turn, of which the `conditions` are noted."""
    for key, value in container.items() if isinstance(container, dict) else enumerate(container):
        place, kind = f"{text}[{key!r}]", type(value)
        if kind not in (list, tuple, dict) or not all(type(each) in (str, int) for each in value if kind is dict):
            yield place, value
            continue
        conditions.append(f"type({place}) is {kind.__name__}")
        conditions.append(f"tuple({place}) == {tuple(value)!r}" if kind is dict else f"len({place}) == {len(value)}")
        yield from _leaves(place, value, conditions)


class _Writer:
    """The text of a reader."""

    def __init__(self, binding: Binding, module: Any) -> None:
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
        spots = [*_leaves("args", args, conditions), *_leaves("kwargs", kwargs, conditions)]
        tensors: list[str] = []
        first = 0 if self._module is None else 1  # where the arguments begin among the leaves of the binding
        varying = {each.key - first for each in state.floats if each.container is state.arguments}
        for position, (text, value) in enumerate(spots):
            if isinstance(value, torch.Tensor):
                tensors.append(text)
            elif position in varying:
                continue
            elif value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
                conditions.append(self._equals(text, value))
            else:
                return None
        kept = {(id(each.container), each.key) for each in (*state.tensors, *state.floats)}
        for spot in (*state.spots, *state.places):
            conditions += spot.conditions(self._name, kept)
        if len(conditions) > _MOST_CONDITIONS:
            return None
        tensors += [each.text(self._name) for each in state.tensors]
        floats = [
            spots[each.key - first][0] if each.container is state.arguments else each.text(self._name)
            for each in state.floats
        ]
        return "\n".join(self._lines(dict.fromkeys(conditions), tensors, floats))

    def _equals(self, text: str, value: Any) -> str:
        """That an argument is a number or a string that equals `value` in all."""
        if isinstance(value, (bool, type(None))) or value != value or not value:
            return f"{text} is {self._name(value)}"
        kind = self._name(type(value))
        return f"({text} is {self._name(value)} or type({text}) is {kind} and {text} == {self._name(value)})"

    def _lines(self, conditions: dict[str, None], tensors: Sequence[str], floats: Sequence[str]) -> Iterator[str]:
        yield "def read(module, args, kwargs):"
        yield "    try:"
        yield "        if not ("
        yield from (f"            {'and ' if k else ''}{condition}" for k, condition in enumerate(conditions))
        yield "        ):"
        yield "            return None"
        for k, text in enumerate(floats):
            yield f"        f{k} = {text}"
            yield f"        if type(f{k}) is not float or f{k} - f{k} != 0.0:"  # inf and nan are in the key
            yield "            return None"
        for k, text in enumerate(tensors):
            yield f"        t{k} = {text}"
        tensors_text = "".join(f"t{k}, " for k in range(len(tensors)))
        key = ", ".join(f"t{k}.{each}" for k in range(len(tensors)) for each in geometry.ATTRIBUTES)
        yield "        state = is_grad_enabled(), is_autocast() and read_autocast(), default_dtype()"
        yield "        before, is_alike, plan = plans.latest"
        nested = "".join(f" or t{k}.is_nested" for k in range(len(tensors)))
        yield f"        if before != state{nested} or not is_alike({tensors_text}):"
        yield f"            plan = plans.find((state, {key}), ({tensors_text}))"
        yield "    except CHANGES:"
        yield "        return None"
        yield f"    return ({tensors_text}), plan, ({''.join(f'f{k}, ' for k in range(len(floats)))})"
