"""Backward of one loss, for every layout of the upstream gradients that autograd passes.

Each may have a layout of its own, or be missing, and backward is scheduled once for every combination that comes.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.capture.graph import JointGraph
from autogen.errors import ScheduleError, defects_of
from autogen.ir.sizes import evaluator_of
from autogen.runtime.chunks import launchers_of
from autogen.runtime.launch import Results, Step, Tune, kernels_in, results_of
from autogen.runtime.locks import compiling
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.plan import Plan

Sizes = Mapping[str, Any]

_DENSE, _EXPANDED, _STRIDED, _MISSING = "dense", "expanded", "strided", "missing"


@dataclass(frozen=True)
class Backward:
    """The steps of backward, the tensors that its kernels write, and the gradient of each input by name.

    `aliases` are gradients that a step of torch has made, as in a plan.
    """

    steps: tuple[Step, ...]
    results: Results
    gradients: tuple[str | None, ...]
    aliases: Mapping[str, str]

    def holds(self, sizes: Sizes) -> bool:
        """Whether the kernels are made for some sizes."""
        return not self._limited or all(kernel.holds(sizes) for kernel in self._limited)

    @functools.cached_property
    def _limited(self) -> list[Kernel]:
        return [step.kernel for step in kernels_in(self.steps) if step.kernel.is_limited]


@dataclass(frozen=True)
class Arriving:
    """Upstream gradients, by name, and backward for them; `sizes` know their strides. Their `kind` is the layout of
    each, and whether forward's gradients are at hand.
    """

    kind: tuple[Hashable, ...]
    backward: Backward
    sizes: Sizes
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Backwards:
    """Backward of a trace, as it has been planned."""

    joint: JointGraph
    plan: Plan
    tune: Tune | None
    _found: dict[tuple[tuple[str, ...], bool], Backward | ScheduleError] = field(default_factory=dict)

    def usual(self) -> Backward:
        """Backward for upstream gradients of all outputs, in their layouts.

        Raises:
            ScheduleError: it does not fit the kernels known.
        """
        layouts = tuple(_DENSE for each in self.joint.upstream if each is not None)
        found = self._of(layouts, bool(self.plan.early.kept))
        if isinstance(found, ScheduleError):
            raise found
        return found

    def arriving(self, upstream: Sequence[torch.Tensor | None], sizes: Sizes, is_early: bool) -> Arriving | None:
        """Backward for some upstream gradients, where forward's gradients are at hand or not; None if there is none."""
        named: dict[str, torch.Tensor] = {}
        layouts = []
        expected = {}
        for each, tensor in zip(self.joint.upstream, upstream, strict=True):
            if each is not None and tensor is None:
                layouts.append(_MISSING)
            elif each is not None and tensor is not None:
                expected[each.name] = each.strides
                tensor = named[each.name] = tensor.resolve_neg()  # its memory would hold the other sign
                layouts.append(_layout(each.strides, tensor, sizes))
                if layouts[-1] == _STRIDED:
                    strides = {_stride_name(each.name, d): stride for d, stride in enumerate(tensor.stride())}
                    sizes = {**sizes, **strides}
        found = self._of(tuple(layouts), is_early)
        if isinstance(found, Backward) and found.holds(sizes):
            return Arriving((*layouts, is_early), found, sizes, named)
        # This layout does not fit; the one of the output does.
        dense_layouts = tuple(_MISSING if each == _MISSING else _DENSE for each in layouts)
        found = self._of(dense_layouts, is_early)
        if isinstance(found, ScheduleError) or not found.holds(sizes):
            return None
        for name, tensor in named.items():
            dense = tensor.new_empty_strided(tensor.shape, evaluator_of(*expected[name])(sizes))
            named[name] = dense.copy_(tensor)
        return Arriving((*dense_layouts, is_early), found, sizes, named)

    def reached(self, arrived: Iterable[int]) -> frozenset[int]:
        """Which inputs have a gradient, if the outputs `arrived` have an upstream gradient, and no others."""
        reached: frozenset[int] = frozenset().union(*(self.joint.reached[k] for k in arrived))
        return reached.intersection(self.plan.gradient_of)

    def _of(self, layouts: tuple[str, ...], is_early: bool) -> Backward | ScheduleError:
        """Backward for some layouts, or why there is none."""
        found = self._found.get((layouts, is_early))
        if found is None:
            with compiling, defects_of(self.plan.provenance.loss):
                try:
                    found = self._scheduled(layouts, is_early)
                except ScheduleError as error:
                    found = error
                self._found[layouts, is_early] = found
        return found

    def _scheduled(self, layouts: tuple[str, ...], is_early: bool) -> Backward:
        from autogen.scheduling.rewrites.missing import without  # not for a loss that is only called forward
        from autogen.scheduling.schedule import aliases_of, backward_in_chunks, backward_of, steps_of

        plan, direction = self.plan, self.plan.direction
        buffers, arrived = {}, []
        upstream = [(k, each) for k, each in enumerate(self.joint.upstream) if each is not None]
        for (k, each), layout in zip(upstream, layouts, strict=True):
            if layout == _MISSING:
                continue
            arrived.append(k)
            if layout != _DENSE:
                buffer = ir.Buffer(each.name, each.dtype, each.shape, each.strides, "upstream")
                buffers[each.name] = replace(buffer, strides=_strides(buffer, layout))
        names = {k: root.buffer.name for k, root in zip(plan.gradient_of, plan.gradients, strict=True)}
        if len(arrived) < len(upstream):
            arrives = {each.name: k in arrived for k, each in upstream}
            reached = self.reached(arrived)
            names = {k: name for k, name in names.items() if k in reached}
            direction = without(direction, arrives, set(names.values()), plan.provenance.moved)
        granted = plan.early.granted if is_early else ()
        if is_early and plan.early.direction is not None:
            direction = plan.early.direction
            planned = steps_of(direction, plan.hints, plan.provenance)
        else:
            direction = backward_in_chunks(plan, direction)
            planned = backward_of(plan, buffers, granted, direction)
        steps = launchers_of(planned, plan, self.tune)
        made = plan.early.kept if is_early else ()
        aliases = aliases_of(direction.results)
        results = results_of(steps, [root.buffer for root in direction.results], aliases, made)
        return Backward(steps, results, tuple(map(names.get, range(len(self.joint.inputs)))), aliases)


def _layout(expected: tuple[sympy.Expr, ...], tensor: torch.Tensor, sizes: Sizes) -> str:
    walked = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    strides = [tensor.stride(dim) for dim in walked]
    known = evaluator_of(*expected)(sizes) if walked else ()
    if strides == [known[dim] for dim in walked]:
        return _DENSE
    return _STRIDED if any(strides) else _EXPANDED


def _stride_name(name: str, dim: int) -> str:
    return f"{name}_stride{dim}"


def _strides(buffer: ir.Buffer, layout: str) -> tuple[sympy.Expr, ...]:
    if layout == _EXPANDED:
        return (sympy.S.Zero,) * len(buffer.shape)
    return tuple(
        sympy.S.Zero if size == 1 else sympy.Symbol(_stride_name(buffer.name, d), integer=True, positive=True)
        for d, size in enumerate(buffer.shape)
    )
