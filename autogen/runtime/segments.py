"""Run a captured segment on kernels, as autograd sees it, and by eager recomputation where kernels do not suffice.

A `KernelSegment` is what Dynamo's code calls in the place of a graph. It runs the prologue, finds the prepared launches
for the sizes, and runs them, through an `autograd.Function` where gradients are wanted. Kernels hold for the sizes that
they were made for; for others a further `CompiledLoss` is made of the same joint graph, without a new capture. Second
derivatives, batched upstream gradients, and a backward kernel that does not compile come from the captured graph, which
torch runs under the autocast and the random state of the call (`replays`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import sympy
import torch

from autogen import compat
from autogen.capture.graph import JointGraph
from autogen.capture.joint import Returned, Segment
from autogen.capture.prologue import UnequalSizesError
from autogen.errors import ASKED_FOR, AutogenError
from autogen.ir.sizes import evaluator_of
from autogen.ir.torch_step import laid_out
from autogen.runtime.availability import is_functional
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.prepared import Prepared, make_room
from autogen.runtime.replays import Replayed, Settings, stream_of

_MOST_SIZES = 256  # for which launches are prepared, before the oldest is forgotten
_hooks = compat.saved_tensors_hooks


class KernelSegment:
    """A segment that runs on kernels; called with the arguments of Dynamo's graph, it returns a tuple of its results.

    Args:
        segment: what was captured.
        compile: makes kernels for sizes that those at hand are not made for.
        compiled: the kernels for the sizes that were captured.
        eager: Dynamo's graph, for second derivatives.
        failed: hears of the first kernel that turns out not to compile, and may raise; `eager` runs from then on.
        settings: those of the call, which Dynamo guards.
        training: whether the results have gradients.
        of_parts: whether arguments are parts of tensors that AOTAutograd takes apart, whose sizes are no arguments.
    """

    def __init__(
        self,
        segment: Segment,
        compile: Callable[[dict[str, Any]], CompiledLoss],
        compiled: CompiledLoss,
        eager: Callable[..., Any],
        failed: Callable[[AutogenError], None],
        settings: Settings,
        *,
        training: bool,
        of_parts: bool = False,
    ) -> None:
        self.segment, self.compiled, self.training = segment, compiled, training
        self._of_parts = of_parts
        self.eager, self._failed = eager, failed
        self.fault: AutogenError | None = None
        self.settings = settings
        self.apply = apply_of(compiled.plan.provenance.loss)
        self.outputs = len(segment.graph.outputs)
        self.differentiable = compiled.differentiable
        self.constant = tuple(k for k, varies in enumerate(self.differentiable) if not varies)
        self.only_first = self.outputs > 1 and self.differentiable[0] and not any(self.differentiable[1:])
        self._compile, self._variants = compile, [compiled]
        self._prepared: dict[Any, Prepared] = {}
        self._seen: set[int] = set()
        self._tensors = _items(segment.tensors)
        self._key = _items(segment.numbers)
        self._numbers = segment.numbers
        others = [place for place, is_tensor in enumerate(segment.are_tensors) if not is_tensor]
        self._plain = [place for place in others if place not in segment.objects]  # numbers of Python's
        in_order = [each.output for each in segment.returned] == list(range(self.outputs))
        self._is_plain = in_order and all(each.moved is None for each in segment.returned)
        symbols = segment.graph.sizes.symbols
        self._varies = any(not symbol.is_integer for symbol in symbols)
        self._graph = segment.graph
        self._is_sized_by_floats = self._varies and _is_sized_by_floats(segment.graph)
        self._is_simple = segment.graph.prologue is None and not (self._varies or of_parts)
        self.is_random = compiled.is_random

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        if self.fault is not None:
            return self.eager(*arguments)
        try:
            return self.run(arguments)
        except UnequalSizesError:
            pass
        except ASKED_FOR:
            raise
        except AutogenError as error:
            self.fail(error)
        return self.eager(*arguments)

    def fail(self, error: AutogenError) -> None:
        """Have torch run the segment from now on."""
        self._failed(error)
        self.fault = error

    def run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Launch the kernels for some arguments, whatever comes of it."""
        tensors: Sequence[torch.Tensor] = self._tensors(arguments)
        key = self._key(arguments)
        sizes = None
        if self._is_simple:
            prepared = self._prepared.get(key)
            if prepared is None:
                prepared = self._plan(key, self._graph.sizes.read(tensors, key))
        else:
            tensors, prepared, sizes = self._bind(arguments, tensors)[:3]
        if not self.training:
            outputs = prepared.forward(tensors, sizes)[: self.outputs]
        elif self.outputs == 1:
            outputs = (self.apply((prepared, sizes, self, key, None), *tensors),)
        else:
            outputs = self._apply(prepared, sizes, key, tensors)
        if self._is_plain:
            return outputs
        known = self._graph.sizes.read(tensors, key) if sizes is None else sizes
        return self._results(outputs, arguments, known)

    def prepared_for(self, arguments: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        """The launches that a call with such arguments takes, None if more than its sizes decide, or they are not kept;
        and the numbers among the arguments.
        """
        numbers = self._key(arguments)
        return (self._prepared.get(numbers) if self._is_simple else None), numbers

    def kernels_for(self, arguments: Sequence[Any]) -> tuple[CompiledLoss, dict[str, Any]]:
        """The kernels that run for some arguments, and the sizes of the call by name; nothing but the prologue runs.

        Of arguments that AOTAutograd takes apart first, as DTensors, those of the call that was captured.
        """
        if len(arguments) != len(self.segment.are_tensors):
            return self.compiled, self._graph.sizes.hints()
        prologue = self._graph.prologue
        found: Any = ((), ()) if prologue is None else prologue(arguments)
        numbers = [*(_number(arguments[place]) for place in self._numbers), *found[1]]
        sizes = self._graph.sizes.read((*self._tensors(arguments), *found[0]), numbers)
        return self._variant(sizes), sizes

    def _variant(self, sizes: dict[str, Any]) -> CompiledLoss:
        """The kernels that are made for some sizes."""
        compiled = next((each for each in self._variants if each.holds(sizes)), None)
        if compiled is None:
            compiled = self._compile(sizes)
            self._variants.append(compiled)
        return compiled

    def _apply(
        self, prepared: Any, sizes: Any, numbers: tuple[Any, ...], tensors: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        constant: list[torch.Tensor] = []
        returned = self.apply((prepared, sizes, self, numbers, constant), *tensors)
        if not self.only_first:
            return returned
        outputs = (returned, *constant)
        constant.clear()  # which the graph keeps
        return outputs

    def _bind(
        self,
        arguments: Sequence[Any],
        tensors: Sequence[torch.Tensor],
        found: tuple[Sequence[torch.Tensor], Sequence[Any]] | None = None,
        *,
        is_apart: bool = False,
    ) -> tuple[Sequence[torch.Tensor], Any, dict[str, Any], Sequence[Any]]:
        """A call whose sizes, or numbers, are not all among its arguments: its tensors, launches, sizes by name, and
        the numbers that are found before the kernels, if they are not `found` already.
        """
        if found is None:
            prologue = self._graph.prologue
            found = ((), ()) if prologue is None else prologue(arguments)
        numbers = [*(_number(arguments[place]) for place in self._numbers), *found[1]]
        tensors = (*tensors, *found[0])
        known = self._graph.sizes.read(tensors, numbers)
        given = known.values() if self._of_parts else numbers
        decide = given if self._is_sized_by_floats else (n for n in given if type(n) is int)
        key = (is_apart, *decide, *(each.shape for each in found[0]))
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._plan(key, known, is_apart=is_apart)
        return tensors, prepared, known, found[1]

    def _plan(self, key: Any, sizes: dict[str, Any], *, is_apart: bool = False) -> Prepared:
        """Launches for new sizes; those that come first are not kept."""
        prepared = Prepared(self._variant(sizes), sizes, is_apart=is_apart)
        if self._prepared and hash(key) not in self._seen:
            if len(self._seen) > 16 * _MOST_SIZES:
                self._seen.clear()
            self._seen.add(hash(key))
        else:
            make_room(_MOST_SIZES, self._prepared)
            self._prepared[key] = prepared
        return prepared

    def _results(
        self, outputs: Sequence[torch.Tensor], arguments: Sequence[Any], known: dict[str, Any]
    ) -> tuple[Any, ...]:
        if self.segment.reads:
            known = known | {str(symbol): outputs[place].item() for symbol, place in self.segment.reads.items()}
        results = [self._result(each, outputs, arguments, known) for each in self.segment.returned]
        for place, each in enumerate(self.segment.returned):
            if each.moved is not None:
                results[place] = torch.ops.aten._to_copy.default(results[place].detach(), **each.moved)
        return tuple(results)

    def _result(
        self, returned: Returned, outputs: Sequence[torch.Tensor], arguments: Sequence[Any], known: dict[str, Any]
    ) -> Any:
        if returned.output is not None:
            return outputs[returned.output]
        if returned.argument is not None:
            argument = arguments[returned.argument]
            if returned.view is None:
                return argument
            shape, strides, offset = returned.view
            places = [[_value(each, known) for each in part] for part in (shape, strides, (offset,))]
            return argument.as_strided(*places[:2], argument.storage_offset() + places[2][0])
        if returned.number is None:
            return None
        number = _value(returned.number, known)
        return number if returned.dtype is None else torch.scalar_tensor(number, dtype=returned.dtype)

    def kept_fakes(self, mode: Any) -> list[torch.Tensor]:
        """What forward keeps for backward beside its arguments, as fake tensors; see `forward_apart`."""
        made = self.compiled.packing(self._graph.sizes.hints(), is_apart=True).made
        prologue = self._graph.prologue
        numbers = 0 if prologue is None else len(prologue.numbers)
        with mode:
            found = [torch.empty((), dtype=each.dtype) for each in self._graph.inputs[len(self.segment.tensors) :]]
            found += [torch.empty((), dtype=torch.float64) for _ in range(numbers)]
            kept = [
                torch.empty_strided(*made[each.name][:2], dtype=each.dtype)
                if each.name in made
                else torch.empty((), dtype=each.dtype)
                for each in (*self.compiled.plan.saved, *self.compiled.plan.early.kept)
            ]
        return [*found, *kept]

    def forward_apart(self, mutated: frozenset[int]) -> Callable[..., tuple[Any, ...]]:
        """Forward for AOTAutograd: it returns the results, what backward needs as tensors (the arguments, what is found
        before the kernels, what these keep), and the arguments that are objects, and numbers.

        What is `mutated` afterwards is kept as it is now.
        """

        def run(*arguments: Any) -> tuple[Any, ...]:
            tensors, prepared, sizes, numbers = self._bind(arguments, self._tensors(arguments), is_apart=True)
            outputs = prepared.forward(tensors, sizes)
            given = [
                each.clone() if place in mutated else each
                for place, each in enumerate(arguments)
                if isinstance(each, torch.Tensor)
            ]
            found = [*tensors[len(self.segment.tensors) :], *map(torch.tensor, numbers)]
            plain = [arguments[place] for place in (*self.segment.objects, *self._plain)]
            return (*self._results(outputs, arguments, sizes), *given, *found, *outputs[self.outputs :], *plain)

        return run

    def backward_apart(self, *saved: Any) -> tuple[Any, ...]:
        """Backward for AOTAutograd, of what `forward_apart` has kept and of the upstream gradients."""
        segment, prologue = self.segment, self._graph.prologue
        given = [place for place, is_tensor in enumerate(segment.are_tensors) if is_tensor]
        counts = [len(self._plain), len(given), len(self._graph.inputs) - len(segment.tensors)]
        counts.append(0 if prologue is None else len(prologue.numbers))
        counts.append(len(saved) - sum(counts) - len(segment.objects) - len(segment.upstream))  # what kernels have kept
        rest = iter(saved)
        plain, own, found, read, kept, objects = (
            list(islice(rest, count)) for count in (*counts, len(segment.objects))
        )
        arguments: list[Any] = [None] * len(segment.are_tensors)
        for place, each in zip((*self._plain, *given, *segment.objects), (*plain, *own, *objects), strict=True):
            arguments[place] = each
        numbers = [each.item() for each in read]
        upstream = iter([each for each, is_tensor in zip(rest, segment.upstream, strict=True) if is_tensor])
        tensors, prepared, sizes, _ = self._bind(arguments, self._tensors(arguments), (found, numbers), is_apart=True)
        incoming = [next(upstream) if varies else None for varies in self.differentiable]
        gradients = prepared.backward((*tensors, *kept), incoming, sizes)
        by_place: dict[int | None, Any] = dict(zip(segment.tensors, gradients, strict=False))
        return tuple(
            self._result(each, (), arguments, sizes) if isinstance(each, Returned) else by_place.get(each)
            for each in segment.gradients
        )

    def replay(self, numbers: Sequence[Any]) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
        """The segment in torch's own operations, as a function of the tensors of a call that returns the outputs."""
        places = {each.output: place for place, each in reversed(list(enumerate(self.segment.returned)))}

        def results(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            given: list[Any] = [None] * len(self.segment.are_tensors)
            for place, number in zip(self._numbers, numbers, strict=True):
                given[place] = number
            for place, tensor in zip(self.segment.tensors, tensors, strict=False):
                given[place] = tensor
            returned = self.eager(*given)
            return [returned[places[k]] if k in places else tensors[0].detach() for k in range(self.outputs)]

        return results


class _Kernels(torch.autograd.Function):
    """The kernels of a segment, forward and backward.

    Outputs after the first that have no gradient do not go through autograd, for which each takes a µs: they are put in
    the list that ends the `call`.
    """

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        prepared, sizes, segment, _, constant = call
        ctx.set_materialize_grads(False)  # torch does not go through outputs that nothing arrives for
        if segment.is_random:
            ctx.stream = stream_of(tensors[0].device)
        results = prepared.forward(tensors, sizes)
        kept = results[segment.outputs :]
        ctx.call = call
        if prepared.early:  # not saved, as autograd may make them its own
            kept, ctx.early = kept[: -prepared.early], kept[-prepared.early :]
        ctx.save_for_backward(*tensors, *kept)
        # A hook may give back tensors that lie otherwise, as that of `save_on_cpu` does.
        ctx.strides = [each.stride() for each in (*tensors, *kept)] if _hooks(False) is not None else None
        if segment.only_first:  # autograd need not hear of the others
            constant.extend(results[1 : segment.outputs])
            return results[0]
        if segment.constant:
            ctx.mark_non_differentiable(*[results[k] for k in segment.constant])
        return results[0] if segment.outputs == 1 else tuple(results[: segment.outputs])

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> Any:
        if upstream[0] is None and all(each is None for each in upstream):
            return (None,) * len(ctx.needs_input_grad)
        prepared, sizes, segment, numbers, _ = ctx.call
        saved = ctx.saved_tensors
        if ctx.strides is not None:
            saved = tuple(map(laid_out, saved, ctx.strides))
        if not torch.is_grad_enabled() and not is_functional():
            if prepared.early:
                saved, ctx.early = (*saved, *ctx.early), []
            try:
                gradients = prepared.backward(saved, upstream, sizes)
                if gradients is not None:
                    return None, *gradients
            except ASKED_FOR:
                raise
            except AutogenError as error:  # of a kernel for another layout of upstream
                segment.fail(error)
        stream, wanted = ctx.stream if segment.is_random else None, ctx.needs_input_grad[1:]
        replayed = Replayed(segment.replay(numbers), stream, segment.settings)
        return None, *replayed.gradients(saved[: len(wanted)], wanted, upstream)


@functools.cache
def apply_of(loss: str) -> Callable[..., Any]:
    """What applies kernels by a node of autograd's with the loss's name, as `BCELossBackward`.

    Whether torch.func transforms a call, the dispatcher has asked.
    """
    return compat.direct_apply(type(loss, (_Kernels,), {"__doc__": _Kernels.__doc__}))


def _is_sized_by_floats(graph: JointGraph) -> bool:
    """Whether a float decides how large some tensor is, as in `x[: int(y.mean())]`."""
    shapes = [shape for node in graph.graph.nodes for shape, _ in node.meta.get("geometry", ())]
    known = {symbol for shape in shapes for size in shape for symbol in graph.sizes.expression(size).free_symbols}
    return any(symbol in known and not symbol.is_integer for symbol in graph.sizes.symbols)


def _items(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """What takes the items at some places as a tuple."""
    if len(places) == 1:
        (place,) = places
        return lambda items: (items[place],)
    return itemgetter(*places) if places else lambda items: ()


def _number(argument: Any) -> Any:
    return argument.item() if isinstance(argument, torch.Tensor) else argument


def _value(expression: sympy.Expr, known: dict[str, Any]) -> Any:
    """The value of an expression over sizes and numbers."""
    return evaluator_of(expression)(known)[0]
