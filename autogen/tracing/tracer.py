"""The tracer: runs a loss on fake tensors, then its derivatives, and makes a trace of what was recorded."""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.utils._sympy.functions import ToFloat

from autogen.calls.binding import Replay
from autogen.calls.changes import Input, Output
from autogen.calls.spots import Key
from autogen.calls.surroundings import Change
from autogen.errors import (
    AutogenError,
    CollectiveError,
    ResultError,
    StateChangeError,
    TraceError,
    UnsupportedOpError,
    ValueBranchError,
)
from autogen.frozen import frozen
from autogen.ir import contiguous_strides
from autogen.names import of_input, unique
from autogen.tracing.aten.collectives import function_that_raised
from autogen.tracing.devices import refuse_elsewhere
from autogen.tracing.domain.domain import Domain
from autogen.tracing.domain.drawn import DrawnChecks
from autogen.tracing.domain.entries import Found, Number, Reads
from autogen.tracing.domain.guards import Guards, Known, settle_factors
from autogen.tracing.python.disguise import disguised
from autogen.tracing.python.said import Listener
from autogen.tracing.python.strays import Made
from autogen.tracing.recorder import Recorder
from autogen.tracing.recording import Recording
from autogen.tracing.results import flattened, is_plain, leaf_of, made_and_given
from autogen.tracing.source import statement_that_raised
from autogen.tracing.state import Collector, inputs_of
from autogen.tracing.streams import Streams
from autogen.tracing.symbols import NUMBERS, SYMBOLS, Symbols
from autogen.tracing.trace import Trace, TracedTensor

_PLAIN_FUNCTIONS = "a function that takes Python's own numbers alone, such as math.hypot() or numpy.interp()"

# What Python or torch says of a symbol or a fake tensor where a value is needed, and what the user has done.
_OPERATIONS = {
    ".numpy() is not supported": "making a numpy array of a tensor",
    "SymFloat.__format__": 'formatting a number, as in f"{loss.item():.3f}"',
}


@contextlib.contextmanager
def _without_hooks_on_saving() -> Iterator[None]:
    """What autograd saves of a trace is not for the hooks around the call: a checkpoint would drop it."""
    hooks = torch._C._autograd
    taken = []
    while (pair := hooks._top_saved_tensors_default_hooks(False)) is not None:
        hooks._pop_saved_tensors_default_hooks()
        taken.append(pair)
    try:
        yield
    finally:
        for pack, unpack in reversed(taken):
            hooks._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """An op on fake tensors logs what it raises. The call hears of it anyway; of a fault of its own, from torch."""
    own, log = threading.get_ident(), logging.getLogger("torch._subclasses.fake_tensor")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != own

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


def trace(
    run: Replay,
    names: Sequence[str],
    tensors: Sequence[torch.Tensor],
    needs_gradient: Sequence[bool],
    decompositions: dict[Any, Any],
    *,
    floats: Mapping[str, float] | None = None,
    reads: Reads | None = None,
    static: bool = False,
    is_once: bool = False,
    made: Made | None = None,
) -> Trace:
    """Record `run(tensors)` and the gradients of its results.

    Args:
        run: the loss, as a function of its tensors, of `floats`, and of what is `then` done with what it returns.
        names: what the user calls each tensor.
        tensors: the tensors of this call; only their metadata is looked at.
        needs_gradient: which of them are differentiated.
        decompositions: op → formula, for ops to be recorded in parts.
        floats: numbers that differ from call to call.
        reads: which of the values that the code reads are known ahead.
        static: whether sizes are taken as they are.
        is_once: whether the trace is for this call alone; then numbers that it assigns are what they are.
        made: is told of all tensors that the trace makes.

    Raises:
        AutogenError: a kind of code that cannot be traced, with the user's line.
        TraceError: the loss itself raised.
    """
    reads = reads or Reads()
    tracing = _Tracing(
        names,
        tensors,
        needs_gradient,
        decompositions,
        floats=floats or {},
        reads=reads,
        static=static,
        made=[] if made is None else made,
    )
    try:
        is_enabled = torch.is_grad_enabled()  # the loss may ask
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(is_enabled),
            # The loss may ask for that, too; fake tensors cannot be asked whether they are nan.
            torch.autograd.set_detect_anomaly(torch.is_anomaly_enabled(), check_nan=False),
            _without_hooks_on_saving(),
            _without_log(),
            # Dynamo would take what it may not compile below a mode of ours for what it never may.
            torch.compiler.set_stance("force_eager"),
        ):
            recorded = tracing.record(run)
            leaves, results, outputs, upstream = recorded.leaves, recorded.results, recorded.names, recorded.upstream
            numbers: dict[str, int] = {}  # that are read, and the outputs that tell of them
            kept = [leaf for each in recorded.changes for leaf in flattened(each.difference.now)[0]]
            assigned = [leaf for leaf in (*kept, *tracing.said()) if isinstance(leaf, SYMBOLS)]
            if any(isinstance(leaf, SYMBOLS) for leaf in leaves) or any(map(free_unbacked_symbols, assigned)):
                numbers = {str(symbol): k for k, symbol in enumerate(tracing.recorder.numbers, len(results))}
                results += tracing.numbers()
                outputs += [f"number_{k}" for k in range(len(results) - len(outputs))]
                upstream += [None] * (len(results) - len(upstream))
            tracing.refuse_fixed_floats()
            collector = tracing.collect(results, recorded, is_once)
            made_of = (
                *results,
                *collector.tensors.values(),
                *(each for each in recorded.gradients if each is not None),
            )
            refuse_elsewhere(map(tracing.recording.node_of, made_of))
            domain = tracing.domain()
            state = collector.state(domain.guards, numbers)
            others = [leaf_of(leaf, recorded.places, domain.guards) for leaf in leaves]
    except AutogenError as error:
        error.domain = tracing.domain()
        error.wider = tracing.domain(is_wider=True) if tracing.fixed_floats else None
        error.unknown = tracing.recorder.unknown
        raise

    results += collector.tensors.values()
    outputs += [unique(of_input(name), {*names, *outputs}) for name in collector.tensors]
    upstream += [None] * state.outputs

    def traced(name: str, tensor: torch.Tensor | None, *, is_input: bool = False) -> TracedTensor | None:
        if tensor is None:
            return None
        shape = tuple(map(domain.guards.expression, tensor.shape))
        laid = tuple(map(domain.guards.expression, tensor.stride()))
        if not is_input and any(stride == 0 for size, stride in zip(shape, laid, strict=True) if size != 1):
            laid = _dense_strides(shape)
        strides = tuple(sympy.S.Zero if size == 1 else each for size, each in zip(shape, laid, strict=True))
        node = tracing.placeholder_of(tensor) if is_input else tracing.recording.node_of(tensor)
        is_known = all(each.free_symbols <= domain.guards.symbols.keys() for each in laid)
        return TracedTensor(name, tensor.dtype, shape, strides, node, laid if is_known and not is_input else None)

    def all_of(names: Sequence[str], tensors: Sequence[torch.Tensor], *, is_input: bool = False) -> list[TracedTensor]:
        found = [traced(*each, is_input=is_input) for each in zip(names, tensors, strict=True)]
        return [each for each in found if each is not None]

    inputs = all_of(names, tracing.fakes, is_input=True) + tracing.found(domain)
    reached = frozenset[int]().union(*recorded.reached)
    steps = (node for entry in domain.ahead for node in (entry.node, *entry.order))
    ahead = {node for step in steps for node in (step, *step.all_input_nodes)}
    unread = (k for k, each in enumerate(inputs) if not (each.node.users or k in reached or each.node in ahead))
    return Trace(
        graph=tracing.recording.graph,
        domain=domain,
        inputs=inputs,
        constants=[
            TracedTensor(str(node.target), each.dtype, _integers(each.shape), _integers(each.stride()), node)
            for node, each in domain.constants.items()
        ],
        outputs=all_of(outputs, results),
        upstream=[traced(f"grad_{name}", each) for name, each in zip(outputs, upstream, strict=True)],
        reached=recorded.reached,
        gradients=[traced(f"grad_{name}", each) for name, each in zip(names, recorded.gradients, strict=True)],
        unread=tuple(unread),
        structure=recorded.structure,
        others=others,
        numbers={symbol: tracing.recording.node_of(each) for symbol, each in tracing.recorder.numbers.items()},
        unknown=tracing.recorder.unknown,
        state=state,
    )


@frozen
class _Recorded:
    """What a loss `returned`: its `leaves`, the `places` of tensors among them, and the `results`, by `names`; and what
    it has changed.

    `reached` are the inputs that each result is connected with, `upstream` its own gradient.
    """

    returned: Any
    leaves: list[Any]
    structure: Any
    places: dict[int, Input | Output]
    results: list[torch.Tensor]
    names: list[str]
    reached: list[frozenset[int]]
    upstream: list[torch.Tensor | None]
    gradients: list[torch.Tensor | None]
    changes: list[Change]


class _Tracing:
    """The run of a loss on fake tensors."""

    def __init__(
        self,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        needs_gradient: Sequence[bool],
        decompositions: dict[Any, Any],
        *,
        floats: Mapping[str, float],
        reads: Reads,
        static: bool,
        made: Made,
    ) -> None:
        from autogen.tracing.formulas.corrections import CORRECTIONS

        self._names = names
        self._tensors = tensors
        self._needs_gradient = needs_gradient
        self._is_static = static
        symbols = Symbols(static=static)
        self._shapes, self._mode = symbols.shapes, symbols.mode
        self._streams = Streams(tensors[0].device)
        self.recording = Recording(self._streams, made)
        self.recorder = Recorder(self.recording, symbols, {**decompositions, **CORRECTIONS}, reads)
        self._drawn = DrawnChecks(self.recording.node_of)
        self._said = Listener(self.recording.node_of)
        self._floats = [(name, symbols.number(name, float(value))) for name, value in floats.items()]
        self._are_integers = [type(value) is int for value in floats.values()]
        with torch.inference_mode(False):
            self.fakes = [
                symbols.tensor(tensor, name, requires_grad=tensor.requires_grad)
                for tensor, name in zip(tensors, names, strict=True)
            ]
        self._placeholders = [self.recording.placeholder(*each) for each in zip(names, self.fakes, strict=True)]
        for node, tensor in zip(self._placeholders, tensors, strict=True):
            self.recorder.ahead.know(node, tensor)

    def _given(self) -> list[Any]:
        """The numbers that differ from call to call. An integer is a float that is known to be one: as a symbol of its
        own it would be taken for a size, of which each value is prepared for. It is fixed where sizes are.
        """
        convert: Any = int if self._is_static else torch.sym_int
        with_kinds = zip(self._floats, self._are_integers, strict=True)
        return [convert(number) if is_integer else number for (_, number), is_integer in with_kinds]

    def numbers(self) -> list[torch.Tensor]:
        """The tensors whose values the code took into Python, as results of the loss."""
        with self._mode, self.recorder:
            return [tensor.detach().reshape(()) for tensor in self.recorder.numbers.values()]

    def said(self) -> list[Any]:
        """All that is in what the loss has printed or logged."""
        return [part for each in self._said.heard for part in each.parts()]

    def collect(self, results: Sequence[torch.Tensor], recorded: _Recorded, is_once: bool) -> Collector:
        """What the loss has changed that outlives the call."""
        for name, fake, tensor in zip(self._names, self.fakes, self._tensors, strict=True):
            if fake.requires_grad != tensor.requires_grad:
                raise StateChangeError(f"requires_grad of {name}")
            if fake.grad is not None:  # by a `backward` of its own
                raise StateChangeError(f"the gradient of {name}")
        collector = Collector(self.recording, self.fakes, results, recorded.returned, is_once)
        with self._mode:
            collector.collect(recorded.changes, self._said.heard)
        return collector

    def placeholder_of(self, fake: torch.Tensor) -> torch.fx.Node:
        """The node of an input, with the value that it came with."""
        return next(node for node, own in zip(self._placeholders, self.fakes, strict=True) if own is fake)

    def domain(self, *, is_wider: bool = False) -> Domain:
        """The calls that take the way recorded so far; if it `is_wider`, whatever the `fixed_floats` are."""
        settle_factors(self._shapes, self.fakes, self._tensors)
        tensors = [Known(*each) for each in zip(self._names, self.fakes, strict=True)]
        floats = [Known(*each) for each in self._floats]
        entries = self.recorder.ahead.entries
        for stage, entry in enumerate(entries, 1):
            if isinstance(entry, Found):
                each = zip(entry.names, entry.fakes, strict=True)
                tensors += [Known(name, fake, stage, is_computed=not entry.fresh) for name, fake in each]
            elif isinstance(entry, Number):
                floats.append(Known(entry.name, entry.symbolic, stage))
        guards = Guards.of(self._shapes, tensors, floats, is_wider=is_wider)
        return Domain(guards, list(entries), self._placeholders, self.recording.constants)

    @property
    def fixed_floats(self) -> list[Number]:
        """The floats that the loss has read, and then taken for what they are in this call."""
        floats = [entry for entry in self.recorder.ahead.numbers if isinstance(entry.symbolic, torch.SymFloat)]
        return [entry for entry in floats if self._shapes.replace(entry.symbolic.node._expr).is_number]

    def refuse_fixed_floats(self) -> None:
        """Raise if the trace holds for one value of a float that it has read: that would rarely come again."""
        fixed = self.fixed_floats
        if fixed:  # which of these it was is not known: Python asks a symbol for a float in all of them
            raise ValueBranchError(_PLAIN_FUNCTIONS, where=fixed[0].line)

    def found(self, domain: Domain) -> list[TracedTensor]:
        """What is found ahead, as inputs of the kernels."""
        tensors = []
        for entry in domain.found:
            for name, fake, node in zip(entry.names, entry.fakes, entry.placeholders, strict=True):
                shape = tuple(map(domain.guards.expression, fake.shape))
                tensors.append(TracedTensor(name, fake.dtype, shape, contiguous_strides(shape), node))
        return tensors

    def record(self, run: Replay) -> _Recorded:
        """Record the loss and its gradients, both while it finds fakes in its surroundings: hooks read these, too."""
        from autogen.tracing.formulas.functions import FormulaMode

        forward = contextlib.ExitStack()

        def then(returned: Any, changed: Callable[[], list[Change]]) -> _Recorded:
            forward.close()
            self._said.end()
            changes, memory = changed(), self._memory()
            recorded = self._differentiated(returned, changes)
            self._refuse_changes(changes, changed(), memory)
            return recorded

        try:
            with disguised(self._refuse_zero, self._said.replacements()), forward:
                forward.enter_context(self._mode)
                forward.enter_context(self.recorder)
                forward.enter_context(
                    FormulaMode(self.recording.set_data, self.recording.refuse_read, self._drawn.take)
                )
                recorded: _Recorded = run(self.fakes, self._given(), then=then)
        except Exception as error:
            self._streams.put_back()
            refused = self._reason(error)
            if refused is error:
                raise
            raise refused from error
        self._streams.refuse_seeds()
        if self.recorder.collective is not None:
            raise self.recorder.collective
        self._refuse_unchecked()
        return recorded

    def _refuse_zero(self, divisor: sympy.Expr) -> None:
        """Raise if Python divides by a number that the loss has read on the CPU, and that is 0."""
        symbol = divisor.args[0] if isinstance(divisor, ToFloat) else divisor
        tensor = self.recorder.numbers.get(symbol)
        if tensor is not None and tensor.device.type == "cpu" and tensor == 0:
            raise ZeroDivisionError("division by zero")

    def _refuse_unchecked(self) -> None:
        """Raise if torch has taken for granted what no call would look at: that a number which it does not know is
        another one, as where what a mask chooses meets a tensor of so many elements.
        """
        for symbol, asserted in self._shapes.deferred_runtime_asserts.items():
            if any(each.expr != sympy.Le(0, symbol) for each in asserted):
                raise ValueBranchError("a size that depends on values")

    def _differentiated(self, returned: Any, changes: list[Change]) -> _Recorded:
        """What the loss has returned, with its gradients."""
        leaves, structure = flattened(returned)
        changed_inputs = {*self.recording.written, *self.recording.replaced}
        results, places = made_and_given(leaves, self.fakes, changed_inputs)
        with self._mode, self.recorder:
            results = self._drawn.marked(results)
        if not results:
            unknown = [leaf for leaf in leaves if not (is_plain(leaf) or isinstance(leaf, NUMBERS))]
            raise ResultError(type(unknown[0]).__name__ if unknown else None)
        names = [_output_name(k, len(results)) for k in range(len(results))]
        reached = [frozenset(inputs_of(result, self.fakes)) for result in results]
        if any(result.requires_grad and not inputs for result, inputs in zip(results, reached, strict=True)):
            raise UnsupportedOpError("a result that requires a gradient, but of no input")
        upstream, gradients = self.backward(names, results)
        return _Recorded(returned, leaves, structure, places, results, names, reached, upstream, gradients, changes)

    def _memory(self) -> list[Any]:
        """Where the values of the inputs are."""
        return [each.untyped_storage() for each in self.fakes]

    def _refuse_changes(self, before: Sequence[Change], now: Sequence[Change], memory: Sequence[Any]) -> None:
        """Raise if a hook has changed something: what it changes is changed in backward, where no kernel does that."""
        for each in now:
            if not any(_is_same(each, other) for other in before):
                raise StateChangeError(f"{each.difference.name} in backward")
        if len(now) < len(before):  # what the loss has changed was put back
            raise StateChangeError(f"{before[0].difference.name} in backward")
        for name, storage, own in zip(self._names, memory, self._memory(), strict=True):
            if own._cdata != storage._cdata:
                raise StateChangeError(f"the data of {name} in backward")

    def _reason(self, error: Exception) -> AutogenError:
        """Why a loss that has raised `error` has no trace."""
        if self.recorder.collective is not None:
            return self.recorder.collective
        where = statement_that_raised(error)
        communicating = function_that_raised(error)
        if communicating is not None:
            return CollectiveError(communicating, where=where)
        if isinstance(error, AutogenError):
            return error
        if isinstance(error, GuardOnDataDependentSymNode):
            return ValueBranchError("a size that depends on values", where=where)
        operation = next((done for said, done in _OPERATIONS.items() if said in str(error)), "")
        return TraceError("the loss", cause=error, where=where, operation=operation)

    def backward(
        self, names: Sequence[str], results: Sequence[torch.Tensor]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Record the gradients; returns the upstream gradient of every result and the gradient of every input."""
        upstream: list[torch.Tensor | None] = [None] * len(results)
        gradients: list[torch.Tensor | None] = [None] * len(self.fakes)
        starts = [k for k, result in enumerate(results) if result.requires_grad]
        wanted = [k for k, needs in enumerate(self._needs_gradient) if needs]
        if not starts or not wanted:
            return upstream, gradients
        seeds = []
        for k in starts:
            with self._mode:
                seeds.append(torch.empty_like(results[k]))
            self.recording.placeholder(f"grad_{names[k]}", seeds[-1], may_be_written=False)
            upstream[k] = seeds[-1]
        try:
            # In this thread, whatever the device: a trace looks at where it is.
            with self._mode, self.recorder, torch.autograd.set_multithreading_enabled(False):
                found = torch.autograd.grad(
                    [results[k] for k in starts], [self.fakes[k] for k in wanted], seeds, allow_unused=True
                )
        except AutogenError:
            raise
        except GuardOnDataDependentSymNode as error:
            raise ValueBranchError("a size that depends on values") from error
        except Exception as error:
            raise TraceError("the gradient of the loss", cause=error) from error
        for k, gradient in zip(wanted, found, strict=True):
            gradients[k] = gradient
        return upstream, gradients


def _is_same(change: Change, other: Change) -> bool:
    a, b = change.difference, other.difference
    if (change.place, change.is_given) != (other.place, other.is_given):
        return False
    if a.key is b.key is Key.ADDED:
        return len(a.now) == len(b.now) and all(map(operator.is_, a.now, b.now))
    return a.key is b.key and a.now is b.now


def _integers(sizes: Sequence[int]) -> tuple[sympy.Expr, ...]:
    return tuple(map(sympy.Integer, sizes))


def _dense_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """The strides of a new tensor in torch, those of dimensions of size 1 too."""
    strides: list[sympy.Expr] = []
    step: sympy.Expr = sympy.S.One
    for size in reversed(shape):
        strides.append(step)
        step = step if size == 0 else step * size
    return tuple(reversed(strides))


def _output_name(position: int, count: int) -> str:
    return "loss" if count == 1 else f"loss_{position}"
