"""What was compiled of a loss, for one class of calls: its plan as launches, and how it is run.

This is all that a process needs which finds a loss compiled on disk (`autogen.stored`).
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.binding import Binding
from autogen.changes import State
from autogen.errors import ScheduleError, defects_of
from autogen.frozen import frozen
from autogen.kernel import Kernel
from autogen.launch import Launcher, Results, Tuner, empty
from autogen.locks import compiling
from autogen.packing import Packing
from autogen.plan import Plan
from autogen.sizes import Evaluator
from autogen.static_graph import Graph
from autogen.torch_step import TorchStep
from autogen.tracing.trace import Bound, Trace

Sizes = dict[str, int]
Step = Launcher | TorchStep


@frozen
class Backward:
    """The steps of backward, and the tensors that its kernels write."""

    steps: tuple[Step, ...]
    results: Results


@frozen
class Arriving:
    """Upstream gradients of one layout, by name, and backward for them; `sizes` know their strides."""

    backward: Backward
    sizes: Sizes
    tensors: dict[str, torch.Tensor]
    is_copied: bool


@dataclass
class CompiledLoss:
    """A loss for one class of inputs: its trace, its plan and its launchers.

    Backward is scheduled once for every kind of layout in which autograd hands over the upstream gradients.
    """

    trace: Trace
    plan: Plan
    device: torch.device
    tune: Callable[[Launcher], Tuner] | None = None
    kept_as: str = ""  # a digest of all that is on disk of it
    forward: tuple[Step, ...] = field(init=False)
    _backwards: dict[tuple[tuple[str, ...], bool], Backward] = field(default_factory=dict)

    @property
    def ahead(self) -> tuple[torch.fx.Node, ...]:
        """What torch runs before the kernels, to know how large tensors are."""
        return tuple(dict.fromkeys(step for entry in self.trace.domain.found for step in entry.steps))

    @property
    def torch_steps(self) -> tuple[TorchStep, ...]:
        """What torch runs between the kernels, without what costs nothing."""
        steps = (*self.forward, *self.backward())
        return tuple(step for step in steps if isinstance(step, TorchStep) and not step.is_view)

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

    @property
    def is_short(self) -> bool:
        """Whether sizes, strides and floats decide if a call can run on the kernels, which then are all there is to it.

        Such calls need not be taken apart each time (`autogen.shortcut`).
        """
        return self.is_closed and not self.trace.domain.ahead

    @property
    def is_closed(self) -> bool:
        """Whether the kernels are all there is to a call that can run on them. Checks of its values may come before."""
        steps = (*self.forward, *self.backward())
        found = len(self.trace.domain.ahead) - len(self.trace.domain.predicates)
        return not (found or self.state or any(isinstance(step, TorchStep) for step in steps))

    @property
    def is_portable(self) -> bool:
        """Whether another process may use what was compiled (`autogen.stored`)."""
        return self.is_closed and not self.constants

    @functools.cached_property
    def token(self) -> str:
        """What graphs call the loss: the same in all processes that have it from one plan on disk, else in no other."""
        return f"{self.plan.name}-{self.kept_as or uuid.uuid4().hex}"

    def sizes_alone(self, tensors: Sequence[torch.Tensor]) -> Sizes | None:
        """`sizes_of`, whatever the values are, of tensors or of what stands for them."""
        sizes = self.trace.domain.guards.read(tensors)
        return None if sizes is None or not self._holds(sizes) else sizes

    def sizes_of(self, tensors: Sequence[torch.Tensor], floats: Sequence[float]) -> Sizes | None:
        """The sizes and floats of a call by name, None if the kernels are not made for it."""
        sizes = self.trace.domain.sizes(tensors, floats)
        return None if sizes is None or not self._holds(sizes) else sizes

    def _holds(self, sizes: Sizes) -> bool:
        return all(step.kernel.holds(sizes) for step in self._limited)

    @property
    def state(self) -> State:
        """What the loss changes that outlives a call."""
        return self.trace.state

    @functools.cached_property
    def unconnected(self) -> tuple[bool, ...]:
        """Which inputs, found ones included, have no gradient, whether one is asked for or not."""
        found = len(self.trace.inputs) - len(self.trace.gradients)
        return *(gradient is None for gradient in self.trace.gradients), *(True,) * found

    def bind(self, binding: Binding) -> Bound | None:
        """A call's sizes and floats by name, and what is computed ahead; None if the kernels are not made for it."""
        bound = self.trace.domain.bind(binding.tensors, tuple(binding.floats.values()))
        if bound is None or not self._holds(bound.sizes):
            return None
        return bound

    @property
    def returns_tensor(self) -> bool:
        """Whether the loss returns its one output, and nothing around it."""
        return self.trace.structure.is_leaf() and len(self.trace.outputs) == 1

    def result(self, outputs: Sequence[torch.Tensor], sizes: Sizes) -> Any:
        """The loss's own return value around its outputs."""
        return self.trace.result(outputs, sizes)

    def __post_init__(self) -> None:
        self.forward = self._launchers(self.plan.forward)
        constants = self.trace.domain.constants.values()
        self.constants = {
            each.name: tensor.to(self.device) for each, tensor in zip(self.trace.constants, constants, strict=True)
        }
        self._limited = [each for each in self.launchers if each.kernel.is_limited]
        early = [root.buffer for root in self.plan.early.gradients]
        self.outputs = _results(self.forward, [*self.plan.outputs, *early], self.plan)

    def packing(self, sizes: Sizes, *, is_apart: bool = False) -> Packing:
        """What forward makes, and how it keeps what backward needs."""
        saved, outputs = [each.name for each in self.plan.saved], {each.name for each in self.trace.outputs}
        return Packing(saved, outputs, self.outputs.geometry(sizes), is_apart=is_apart)

    def run_forward(
        self, tensors: Sequence[torch.Tensor], sizes: Sizes
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Launch forward; returns the outputs, and what is kept for backward: statistics, then `early` gradients."""
        packing = self.packing(sizes)
        named = self._named(tensors)
        named |= packing.allocate(tensors[0].device)
        self._launch(self.forward, named, sizes)
        outputs = [named[each.name] for each in self.trace.outputs]
        for k in range(len(outputs) - self.state.outputs, len(outputs)):
            if self.trace.outputs[k].name in self.plan.aliases:  # what outlives the call has memory of its own
                outputs[k] = outputs[k].clone()
        kept = (*packing.kept, *(root.buffer.name for root in self.plan.early.gradients))
        return outputs, [named[name] for name in kept]

    def run_backward(
        self,
        tensors: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor],
        sizes: Sizes,
        packing: Packing | None = None,
    ) -> list[torch.Tensor | None]:
        """Launch backward; returns a gradient or None for every tensor.

        What forward has kept may come without its `early` gradients, for a second run; and in another `packing`.
        """
        packing = packing or self.packing(sizes)
        is_early = len(saved) > len(packing.kept)
        kept = [*packing.kept, *(root.buffer.name for root in self.plan.early.gradients if is_early)]
        arriving = self.arriving(upstream, sizes, is_early)
        named = self._named(tensors)
        named |= dict(zip(kept, saved, strict=True))
        named |= packing.unpacked(named) | arriving.tensors
        backward, sizes = arriving.backward, arriving.sizes
        named |= {name: empty(each, tensors[0].device) for name, each in backward.results.geometry(sizes).items()}
        self._launch(backward.steps, named, sizes)
        gradients: list[torch.Tensor | None] = [None] * len(tensors)
        for position, root in zip(self.plan.gradient_of, self.plan.gradients, strict=True):
            gradients[position] = named[root.buffer.name]
        return gradients

    def nodes(self) -> list[ir.Node]:
        """All nodes that the kernels, and those of other layouts, are made of, arguments first."""
        steps = kernels_in((*self.forward, *(step for each in self._backwards.values() for step in each.steps)))
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

    def arriving(self, upstream: Sequence[torch.Tensor], sizes: Sizes, is_early: bool) -> Arriving:
        """Backward for the layouts of some upstream gradients, where forward's gradients are at hand or not."""
        named: dict[str, torch.Tensor] = {}
        sizes = dict(sizes)
        layouts = []
        for each, tensor in zip(self.trace.upstream, upstream, strict=True):
            if each is not None:
                tensor = named[each.name] = tensor.resolve_neg()  # its memory would hold the other sign
                layouts.append(self._layout(each.strides, tensor, sizes))
                if layouts[-1] == _STRIDED:
                    sizes |= {_stride_name(each.name, d): stride for d, stride in enumerate(tensor.stride())}
        try:
            return Arriving(self._backward(tuple(layouts), is_early), sizes, named, is_copied=False)
        except ScheduleError:  # this layout does not fit; the one of the output does
            for each in self.trace.upstream:
                if each is not None:
                    tensor = named[each.name]
                    dense = tensor.new_empty_strided(tensor.shape, Evaluator(each.strides)(sizes))
                    named[each.name] = dense.copy_(tensor)
            return Arriving(self._backward(None, is_early), sizes, named, is_copied=True)

    def backward(self) -> tuple[Step, ...]:
        """The steps of backward for upstream gradients in the layouts of their outputs."""
        return self._backward(None, bool(self.early)).steps

    def _backward(self, layouts: tuple[str, ...] | None, is_early: bool) -> Backward:
        layouts = layouts or (_DENSE,) * sum(self.differentiable)
        backward = self._backwards.get((layouts, is_early))
        if backward is None:
            with compiling:
                backward = self._backwards[layouts, is_early] = self._scheduled(layouts, is_early)
        return backward

    def _scheduled(self, layouts: tuple[str, ...], is_early: bool) -> Backward:
        from autogen.schedule import backward_of  # not for a plan from disk

        buffers = {}
        for each, layout in zip((each for each in self.trace.upstream if each is not None), layouts, strict=True):
            if layout != _DENSE:
                buffer = ir.Buffer(each.name, each.dtype, each.shape, each.strides, "upstream")
                buffers[each.name] = replace(buffer, strides=_strides(buffer, layout))
        with defects_of(self.plan.provenance.loss):
            granted = self.plan.early.granted if is_early else ()
            steps = self._launchers(backward_of(self.plan, buffers, granted))
        made = [root.buffer for root in self.plan.early.gradients] if is_early else []
        return Backward(steps, _results(steps, [root.buffer for root in self.plan.gradients], self.plan, made))

    def _launchers(self, steps: Iterable[Kernel | TorchStep]) -> tuple[Step, ...]:
        provenance = self.plan.provenance
        return tuple(s if isinstance(s, TorchStep) else Launcher(s, provenance, self.tune) for s in steps)

    def _launch(self, steps: Sequence[Step], named: dict[str, torch.Tensor], sizes: Sizes) -> None:
        device = next(iter(named.values())).device
        for step in steps:
            step(named, sizes, device)
        named |= {name: named[own] for name, own in self.plan.aliases.items() if own in named}

    def _named(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        named = {each.name: tensor for each, tensor in zip(self.trace.inputs, tensors, strict=True)}
        return named | self.constants

    def _layout(self, expected: tuple[sympy.Expr, ...], tensor: torch.Tensor, sizes: Sizes) -> str:
        walked = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        strides = [tensor.stride(dim) for dim in walked]
        if strides == [Evaluator(expected)(sizes)[dim] for dim in walked]:
            return _DENSE
        return _STRIDED if any(strides) else _EXPANDED


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


# The layouts in which backward distinguishes upstream gradients.
_DENSE, _EXPANDED, _STRIDED = "dense", "expanded", "strided"


def _stride_name(name: str, dim: int) -> str:
    return f"{name}_stride{dim}"


def _strides(buffer: ir.Buffer, layout: str) -> tuple[sympy.Expr, ...]:
    if layout == _EXPANDED:
        return (sympy.S.Zero,) * len(buffer.shape)
    return tuple(
        sympy.S.Zero if size == 1 else sympy.Symbol(_stride_name(buffer.name, d), integer=True, positive=True)
        for d, size in enumerate(buffer.shape)
    )


def kernels_in(steps: Iterable[Step]) -> tuple[Launcher, ...]:
    """The kernels among the steps of a loss."""
    return tuple(step for step in steps if isinstance(step, Launcher))


def _results(
    steps: Iterable[Step], wanted: Iterable[ir.Buffer], plan: Plan, made: Collection[ir.Buffer] = ()
) -> Results:
    """What the kernels write, and results without elements, which none writes; not what is `made` already."""
    written = [root.buffer for step in steps if isinstance(step, Launcher) for root in step.kernel.roots]
    new = dict.fromkeys(each for each in (*wanted, *written) if each.name not in plan.aliases)
    return Results(each for each in new if each not in made)
