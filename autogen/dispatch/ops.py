"""The custom ops `autogen::forward` and `autogen::backward`, as which a segment appears in graphs of other compilers.

A graph holds no Python objects, so that it names a segment by a token.

The token is known in this process alone. The fake implementations take shapes and strides from the plan.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autogen import compat
from autogen.runtime.launch import Geometry, Results, empty
from autogen.runtime.replays import Replayed
from autogen.runtime.segments import KernelSegment

_PROCESS = uuid.uuid4().hex  # compilers keep graphs on disk, and another process does not know these segments
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)  # kernels are made for the strides of a trace
_count = itertools.count()
_all: dict[str, Ops] = {}  # by token; they live as long as the process, as the graphs that it compiles may


def separated(operands: Sequence[Any]) -> tuple[list[Tensor], list[Any]]:
    """The tensors among the operands, and the numbers."""
    is_tensor = [isinstance(each, Tensor) for each in operands]
    tensors = list(itertools.compress(operands, is_tensor))
    return tensors, list(itertools.compress(operands, [not each for each in is_tensor]))


class Ops:
    """A segment as two ops.

    Forward returns the outputs, and after them what else is kept; backward takes all that is `kept`, by position.
    """

    def __init__(self, segment: KernelSegment) -> None:
        self.token = f"{segment.compiled.plan.name}_{next(_count)}_{_PROCESS}"
        _all[self.token] = self
        self.segment, self._compiled = segment, segment.compiled
        self._parts, plan = segment.segment, segment.compiled.plan
        self._places = [[each.output for each in self._parts.returned].index(k) for k in range(segment.outputs)]
        order = list(itertools.accumulate(self._parts.are_tensors, initial=0))
        self._order = [order[place] for place in self._parts.tensors]  # of the kernels' inputs among the tensors
        kept = *plan.saved, *plan.early.kept
        made = {each.name: each for each in (*plan.outputs, *kept)}
        self.kept = [list(made).index(each.name) for each in kept]
        self._results = Results(made.values())
        gradients = [root.buffer for root in plan.gradients]
        self._gradients = Results(gradients)
        self._names = dict(zip(plan.gradient_of, self._gradients.names, strict=True))
        self._is_own = segment.compiled.is_closed and len(set(gradients)) == len(gradients)
        self._forward, self._backward = segment.forward_apart(frozenset()), segment.backward_apart

    @staticmethod
    def refusal(segment: KernelSegment) -> str:
        """Why ops cannot stand for a segment: they return tensors, which depend on nothing but their arguments."""
        parts, outputs = segment.segment, range(segment.outputs)
        if parts.reads or any(each.number is not None for each in parts.returned):
            return "it returns a number"
        if segment.is_random:
            return "it draws random numbers"
        if any(step.is_collective for step in segment.compiled.torch_steps):
            return "other processes take part in it"
        if parts.graph.prologue is not None:
            return "it makes a tensor whose size depends on values"
        is_each_returned = {each.output for each in parts.returned}.issuperset(outputs)
        is_each_made = len({each.name for each in segment.compiled.plan.outputs}) == len(outputs)
        return "" if is_each_returned and is_each_made else "it returns a tensor twice"

    def __call__(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Call, or record, the op forward; returns what the loss does."""
        results = torch.ops.autogen.forward(*separated(operands), self.token)
        found: list[Any] = []
        for each in self._parts.returned:
            if each.output is not None:
                found.append(results[each.output])
            else:
                found.append(None if each.argument is None else operands[each.argument])
        return tuple(found)

    def forward(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
        """Launch forward."""
        found = self._forward(*self._arguments(tensors, numbers))
        kept = found[len(self._parts.returned) + len(tensors) : len(found) - len(numbers)]
        results = [found[place] for place in self._places]
        results += [each for each, place in zip(kept, self.kept, strict=True) if place >= self.segment.outputs]
        return results if self._is_own else _laid_out(results, self._results_geometry(tensors, numbers), tensors)

    def like_forward(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Tensor]:
        """New tensors like those that forward returns."""
        return [empty(each, self._compiled.device) for each in self._results_geometry(tensors, numbers)]

    def backward(
        self,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        upstream: Sequence[Tensor | None],
        numbers: Sequence[int],
    ) -> list[Tensor]:
        """Launch backward; returns the gradients of the tensors that are `reached`."""
        varying = itertools.compress(upstream, self.segment.differentiable)
        found = self._backward(*numbers, *tensors, *kept, *varying)
        wanted = (found[self._parts.tensors[k]] for k in self._reached(upstream))
        results = [each for each in wanted if each is not None]  # all of them
        if self._is_own:
            return results
        return _laid_out(results, self._gradients_geometry(tensors, upstream, numbers), tensors)

    def like_backward(
        self,
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        upstream: Sequence[Tensor | None],
        numbers: Sequence[int],
    ) -> list[Tensor]:
        """New tensors like those that backward returns."""
        return [empty(each, self._compiled.device) for each in self._gradients_geometry(tensors, upstream, numbers)]

    def places(self, upstream: Sequence[Tensor | None]) -> list[int]:
        """Of which tensors backward returns the gradients."""
        return [self._order[k] for k in self._reached(upstream)]

    def replayed(
        self, tensors: Sequence[Tensor], upstream: Sequence[Tensor | None], numbers: Sequence[int]
    ) -> list[Tensor | None]:
        """The gradients by torch's own formula, which can be differentiated."""
        results = self.segment.replay(numbers)
        given = [tensors[place] for place in self._order]
        wanted = [each.requires_grad for each in given]
        found = Replayed(results, None, self.segment.settings).gradients(given, wanted, upstream)
        by_place = dict(zip(self._order, found, strict=True))
        return [by_place.get(place) for place in range(len(tensors))]

    def _reached(self, upstream: Sequence[Tensor | None]) -> list[int]:
        """The inputs of the kernels that have a gradient."""
        arrived = [k for k, each in enumerate(upstream) if each is not None]
        return sorted(self._compiled.backwards.reached(arrived))

    def _results_geometry(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Geometry]:
        return list(self._results.geometry(self._sizes(tensors, numbers)).values())

    def _gradients_geometry(
        self, tensors: Sequence[Tensor], upstream: Sequence[Tensor | None], numbers: Sequence[int]
    ) -> list[Geometry]:
        by_name = self._gradients.geometry(self._sizes(tensors, numbers))
        return [by_name[self._names[k]] for k in self._reached(upstream)]

    def _sizes(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> dict[str, Any]:
        """The sizes of a call by name; no size depends on a number that comes as a tensor."""
        arguments = self._arguments(tensors, numbers)
        for place in self._parts.numbers:
            arguments[place] = 1 if isinstance(arguments[place], Tensor) else arguments[place]
        compiled, sizes = self.segment.kernels_for(arguments)
        assert compiled is self._compiled, "sizes are guarded"
        return sizes

    def _arguments(self, tensors: Sequence[Tensor], numbers: Sequence[int]) -> list[Any]:
        """What the segment is called with."""
        given, plain = iter(tensors), iter(numbers)
        return [next(given) if is_tensor else next(plain) for is_tensor in self._parts.are_tensors]


def _laid_out(results: Sequence[Tensor], made: Sequence[Geometry], given: Sequence[Tensor]) -> list[Tensor]:
    """Results of torch's steps as ops return them: with the strides that were promised, and none twice."""
    known = {compat.storage_of(each) for each in given}
    found = []
    for each, (shape, strides, _) in zip(results, made, strict=True):
        storage = compat.storage_of(each)
        if storage in known or each.stride() != tuple(strides):
            each = each.new_empty_strided(shape, strides).copy_(each)
        known.add(storage)
        found.append(each)
    return found


torch.library.define("autogen::forward", "(Tensor[] tensors, SymInt[] numbers, str token) -> Tensor[]", tags=_TAGS)
torch.library.define(
    "autogen::backward",
    "(Tensor[] tensors, Tensor[] kept, Tensor?[] upstream, SymInt[] numbers, str token) -> Tensor[]",
    tags=_TAGS,
)


def _calling(method: str) -> Callable[..., Any]:
    """A function that calls a method of the ops that its last argument, a token, stands for."""

    def call(*arguments: Any) -> Any:
        return getattr(_ops_of(arguments[-1]), method)(*arguments[:-1])

    return call


for _op in ("forward", "backward"):
    torch.library.impl(f"autogen::{_op}", "default", _calling(_op))
    torch.library.register_fake(f"autogen::{_op}", _calling(f"like_{_op}"))


def _keep(ctx: Any, inputs: tuple[list[Tensor], list[int], str], output: list[Tensor]) -> None:
    tensors, ctx.numbers, ctx.token = inputs
    ops = _ops_of(ctx.token)
    count = ops.segment.outputs
    ctx.count = len(tensors)
    ctx.set_materialize_grads(False)  # what is kept has none
    constant = [each for each, varies in zip(output, ops.segment.differentiable, strict=False) if not varies]
    ctx.mark_non_differentiable(*constant, *output[count:])
    ctx.save_for_backward(*tensors, *(output[k] for k in ops.kept))


def _differentiate(ctx: Any, upstream: list[Tensor | None]) -> tuple[Any, ...]:
    ops = _ops_of(ctx.token)
    tensors, kept = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    rest: Any = (None if ctx.numbers else [], None)  # to torch, an empty list may be one of tensors
    arrived = upstream[: ops.segment.outputs]
    if torch.is_grad_enabled():  # the gradients are to be differentiated
        return ops.replayed(tensors, arrived, ctx.numbers), *rest
    gradients: list[Tensor | None] = [None] * ctx.count
    found = torch.ops.autogen.backward(tensors, kept, arrived, ctx.numbers, ctx.token)
    for place, each in zip(ops.places(arrived), found, strict=True):
        gradients[place] = each
    return gradients, *rest


torch.library.register_autograd("autogen::forward", _differentiate, setup_context=_keep)


def _ops_of(token: str) -> Ops:
    """The ops that a token stands for.

    Raises:
        RuntimeError: another process has compiled the graph.
    """
    found = _all.get(token)
    if found is None:
        raise RuntimeError(f"the kernels of {token} are those of the process that compiled this graph; compile it anew")
    return found
