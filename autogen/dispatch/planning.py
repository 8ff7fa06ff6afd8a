"""Planning: what calls run that take a shortcut, and which calls may take one.

A call of sizes that a shortcut has not seen runs by a new plan, if something is compiled for it; where nothing is, or
it depends on more than its geometry, it takes the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from autogen.calls.binding import Binding
from autogen.dispatch.compilations import Compilations, Decision, key_of, needs_of_plain
from autogen.dispatch.plans import IN_TORCH, Family, InTorch, Key, Plan, Taken
from autogen.dispatch.shortcut import Shortcut
from autogen.dispatch.sites import Site
from autogen.errors import AutogenError, StateChangeError, UnavailableError
from autogen.options import Options
from autogen.policies import Policy, resolve
from autogen.runtime.replays import Settings

if TYPE_CHECKING:
    from autogen.runtime.compiled import CompiledLoss
    from autogen.runtime.handwritten import BoundHandwritten, Handwritten


class Planner:
    """Finds plans for the calls of a loss.

    Args:
        compilations: what is compiled of it.
        options: what is asked of it.
    """

    def __init__(self, compilations: Compilations, options: Options) -> None:
        self._compilations = compilations
        self._options = options
        self._handwritten: Callable[[], Handwritten] | None = options.handwritten

    def plan(
        self, shortcut: Shortcut, key: Key, tensors: Sequence[torch.Tensor], values: tuple[Any, ...], site: Site
    ) -> Plan | Taken | InTorch | None:
        """What a call of a geometry runs that has no plan yet; on handwritten kernels, if another has one."""
        if self._handwritten is None:
            kinds, family = shortcut.plans.family(key)
            if family is None:
                needs = needs_of_plain(tensors)
                family = self._family(shortcut, tensors, needs)
                if family is None:
                    if needs is not None and not self._compilations.refuses(key_of(shortcut, tensors), tensors, values):
                        return None
                    if not values:
                        shortcut.plans.keep(key, IN_TORCH, is_again=shortcut.plans.note(key))
                    return IN_TORCH
                shortcut.plans.know(kinds, family)
            found = self._found(family, tensors, values, site)
            if found is None:
                return None
            compiled, sizes = found
            is_again = shortcut.plans.note(key)
            plan = None if is_again else family.of_any_sizes(compiled)
            if plan is not None:
                return plan, sizes, ()
            plan = _plan_of(compiled, sizes, family, values, [])
            shortcut.plans.keep(key, plan, is_again=is_again)
            return plan
        state, example = shortcut.plans.example or (None, None)
        if not isinstance(example, Plan) or example.loss.path != "handwritten":
            return None
        if state != key[0]:
            return None
        needs = needs_of_plain(tensors, self.on_device(shortcut.names, tensors))
        if needs is None:
            return None
        bound = cast("BoundHandwritten", example.loss).like(tensors, needs)
        return None if bound is None else shortcut.handwritten(key, bound, tensors)

    def branch(
        self, shortcut: Shortcut, tensors: Sequence[torch.Tensor], values: tuple[Any, ...], site: Site, plan: Plan
    ) -> Taken | None:
        """How a call runs that takes other branches than those of a `plan` for its geometry."""
        if self._handwritten is not None:
            return None
        for other in plan.branches:
            taken = other.taken(tensors, values) if other is not plan else None
            if taken is not None:
                return taken
        family = self._family(shortcut, tensors, needs_of_plain(tensors))
        new = None if family is None else self._compiled_plan(family, tensors, values, site, plan.branches)
        return None if new is None else new.taken(tensors, values)

    def learn(
        self,
        site: Site,
        binding: Binding,
        decision: Decision,
        module: torch.nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Find a shortcut for the next calls like this one."""
        kernels = decision.kernels
        if kernels is None:
            if self._is_for_good(binding, decision.error):
                site.learn(binding, module, args, kwargs)
        elif self._handwritten is None:
            if cast("CompiledLoss", kernels).is_short:
                site.learn(binding, module, args, kwargs)
        elif kernels.path == "handwritten" and not binding.numbers:
            bound = cast("BoundHandwritten", kernels)
            site.learn(binding, module, args, kwargs, bound.values)
            for each, key, _ in site.unplanned(module, args, kwargs):
                each.handwritten(key, bound, binding.tensors)
        elif self._is_refused_for_good(binding) and cast("CompiledLoss", kernels).is_short:
            site.learn(binding, module, args, kwargs)
            for each, key, tensors in site.unplanned(module, args, kwargs):
                family = self._family(each, tensors, needs_of_plain(tensors))
                plan = None if family is None else self._compiled_plan(family, tensors, (), site, [])
                if plan is not None:
                    each.plans.keep(key, plan, is_again=each.plans.note(key))

    def on_device(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The tensors that may not be on the host if kernels are to run on a GPU."""
        if self._handwritten is None:
            return tensors
        on_host = self._handwritten().on_host
        return [tensor for name, tensor in zip(names, tensors, strict=True) if name not in on_host]

    def _is_refused_for_good(self, binding: Binding) -> bool:
        """Whether handwritten kernels that have no call like this one have none of its geometry."""
        if self._handwritten is None or binding.numbers:
            return False
        return resolve(self._options.policy) is not Policy.AGGRESSIVE and not self._handwritten().looks_at_values

    def _is_for_good(self, binding: Binding, error: AutogenError | None) -> bool:
        """Whether calls like one that is refused are refused as well."""
        if self._handwritten is not None or self._options.static_graph or not binding.tensors:
            return False
        if isinstance(error, StateChangeError):  # what torch changes makes each call another
            return False
        if isinstance(error, UnavailableError):
            return True
        key, numbers = key_of(binding, binding.tensors), tuple(binding.numbers.values())
        return self._compilations.refuses(key, binding.tensors, numbers)

    def _family(
        self, shortcut: Shortcut, tensors: Sequence[torch.Tensor], needs: tuple[bool, ...] | None
    ) -> Family | None:
        """What has been compiled for calls that have the sizes, only, of their own; None if there is nothing."""
        compiled = () if needs is None else self._compilations.of(key_of(shortcut, tensors))
        if needs is None or not compiled:
            return None
        parameters = tuple([k for k, each in enumerate(tensors) if type(each) is torch.nn.Parameter])
        return Family(compiled, needs, Settings(), parameters)

    def _compiled_plan(
        self,
        family: Family,
        tensors: Sequence[torch.Tensor],
        values: tuple[Any, ...],
        site: Site,
        branches: list[Plan],
    ) -> Plan | None:
        """What a call runs, if it is compiled; one more of the `branches` for its geometry."""
        found = self._found(family, tensors, values, site)
        return None if found is None else _plan_of(*found, family, values, branches)

    def _found(
        self, family: Family, tensors: Sequence[torch.Tensor], values: tuple[Any, ...], site: Site
    ) -> tuple[CompiledLoss, dict[str, Any]] | None:
        """What a call runs, if it is compiled, and its sizes."""
        for compiled in family.compiled:
            sizes = compiled.sizes_of(tensors, values) if compiled.is_short else None
            if sizes is not None:
                if self._options.static_graph and site.graphs.get(family.needs) is not compiled.graph:
                    return None  # compared on the long way
                return compiled, sizes
        return None


def _plan_of(
    compiled: CompiledLoss, sizes: dict[str, Any], family: Family, values: tuple[Any, ...], branches: list[Plan]
) -> Plan:
    """A plan for some sizes; one more of the `branches` for its geometry."""
    plan = Plan.of_sizes(compiled, sizes, family, branches)
    if values or plan.by_values:
        branches.append(plan)
    return plan
