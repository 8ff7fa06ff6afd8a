"""Plans: compiled losses, prepared for the geometries that calls by a shortcut have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch

from autogen.availability import is_wrapped
from autogen.dispatch.state import copy_of
from autogen.frozen import frozen
from autogen.runtime import geometry
from autogen.runtime.replays import Settings

if TYPE_CHECKING:
    from autogen.calls.changes import State
    from autogen.runtime.compiled import CompiledLoss
    from autogen.runtime.handwritten import BoundHandwritten
    from autogen.runtime.handwritten_prepared import PreparedHandwritten, UnpreparedHandwritten
    from autogen.runtime.prepared import Prepared
    from autogen.runtime.unprepared import Unprepared
    from autogen.tracing.domain.domain import Holds

    Preparation = Prepared | Unprepared | PreparedHandwritten | UnpreparedHandwritten

Key = tuple[Any, ...]


class InTorch:
    """The plan of calls that run in torch, whatever their values are."""


IN_TORCH = InTorch()

Taken = tuple["Plan", "dict[str, Any] | None", tuple[torch.Tensor, ...]]
"""How a call runs: its plan, its sizes if numbers among them vary, and the tensors that were found ahead."""

_MOST_FAMILIES = 256
MOST_PLANS = 1024  # geometries of one shortcut, before the oldest is forgotten
_MOST_NOTED = 2**13  # hashes, before all are forgotten
_MOST_ALIKE = 256  # sizes of what is found ahead, for one geometry


@frozen
class Family:
    """Calls of a shortcut that may have the same kernels: of all that decides about that, only sizes are not known.

    `needs` are the tensors to be differentiated.
    """

    compiled: Sequence[CompiledLoss]
    needs: tuple[bool, ...]
    settings: Settings
    parameters: tuple[int, ...] = ()  # tensors that are such
    unprepared: dict[CompiledLoss, Plan] = field(default_factory=dict, repr=False)

    def of_any_sizes(self, loss: CompiledLoss) -> Plan | None:
        """A plan for calls of any sizes that `loss` is made for, which have to be given; None where it needs them."""
        if not loss.is_closed or loss.trace.domain.ahead:
            return None
        plan = self.unprepared.get(loss)
        if plan is None:
            from autogen.runtime.unprepared import Unprepared

            plan = self.unprepared[loss] = Plan.of(loss, Unprepared(loss), self, [])
        return plan


@frozen
class Plan:
    """A compiled loss, prepared for one geometry of its tensors, or unprepared."""

    loss: CompiledLoss | BoundHandwritten
    prepared: Preparation
    needs_gradient: bool
    is_early: bool  # forward computes gradients
    is_random: bool
    outputs: int
    constant: tuple[int, ...]  # outputs without a gradient
    only_first: bool  # whether the first has one, and no other
    returns_tensor: bool  # and makes nothing else
    is_simple: bool  # and autograd need be told of nothing more
    cut: tuple[int, ...] = ()  # tensors that autograd comes to from no output, whose graph may not be the loss's own
    unread: tuple[int, ...] = ()  # tensors whose values the loss does not look at
    copied: tuple[int, ...] = ()  # those that the loss writes to, and backward may read
    state: State | None = None  # what a call changes, if anything
    holds: Holds | None = None  # where values decide which branches a loss takes: whether they are these
    parameters: tuple[int, ...] = ()  # tensors that are such, as the loss may ask
    by_values: bool = False  # whether values decide if a call runs on the plan
    settings: Settings = field(default_factory=Settings)
    is_found: bool = False  # the loss is given what is found ahead; there is a plan for each of its sizes
    is_cut: bool = False  # numbers that vary decide sizes; there is a plan for each, too
    alike: dict[Key, Plan] = field(default_factory=dict, repr=False)  # those plans
    branches: list[Plan] = field(default_factory=list, repr=False)  # of all traces for the geometry

    @classmethod
    def of(
        cls,
        loss: CompiledLoss,
        prepared: Preparation,
        family: Family,
        branches: list[Plan],
        holds: Holds | None = None,
    ) -> Plan:
        """A loss, and the tensors of a call that are to be differentiated.

        `branches` are all plans for its geometry, where more than that decides; `holds` tells its own.
        """
        needs = family.needs
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
                "unread": loss.unread if any(needs) else (),
                "copied": tuple(each.position for each in loss.state.written) if any(needs) else (),
                "state": loss.state or None,
                "is_found": loss.is_found,
                "is_cut": loss.is_cut,
            }
            common["only_first"] = common["constant"] == tuple(range(1, common["outputs"]))
            is_more = any(common[each] for each in ("is_early", "is_random", "constant", "cut", "unread"))
            common["is_simple"] = common["returns_tensor"] and not is_more
        by_values = common["is_found"] or holds is not None
        own: dict[str, Any] = {"settings": family.settings, "parameters": family.parameters, "branches": branches}
        return cls(loss, prepared, holds=holds, by_values=by_values, **own, **common)

    @classmethod
    def of_sizes(cls, loss: CompiledLoss, sizes: dict[str, Any], family: Family, branches: list[Plan]) -> Plan:
        """Prepare a loss for the sizes of a call."""
        domain = loss.trace.domain
        holds = domain.checks(sizes) if domain.ahead and not loss.is_found else None
        return cls.of(loss, _prepared(loss, (), sizes), family, branches, holds)

    @classmethod
    def of_handwritten(cls, call: BoundHandwritten, tensors: Sequence[torch.Tensor], *, is_again: bool) -> Plan:
        """Prepare a handwritten loss for calls like one, if such have come before: that takes a while."""
        unread = call.unread if call.wanted else ()
        return cls(
            call,
            _prepared(call, tensors, {}, is_again=is_again and not call.is_found),
            bool(call.wanted),
            is_early=False,
            is_random=False,
            outputs=1,
            constant=(),
            only_first=True,
            returns_tensor=True,
            is_simple=not unread,  # then what asks for a gradient has one
            cut=tuple([k for k in unread if tensors[k].requires_grad]),
            unread=unread,
            by_values=call.is_found,
            is_found=call.is_found,
        )

    def taken(self, tensors: Sequence[torch.Tensor], values: Sequence[Any]) -> Taken | None:
        """How a call of the geometry runs, if its loss takes the branches that it is planned for."""
        if not values and not self.is_found:
            return (self, None, ()) if self.holds is None or self.holds(tensors) else None
        bound = self.loss.known(tensors, values)
        if bound is None:
            return None
        sizes = bound.sizes
        known = tuple([size for size in sizes.values() if self.is_cut or not isinstance(size, float)])
        varying = sizes if len(known) < len(sizes) else None
        if not self.is_found and not self.is_cut:
            return self, varying, ()
        plan = self.alike.get(known)
        if plan is None or plan.prepared.is_for_once:
            if plan is None and not self.loss.holds(sizes):
                return None
            prepared = _prepared(self.loss, (*tensors, *bound.found), sizes, is_again=plan is not None)
            if plan is None:
                geometry.make_room(_MOST_ALIKE, self.alike)
            plan = replace(self, prepared=prepared)
            self.alike[known] = plan
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
        self._plans: dict[Key, Plan | InTorch] = {}
        self._newest: tuple[Key, Plan | InTorch] | None = None  # which has come once
        self._noted: dict[int, None] = {}  # what has come, by hash
        self._tests: dict[Key, geometry.Alike] = {}
        self._families: dict[Key, Family] = {}
        # The last that was kept, after what held for all tensors.
        self.example: tuple[Any, Plan | InTorch] | None = None
        # What holds for all tensors, a test for their geometry, and the plan.
        self.latest: tuple[Any, geometry.Alike, Plan | InTorch] | tuple[None, None, None] = (None, None, None)

    def find(self, key: Key, tensors: Sequence[torch.Tensor]) -> Plan | InTorch | Key:
        """The plan for a key, the first part of which holds for all tensors; the key if there is none.

        Raises:
            ValueError: a tensor is one that torch.func has wrapped, as a loss may have kept it.
        """
        plan, same = self._plans.get(key), self._tests.get(key)
        # Their geometry may be that of others, but no test takes one for the other.
        is_like = same is not None and same(*tensors)
        if not is_like and any(map(is_wrapped, tensors)):
            raise ValueError("a tensor without memory")
        if plan is None:
            if self._newest is None or self._newest[0] != key:
                return key
            plan = self._newest[1]
            self.keep(key, plan, is_again=True)
        if same is None or not is_like:  # made in another inference mode
            same = geometry.alike(tensors)
            if same is None:
                return plan
            self._tests[key] = same
        self.latest = key[0], same, plan
        return plan

    def family(self, key: Key) -> tuple[Key, Family | None]:
        """What a geometry has in common with others, and the family of these, if it is known."""
        kinds = key[0], *geometry.kinds_of(key[1:])
        return kinds, self._families.get(kinds)

    def know(self, kinds: Key, family: Family) -> None:
        """Remember a family."""
        geometry.make_room(_MOST_FAMILIES, self._families)
        self._families[kinds] = family

    def note(self, key: Key) -> bool:
        """Note that a geometry comes. Whether it has before, or is the first of all, as that of most losses stays."""
        noted = hash(key)
        if noted in self._noted:
            return True
        is_first = not self._noted
        if len(self._noted) >= _MOST_NOTED:
            self._noted = {}
        self._noted[noted] = None
        return is_first

    def keep(self, key: Key, plan: Plan | InTorch, *, is_again: bool) -> None:
        """Remember the plan of a geometry: if that comes again, for good."""
        if is_again:
            geometry.make_room(MOST_PLANS, self._plans, self._tests)
            self._plans[key] = plan
            self.example = key[0], plan
        else:
            self._newest = key, plan


def _prepared(
    loss: CompiledLoss | BoundHandwritten,
    tensors: Sequence[torch.Tensor],
    sizes: dict[str, Any],
    *,
    is_again: bool = True,
) -> Preparation:
    """A loss for some sizes. To plan a handwritten one for tensors takes long: only for such as come again."""
    from autogen.runtime.handwritten import BoundHandwritten

    if isinstance(loss, BoundHandwritten):
        from autogen.runtime.handwritten_prepared import PreparedHandwritten, UnpreparedHandwritten

        return PreparedHandwritten(loss, tensors, sizes) if is_again else UnpreparedHandwritten(loss, sizes)
    from autogen.runtime.prepared import Prepared

    return Prepared(loss, sizes)


def _both(*conditions: Sequence[bool]) -> tuple[int, ...]:
    """Where all of some conditions are true."""
    return tuple(k for k, each in enumerate(zip(*conditions, strict=True)) if all(each))
