"""What was compiled of a loss, for one class of calls: its plan as launches, and how it is run.

This is all that a process needs which finds a loss compiled on disk (`autogen.dispatch.stored`).
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autogen import ir
from autogen.calls.binding import Bound
from autogen.calls.changes import State
from autogen.runtime.backwards import Arriving, Backwards, Sizes, Step, kernels_in, launchers_of, results_of
from autogen.runtime.launch import Launcher, Tuner, empty
from autogen.runtime.packing import Packing, packed
from autogen.runtime.route import Route
from autogen.scheduling.plan import Plan
from autogen.sizes import evaluator_of
from autogen.torch_step import TorchStep
from autogen.tracing.static_graph import Graph
from autogen.tracing.trace import Trace


@dataclass(eq=False, repr=False)
class CompiledLoss:
    """A loss for one class of inputs: its trace, its plan and its launchers."""

    trace: Trace
    plan: Plan
    device: torch.device
    tune: Callable[[Launcher], Tuner] | None = None
    kept_as: str = ""  # a digest of all that is on disk of it
    forward: tuple[Step, ...] = field(init=False)
    backwards: Backwards = field(init=False)

    @property
    def ahead(self) -> tuple[torch.fx.Node, ...]:
        """What torch runs before the kernels, to know how large tensors are."""
        return tuple(dict.fromkeys(step for entry in self.trace.domain.found for step in entry.steps))

    @property
    def torch_steps(self) -> tuple[TorchStep, ...]:
        """What torch runs between the kernels, without what costs nothing."""
        steps = (*self.forward, *self.backward())
        return tuple(step for step in steps if isinstance(step, TorchStep) and not step.is_free)

    @property
    def is_random(self) -> bool:
        """Whether a call draws random numbers."""
        return any(step.is_random for step in self.forward if isinstance(step, TorchStep))

    @property
    def launchers(self) -> tuple[Launcher, ...]:
        """The kernels, forward and then backward."""
        return kernels_in((*self.forward, *self.backward()))

    @property
    def launches(self) -> str:
        """The number of launches, forward + backward."""
        return f"{len(kernels_in(self.forward))} + {len(kernels_in(self.backward()))}"

    @property
    def path(self) -> str:
        """The path's name in reports."""
        return "partial" if self.ahead or self.torch_steps else "generated"

    @property
    def reason(self) -> str:
        """Why the call takes this path."""
        before = [f"{_listed(TorchStep.name_of(step.target) for step in self.ahead)} before"] if self.ahead else []
        between = [f"{_listed(step.name for step in self.torch_steps)} between"] if self.torch_steps else []
        late = f"; its gradient waits for backward: {self.plan.early.refused}" if self.plan.early.refused else ""
        if not before and not between:
            return f"every operation of the loss has a kernel{late}"
        return f"torch runs {', and '.join((*before, *between))} kernels{late}"

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs have a gradient."""
        return tuple(upstream is not None for upstream in self.trace.upstream)

    @functools.cached_property
    def is_short(self) -> bool:
        """Whether a call need not be taken apart if it is like an earlier one (`autogen.dispatch.shortcut`).

        Then sizes, strides, numbers and what is known ahead decide if it can run on the plan. That is all there is to
        it, but for what it changes; a tensor that is assigned with its graph would need a replay of its own, and what
        is assigned to an argument, that argument.
        """
        return not self.state.is_connected and not self.state.given

    @functools.cached_property
    def is_cut(self) -> bool:
        """Whether numbers that vary decide sizes, as in `x[: int(share * len(x))]`: a plan holds for one of them."""
        kernels = [part for each in self.launchers for part in (each.kernel, *each.kernel.parts)]
        sizes = {axis.size for kernel in kernels for axis in (*kernel.rows, *kernel.columns)}
        made = (buffer for step in self._between for buffer in step.results if buffer is not None)
        sizes.update(size for buffer in (*self.plan.outputs, *made) for size in buffer.shape)
        return any(not symbol.is_integer for size in sizes for symbol in size.free_symbols)

    @property
    def is_found(self) -> bool:
        """Whether the kernels are given tensors or numbers that torch finds ahead of them."""
        return len(self.trace.domain.ahead) > len(self.trace.domain.predicates)

    @functools.cached_property
    def is_closed(self) -> bool:
        """Whether the kernels are all there is to a call that can run on them. Checks of its values may come before."""
        return not (self.is_found or self.state or self._between)

    @property
    def is_portable(self) -> bool:
        """Whether another process may use what was compiled (`autogen.dispatch.stored`)."""
        return self.is_closed and not self.constants

    @functools.cached_property
    def token(self) -> str:
        """What graphs call the loss: the same in all processes that have it from one plan on disk, else in no other."""
        return f"{self.plan.name}-{self.kept_as or uuid.uuid4().hex}"

    def sizes_alone(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any] | None:
        """`sizes_of`, whatever the values are, of tensors or of what stands for them."""
        sizes = self.trace.domain.guards.read(tensors)
        return None if sizes is None or not self.holds(sizes) else sizes

    def sizes_of(self, tensors: Sequence[torch.Tensor], floats: Sequence[float]) -> dict[str, Any] | None:
        """The sizes and floats of a call by name, None if the kernels are not made for it."""
        bound = self.bind(tensors, floats)
        return None if bound is None else bound.sizes

    def holds(self, sizes: Sizes) -> bool:
        """Whether the kernels are made for some sizes; floats among them do not matter."""
        for size, value in self._fixed:
            if size(sizes) != (value,):
                return False
        return not self._limited or all(step.kernel.holds(sizes) for step in self._limited)

    @property
    def state(self) -> State:
        """What the loss changes that outlives a call."""
        return self.trace.state

    @property
    def unread(self) -> tuple[int, ...]:
        """Inputs whose values the loss does not look at, such as what an attribute was before it is assigned."""
        return self.trace.unread

    @functools.cached_property
    def unconnected(self) -> tuple[bool, ...]:
        """Which inputs, found ones included, autograd does not come to from any output."""
        reached: frozenset[int] = frozenset().union(*self.trace.reached)
        return tuple(k not in reached for k in range(len(self.trace.inputs)))

    def bind(self, tensors: Sequence[torch.Tensor], floats: Sequence[float]) -> Bound | None:
        """A call's sizes and floats by name, and what is computed ahead; None if the kernels are not made for it."""
        bound = self.known(tensors, floats)
        if bound is None or not self.holds(bound.sizes):
            return None
        return bound

    def known(self, tensors: Sequence[torch.Tensor], floats: Sequence[float]) -> Bound | None:
        """`bind`, where it is known whether the kernels are made for the sizes."""
        return self.trace.domain.bind(tensors, floats)

    @functools.cached_property
    def returns_tensor(self) -> bool:
        """Whether the loss returns its first output, and nothing around it."""
        return self.trace.structure.is_leaf() and len(self.trace.outputs) - self.state.outputs == 1

    def result(self, outputs: Sequence[torch.Tensor], sizes: Sizes, tensors: Sequence[torch.Tensor]) -> Any:
        """The loss's own return value around its outputs, and those of the call's tensors that it returns."""
        return outputs[0] if self.returns_tensor else self.trace.result(outputs, sizes, tensors)

    @functools.cached_property
    def shared(self) -> tuple[int, ...]:
        """Which outputs outlive the call, and are what a step of torch has made: they need memory of their own."""
        names = [each.name for each in self.trace.outputs]
        return tuple(k for k in range(len(names) - self.state.outputs, len(names)) if names[k] in self.plan.aliases)

    def __post_init__(self) -> None:
        self.forward = launchers_of(self.plan.forward, self.plan, self.tune)
        self.backwards = Backwards(self.trace, self.plan, self.tune)
        constants = self.trace.domain.constants.values()
        self.constants = {
            each.name: tensor.to(self.device) for each, tensor in zip(self.trace.constants, constants, strict=True)
        }
        steps = (*self.forward, *self.plan.direction.steps)
        self._between = [step for step in steps if isinstance(step, TorchStep)]
        self._fixed = [(evaluator_of(size), value) for size, value in self.plan.fixed.items()]
        self._limited = [each for each in self.launchers if each.kernel.is_limited]
        early = [root.buffer for root in self.plan.early.gradients]
        self._inputs = [each.name for each in self.trace.inputs]
        self._early = [each.name for each in early]
        self.outputs = results_of(self.forward, [*self.plan.outputs, *early], self.plan.aliases)
        self._saved = [each.name for each in self.plan.saved]
        apart = {each.name for each in self.trace.outputs}.union(*(step.reads for step in self._between))
        self._packed = packed(self._saved, self.outputs.names, apart)
        self._routes: dict[Hashable, Route] = {}
        self.common: dict[tuple[bool, ...], dict[str, Any]] = {}  # what its plans share, by what is differentiated

    def packing(self, sizes: Sizes, *, is_apart: bool = False) -> Packing:
        """What forward makes, and how it keeps what backward needs."""
        return Packing(self._saved, () if is_apart else self._packed, self.outputs.geometry(sizes))

    def forward_route(self, packing: Packing, *, is_apart: bool = False) -> Route:
        """The way of forward, for all sizes; it returns the outputs, and after them what is kept for backward."""
        route = self._routes.get(is_apart)
        if route is None:
            wanted = [*(each.name for each in self.trace.outputs), *packing.kept, *self._early]
            route = self._routes[is_apart] = Route(
                self._inputs, self.constants, packing.made, packing.parts, self.forward, self.plan.aliases, wanted
            )
        return route

    def backward_route(self, packing: Packing, arriving: Arriving, arrived: Sequence[int], *, is_apart: bool) -> Route:
        """The way of backward, for all sizes: from what forward was given and has kept, and the upstream gradients that
        have `arrived`, to the gradients.
        """
        key = is_apart, arriving.kind, tuple(arrived)
        route = self._routes.get(key)
        if route is None:
            is_early, backward = arriving.kind[-1], arriving.backward
            given = [*self._inputs, *packing.kept, *(self._early if is_early else ())]
            given += [f"grad_{self.trace.outputs[k].name}" for k in arrived]
            route = self._routes[key] = Route(
                given,
                self.constants,
                backward.results.names,
                packing.parts,
                backward.steps,
                backward.aliases,
                backward.gradients,
            )
        return route

    def run_forward(
        self, tensors: Sequence[torch.Tensor], sizes: Sizes
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Launch forward; returns the outputs, and what is kept for backward: statistics, then `early` gradients."""
        packing = self.packing(sizes)
        named = self._named(tensors)
        named |= packing.allocate(tensors[0].device)
        self._launch(self.forward, named, sizes, self.plan.aliases)
        outputs = [named[each.name] for each in self.trace.outputs]
        for k in self.shared:
            outputs[k] = outputs[k].clone()
        return outputs, [named[name] for name in (*packing.kept, *self._early)]

    def run_backward(
        self,
        tensors: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor | None],
        sizes: Sizes,
        packing: Packing | None = None,
    ) -> list[torch.Tensor | None] | None:
        """Launch backward; returns a gradient or None for every tensor, or None if torch's formula has to give them.

        Outputs without an upstream gradient contribute nothing; at least one has one. What forward has kept may come
        without its `early` gradients, for a second run; and in another `packing`.
        """
        packing = packing or self.packing(sizes)
        is_early = len(saved) > len(packing.kept)
        kept = [*packing.kept, *(self._early if is_early else ())]
        arriving = self.backwards.arriving(upstream, sizes, is_early)
        if arriving is None:
            return None
        named = self._named(tensors)
        named |= dict(zip(kept, saved, strict=True))
        named |= packing.unpacked(named) | arriving.tensors
        backward, sizes = arriving.backward, arriving.sizes
        named |= {name: empty(each, tensors[0].device) for name, each in backward.results.geometry(sizes).items()}
        self._launch(backward.steps, named, sizes, backward.aliases)
        return [None if name is None else named[name] for name in backward.gradients]

    def nodes(self) -> list[ir.Node]:
        """All nodes that the kernels, and those of other layouts, are made of, arguments first."""
        steps = kernels_in((*self.forward, *self.backwards.steps))
        roots = [root.node for step in steps for root in step.kernel.roots]
        return ir.topological((*roots, *self.plan.nodes()))

    @functools.cached_property
    def graph(self) -> Graph:
        """What was traced."""
        return Graph.of(self.trace)

    @property
    def early(self) -> int:
        """How many gradients forward computes."""
        return len(self.plan.early.gradients)

    def backward(self) -> tuple[Step, ...]:
        """The steps of backward for upstream gradients in the layouts of their outputs."""
        return self.backwards.usual().steps

    def _launch(
        self, steps: Sequence[Step], named: dict[str, torch.Tensor], sizes: Sizes, aliases: Mapping[str, str]
    ) -> None:
        device = next(iter(named.values())).device
        for step in steps:
            step(named, sizes, device)
        named |= {name: named[own] for name, own in aliases.items() if own in named}

    def _named(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        named = {each.name: tensor for each, tensor in zip(self.trace.inputs, tensors, strict=True)}
        return named | self.constants


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
