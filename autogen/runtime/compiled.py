"""A compiled segment of a loss: its plan as launches, and what they are run with."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import torch

from autogen.capture.graph import JointGraph
from autogen.ir.sizes import evaluator_of
from autogen.ir.torch_step import TorchStep
from autogen.runtime.backwards import Arriving, Backwards, Sizes
from autogen.runtime.chunks import ChunkLoop, launchers_of, loops_in
from autogen.runtime.launch import Launcher, Step, Tune, kernels_in, results_of
from autogen.runtime.packing import Packing, packed
from autogen.runtime.route import Route
from autogen.scheduling.chunks.matrices import scale, scale_copy
from autogen.scheduling.plan import Plan


@dataclass(eq=False, repr=False)
class CompiledLoss:
    """A joint graph, its plan and its launchers."""

    joint: JointGraph
    plan: Plan
    device: torch.device
    tune: Tune | None = None
    forward: tuple[Step, ...] = field(init=False)
    backwards: Backwards = field(init=False)

    @property
    def ahead(self) -> tuple[torch.fx.Node, ...]:
        """What torch runs before the kernels, to know how large tensors are."""
        return () if self.joint.prologue is None else tuple(self.joint.prologue.steps)

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
    def loops(self) -> tuple[ChunkLoop, ...]:
        """What goes through chunks of rows, forward and then backward."""
        return loops_in((*self.forward, *self.backward()))

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
        chunks = ", in chunks of rows" if self.plan.in_chunks else ""
        whole = f"; of all rows at once, as {self.plan.whole}" if self.plan.whole else ""
        return f"torch runs {', and '.join((*before, *between))} kernels{chunks}{whole}{late}"

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs have a gradient."""
        return tuple(upstream is not None for upstream in self.joint.upstream)

    @functools.cached_property
    def is_closed(self) -> bool:
        """Whether the kernels are all there is to a call."""
        return self.joint.prologue is None and not self._between

    def holds(self, sizes: Sizes) -> bool:
        """Whether the kernels are made for some sizes; floats among them do not matter."""
        for size, value in self._fixed:
            if size(sizes) != (value,):
                return False
        if any(size.is_less_than_all(sizes) for size in self.plan.undivided):
            return False
        return not self._limited or all(step.kernel.holds(sizes) for step in self._limited)

    def __post_init__(self) -> None:
        self.forward = launchers_of(self.plan.forward, self.plan, self.tune)
        self.backwards = Backwards(self.joint, self.plan, self.tune)
        constants = self.joint.constant_values
        self.constants = {
            each.name: tensor.to(self.device) for each, tensor in zip(self.joint.constants, constants, strict=True)
        }
        steps = (*self.forward, *self.plan.direction.steps)
        self._between = [step for step in steps if isinstance(step, TorchStep)]
        self._fixed = [(evaluator_of(size), value) for size, value in self.plan.fixed.items()]
        self._limited = [each for each in self.launchers if each.kernel.is_limited]
        early = self.plan.early.kept
        self._inputs = [each.name for each in self.joint.inputs]
        self._early = [each.name for each in early]
        by_torch = {name for step in self._between for name in step.writes}
        made = [each for each in early if each.name not in by_torch]
        self.outputs = results_of(self.forward, [*self.plan.outputs, *made], self.plan.aliases)
        self._saved = [each.name for each in self.plan.saved]
        apart = {each.name for each in self.joint.outputs}.union(*(step.reads for step in self._between))
        # Which of them chunks read in backward is known when it is planned.
        self._packed = () if self.plan.in_chunks else packed(self._saved, self.outputs.names, apart)
        self._routes: dict[Hashable, Route] = {}

    def packing(self, sizes: Sizes, *, is_apart: bool = False) -> Packing:
        """What forward makes, and how it keeps what backward needs."""
        return Packing(self._saved, () if is_apart else self._packed, self.outputs.geometry(sizes))

    def forward_route(self, packing: Packing, *, is_apart: bool = False) -> Route:
        """The way of forward, for all sizes; it returns the outputs, and after them what is kept for backward."""
        route = self._routes.get(is_apart)
        if route is None:
            wanted = [*(each.name for each in self.joint.outputs), *packing.kept, *self._early]
            route = self._routes[is_apart] = Route(
                self._inputs, self.constants, packing.made, packing.parts, self.forward, self.plan.aliases, wanted
            )
        return route

    def backward_route(self, packing: Packing, arriving: Arriving, *, is_apart: bool) -> Route:
        """The way of backward, for all sizes: from what forward was given and has kept, and the upstream gradients that
        are `arriving`, to the gradients.
        """
        key = is_apart, arriving.kind
        route = self._routes.get(key)
        if route is None:
            is_early, own = arriving.kind[-1], arriving.backward
            given = [*self._inputs, *packing.kept, *(self._early if is_early else ()), *arriving.tensors]
            steps = [
                step.calling(scale_copy) if is_apart and isinstance(step, TorchStep) and step.target is scale else step
                for step in own.steps
            ]
            route = self._routes[key] = Route(
                given, self.constants, own.results.names, packing.parts, steps, own.aliases, own.gradients
            )
        return route

    @property
    def early(self) -> int:
        """How many tensors forward keeps for gradients that it has computed."""
        return len(self.plan.early.kept)

    def backward(self) -> tuple[Step, ...]:
        """The steps of backward for upstream gradients in the layouts of their outputs."""
        return self.backwards.usual().steps


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
