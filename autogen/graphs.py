"""Losses that `torch.compile` traces: the way from Dynamo to the kernels.

Dynamo traces a loss as torch's formula, but into a graph of its own, in a higher-order op whose name is `autogen_loss`.
So it guards all that the loss reads, and finds all its tensors, as it does for any other code. What comes of the inner
graph is decided when the outer one is lowered (`autogen.captured`).

This module is what Dynamo itself runs through. What is marked as constant it calls for real while it traces.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch

from autogen import availability
from autogen.options import Options, Tune

operator: Any = None
"""The higher-order op, once a loss has been traced: making it imports Dynamo."""

outside: Any = None
"""Calls what it is given where Dynamo does not trace; made with the op."""

make_operator: Callable[[], Any] | None = None
"""Makes the op, or None where this torch has not what it takes. Dispatch, which the op needs, puts it here."""

logger = logging.getLogger("autogen")

_numbers = itertools.count(1)
_tunes: dict[str, Tune] = {}
_inlined: set[str] = set()
_left: set[tuple[str, int | None]] = set()  # with the code that Dynamo is compiling


def label(name: str, options: Options) -> str:
    """What the graphs of this process call a loss: its name, and a number."""
    found = f"{name}#{next(_numbers)}"
    if options.tune is not None:
        _tunes[found] = options.tune
    return found


def options_of(loss: str) -> Options:
    """What is asked of a loss in a graph. A gradient that forward has made would have two owners there."""
    return Options(tune=_tunes.get(loss))


def name_of(loss: str) -> str:
    """The name of a loss, given its label."""
    return loss.rpartition("#")[0]


def inline(loss: str, reason: str) -> None:
    """From now on, trace a loss as a part of the graph around it."""
    _inlined.add(loss)
    logger.info("%s: in a compiled graph it runs in torch: %s", name_of(loss), reason)


def leave(loss: str, reason: str) -> None:
    """From now on, end the graph of some code where it calls a loss, as it would end inside that in any case."""
    _left.add((loss, _frame()[0]))
    logger.info("%s: it is called between graphs: %s", name_of(loss), reason)


def traced(formula: Callable[[], Any], call: Callable[[], Any], loss: str) -> Any:
    """What Dynamo is to trace for a call that is `formula()` in torch, and `call()` outside of graphs."""
    if not torch.compiler.is_dynamo_compiling():  # it has given up, and this runs for real
        return call()
    if _is_left(loss):
        return outside(call)
    if _is_inlined(loss):
        return formula()
    return operator(formula, loss=loss)


def _is_left(loss: str) -> bool:
    frame, is_new = _frame()
    if is_new:  # it may have to be one graph, where the same code before had not
        _left.discard((loss, frame))
    return (loss, frame) in _left


def _frame() -> tuple[int | None, bool]:
    """What numbers the code that Dynamo is compiling, and whether it does so for the first time, at first attempt."""
    trace = torch._guards.CompileContext.current_trace_id()
    if trace is None:
        return None, False
    return trace.compile_id.frame_id, trace.compile_id.frame_compile_id == 0 and trace.attempt == 0


def _is_inlined(loss: str) -> bool:
    global operator
    if loss in _inlined or availability.is_functional() or not availability.has_kernels():
        return True
    if operator is None and make_operator is not None:
        operator = make_operator()
    return operator is None


def is_exporting() -> bool:
    """Whether the graph is for `torch.export`. Dynamo takes torch's own function for granted, before torch 2.12."""
    return torch.compiler.is_exporting()


_constant: tuple[Any, ...] = (_is_left, _is_inlined, is_exporting)
for _each in _constant:
    _each._dynamo_marked_constant = True  # all that torch.compiler's decorator does
