"""The pipeline, end to end: one call of a loss → its launches.

    trace → lower → schedule → emit → build → launch

`compile_loss` goes as far as the text; Triton's part happens when a launcher first runs.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from autogen.calls.binding import Binding, Then
from autogen.errors import (
    AutogenError,
    CollectiveError,
    ScheduleError,
    StateChangeError,
    TooLargeError,
    TraceError,
    UnsupportedOpError,
    ViewedSumError,
)
from autogen.lowering import decompositions, lower, scans
from autogen.names import spelled
from autogen.options import PLAIN, Options
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.launch import Launcher, Tuner
from autogen.scheduling.schedule import schedule
from autogen.tracing.domain.entries import Reads
from autogen.tracing.python.conversions import converter
from autogen.tracing.python.memos import stand_in
from autogen.tracing.python.strays import Made, remove
from autogen.tracing.trace import Trace
from autogen.tracing.tracer import trace


def compile_loss(name: str, binding: Binding, needs_gradient: Sequence[bool], options: Options = PLAIN) -> CompiledLoss:
    """Trace, lower, schedule and emit a call of the loss `name`.

    Raises:
        AutogenError: some part of the loss has no kernel; the subclass says which.
    """
    made: Made = []
    try:
        compiled = _compile_any(name, binding, needs_gradient, options, made)
    except AutogenError as error:
        remove(made, error)
        raise
    if remove(made):
        what = "what it keeps a tensor in, which no trace sees (a cache, or a table behind an object of a library)"
        raise StateChangeError(what, remedy="Make the tensor a buffer of the module, or compute it in each call.")
    return compiled


def _compile_any(
    name: str, binding: Binding, needs_gradient: Sequence[bool], options: Options, made: Made
) -> CompiledLoss:
    """`compile_loss`, with as little known ahead as can be."""
    reads = Reads()
    while True:
        try:
            return _compile(name, binding, needs_gradient, options, reads, made)
        except (CollectiveError, TooLargeError):  # which knowing more does not make
            raise
        except AutogenError as error:
            # What could not be done without knowing a value is tried with it: numbers first, as masks seldom need it.
            if error.unknown is not None and error.unknown.numbers:
                reads = replace(reads, numbers=True)
            elif error.unknown is not None and error.unknown.masks:
                reads = replace(reads, masks=True)
            elif isinstance(error, TraceError):
                first = error
                break
            else:
                raise
    try:  # not all of torch can be traced with symbols for sizes
        return _compile(name, binding, needs_gradient, options, Reads(numbers=True, masks=True), made, static=True)
    except AutogenError:
        raise first from first.__cause__


def _compile(
    name: str,
    binding: Binding,
    needs_gradient: Sequence[bool],
    options: Options,
    reads: Reads,
    made: Made,
    *,
    static: bool = False,
) -> CompiledLoss:
    """`compile_loss`; the values that the loss `reads` are known ahead, and sizes are taken as they are if `static`."""
    opaque = binding.state.opaque
    if opaque is not None:
        raise UnsupportedOpError(f"{opaque}, of which nothing tells what it gives in the next call")

    def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Any], then: Then) -> Any:
        for each in binding.state.answers.known():
            if each.has_changed():  # as a trace has modes of its own
                raise UnsupportedOpError(f"a loss that reads {each.question} where that is {each.before}")
        return binding.replay(tensors, numbers, stand_in=lambda each: converter(stand_in(each)), then=then)

    with _python_streams(binding.state.streams) as drawn:
        traced = trace(
            run,
            binding.names,
            binding.tensors,
            needs_gradient,
            decompositions(),
            floats=binding.numbers,
            reads=reads,
            static=static or binding.state.asks_for_types,
            is_once=options.retraces,
            made=made,
        )
    if drawn:
        numbers = f"random numbers of {' and '.join(drawn)}, which are others in each call"
        raise UnsupportedOpError(numbers, remedy="Draw them with torch, or outside of the loss.")
    hints = traced.domain.sizes(binding.tensors, tuple(binding.numbers.values()))
    assert hints is not None, "a trace holds for the call that it was made from"
    device = binding.tensors[0].device
    try:
        return _in_kernels(traced, name, hints, options, device, training=any(needs_gradient))
    except AutogenError as error:
        error.domain = traced.domain
        error.unknown = traced.unknown
        raise


def _in_kernels(
    traced: Trace, name: str, hints: Mapping[str, int], options: Options, device: torch.device, *, training: bool
) -> CompiledLoss:
    """A traced loss, planned and emitted in the first form that fits."""
    form: dict[str, bool] = {}
    has_scans = not scans.TARGETS.isdisjoint(node.target for node in traced.graph.nodes)
    while True:
        try:
            return _of_form(traced, name, hints, options, device, training=training, **form)
        except ViewedSumError:  # of what is in memory, everything sees the same bits
            if "stores_sums" in form:
                raise
            form["stores_sums"] = True
        except ScheduleError:  # as where a row is too long for a program to hold
            if not has_scans or "has_scans" in form:
                raise
            form["has_scans"] = False


def _of_form(
    traced: Trace,
    name: str,
    hints: Mapping[str, int],
    options: Options,
    device: torch.device,
    *,
    training: bool,
    **form: bool,
) -> CompiledLoss:
    """A traced loss, planned and emitted in the `form` that `lower` gives it."""
    program = lower(traced, name, **form)
    plan = schedule(program, kernel_name(name), hints, training=training, gradient=options.gradient)
    compiled = CompiledLoss(traced, plan, device, _tuner(options, device))
    # Emitted here and not at the first launch, so that whatever fails fails before anything ran.
    for launcher in compiled.launchers:
        launcher.source(launcher.tiling(hints).variant)
    if compiled.torch_steps and not compiled.launchers:
        first = compiled.torch_steps[0]
        raise UnsupportedOpError(first.name, where=first.line)
    return compiled


def _tuner(options: Options, device: torch.device) -> Callable[[Launcher], Tuner] | None:
    if options.tuning is None:
        return None
    from autogen.tuning import Tuner

    return functools.partial(Tuner, mode=options.tuning, device=device)


@contextlib.contextmanager
def _python_streams(others: Sequence[Any]) -> Iterator[list[str]]:
    """Put back the random streams of Python and NumPy, and `others`, which are objects of theirs; the list names those
    that were drawn from: such a number is not to be baked into a trace.
    """
    drawn: list[str] = []
    numpy = sys.modules.get("numpy")
    streams: list[tuple[str, Any, Any]] = [("Python", random.getstate, random.setstate)]
    if numpy is not None:
        streams.append(("NumPy", numpy.random.get_state, numpy.random.set_state))
    streams += [(f"a {type(each).__name__}", *_access(each)) for each in others]
    before = [get() for _, get, _ in streams]
    try:
        yield drawn
    finally:  # also of a loss that cannot be traced: torch then runs it from where the streams were
        for (name, get, put), state in zip(streams, before, strict=True):
            if pickle.dumps(get()) != pickle.dumps(state):
                put(state)
                drawn.append(name)


def _access(stream: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """How to read the state of a random stream, and how to write it."""
    if isinstance(stream, random.Random):
        return stream.getstate, stream.setstate
    if hasattr(stream, "get_state"):
        return stream.get_state, stream.set_state
    bits = getattr(stream, "bit_generator", stream)
    return (lambda: bits.state), (lambda state: setattr(bits, "state", state))


def kernel_name(name: str) -> str:
    """A loss's name as a kernel's: `BCEWithLogitsLoss` → `bce_with_logits_loss`; ASCII, as Triton wants it."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return spelled(re.sub(r"\W+", "_", words, flags=re.ASCII).strip("_").lower()) or "loss"
