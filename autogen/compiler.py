"""The pipeline, end to end: one call of a loss → its launches.

    trace → lower → schedule → emit → build → launch

`compile_loss` goes as far as the text; Triton's part happens when a launcher first runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.binding import Binding
from autogen.errors import AutogenError, ScheduleError
from autogen.launch import Launcher, Results
from autogen.lowering import decompositions, lower
from autogen.schedule import Plan, schedule
from autogen.sizes import Evaluator
from autogen.tracing import Trace, trace

Sizes = dict[str, int]


@dataclass
class CompiledLoss:
    """A loss for one class of inputs: its trace, its plan and its launchers.

    Backward is scheduled once for every kind of layout in which autograd hands over the upstream gradients.
    """

    trace: Trace
    plan: Plan
    forward: tuple[Launcher, ...]
    _backwards: dict[tuple[str, ...], tuple[Launcher, ...]] = field(default_factory=dict)

    path = "generated"
    reason = "every operation of the loss has a kernel"

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs have a gradient."""
        return tuple(upstream is not None for upstream in self.trace.upstream)

    def result(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The loss's own return value around its outputs."""
        return self.trace.result(outputs)

    def __post_init__(self) -> None:
        self._outputs = Results((*self.plan.outputs, *self.plan.saved))
        self._gradients = Results(root.buffer for root in self.plan.gradients)

    def run_forward(
        self, tensors: Sequence[torch.Tensor], sizes: Sizes
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Launch forward; returns the outputs and the statistics kept for backward."""
        named = self._named(tensors)
        self._launch(self._outputs, self.forward, named, sizes)
        return [named[each.name] for each in self.trace.outputs], [named[each.name] for each in self.plan.saved]

    def run_backward(
        self,
        tensors: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor],
        upstream: Sequence[torch.Tensor],
        sizes: Sizes,
    ) -> list[torch.Tensor | None]:
        """Launch backward; returns a gradient or None for every tensor."""
        named = self._named(tensors)
        named |= {buffer.name: tensor for buffer, tensor in zip(self.plan.saved, saved, strict=True)}
        sizes = dict(sizes)
        layouts = []
        for each, tensor in zip(self.trace.upstream, upstream, strict=True):
            if each is not None:
                named[each.name] = tensor
                layouts.append(self._layout(each.strides, tensor, sizes))
                if layouts[-1] == _STRIDED:
                    sizes |= {_stride_name(each.name, d): stride for d, stride in enumerate(tensor.stride())}
        try:
            launchers = self.backward(tuple(layouts))
        except ScheduleError:  # this layout does not fit; the one of the output does
            for each in self.trace.upstream:
                if each is not None:
                    tensor = named[each.name]
                    dense = tensor.new_empty_strided(tensor.shape, Evaluator(each.strides)(sizes))
                    named[each.name] = dense.copy_(tensor)
            launchers = self.backward()
        self._launch(self._gradients, launchers, named, sizes)
        gradients: list[torch.Tensor | None] = [None] * len(tensors)
        for position, root in zip(self.plan.gradient_of, self.plan.gradients, strict=True):
            gradients[position] = named[root.buffer.name]
        return gradients

    def backward(self, layouts: tuple[str, ...] | None = None) -> tuple[Launcher, ...]:
        """The launchers of backward for upstream gradients in the given layouts, by default their outputs' own."""
        upstream = [each for each in self.trace.upstream if each is not None]
        layouts = layouts or (_DENSE,) * len(upstream)
        launchers = self._backwards.get(layouts)
        if launchers is None:
            buffers = {}
            for each, layout in zip(upstream, layouts, strict=True):
                if layout != _DENSE:
                    buffer = ir.Buffer(each.name, each.dtype, each.shape, each.strides, "upstream")
                    buffers[each.name] = replace(buffer, strides=_strides(buffer, layout))
            kernels = self.plan.backward(buffers)
            launchers = self._backwards[layouts] = tuple(Launcher(k, self.plan.provenance) for k in kernels)
        return launchers

    def _launch(
        self, results: Results, launchers: Sequence[Launcher], named: dict[str, torch.Tensor], sizes: Sizes
    ) -> None:
        device = next(iter(named.values())).device
        named |= results.allocate(sizes, device)
        for launcher in launchers:
            launcher(named, sizes, device)

    def _named(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {each.name: tensor for each, tensor in zip(self.trace.inputs, tensors, strict=True)}

    def _layout(self, expected: tuple[sympy.Expr, ...], tensor: torch.Tensor, sizes: Sizes) -> str:
        walked = [dim for dim, size in enumerate(tensor.shape) if size > 1]
        strides = [tensor.stride(dim) for dim in walked]
        if strides == [Evaluator(expected)(sizes)[dim] for dim in walked]:
            return _DENSE
        return _STRIDED if any(strides) else _EXPANDED


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


def compile_loss(name: str, binding: Binding, needs_gradient: Sequence[bool]) -> CompiledLoss:
    """Trace, lower, schedule and emit a call of the loss `name`.

    Raises:
        AutogenError: some part of the loss has no kernel; the subclass says which.
    """
    traced = trace(binding.replay, binding.names, binding.tensors, needs_gradient, decompositions())
    hints = traced.domain.guards.read(binding.tensors)
    assert hints is not None, "a trace holds for the call that it was made from"
    try:
        plan = schedule(lower(traced, name), kernel_name(name), hints, training=any(needs_gradient))
    except AutogenError as error:
        error.domain = traced.domain
        raise
    compiled = CompiledLoss(traced, plan, tuple(Launcher(kernel, plan.provenance) for kernel in plan.forward))
    # Emitted here and not at the first launch, so that whatever fails fails before anything ran.
    for launcher in (*compiled.forward, *compiled.backward()):
        launcher.source(launcher.tiling(hints).variant)
    return compiled


def kernel_name(name: str) -> str:
    """A loss's name as a kernel's: `BCEWithLogitsLoss` → `bce_with_logits_loss`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", words).strip("_").lower() or "loss"
