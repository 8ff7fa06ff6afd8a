"""Losses that `torch.compile` traces: the way from Dynamo to the kernels.

Dynamo traces a loss as torch's formula, but into a graph of its own, in a higher-order op whose name is `autogen_loss`.
So it guards all that the loss reads, and finds all its tensors, as it does for any other code. What comes of the inner
graph is decided when the outer one is lowered (`autogen.dynamo.captured`).

This module is what Dynamo itself runs through. What is marked as constant it calls for real while it traces.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from autogen import availability
from autogen.options import PLAIN, Options
from autogen.policies import Policy, resolve

Function = TypeVar("Function", bound=Callable[..., Any])

operator: Any = None
"""The higher-order op, once a loss has been traced: making it imports Dynamo."""

outside: Any = None
"""Calls what it is given where Dynamo does not trace; made when a loss is traced first, too."""

make_operator: Callable[[], Any] | None = None
"""Makes the op, or None where this torch has not what it takes. Dispatch, which the op needs, puts it here."""

logger = logging.getLogger("autogen")

_numbers = itertools.count(1)
_options: dict[str, Options] = {}
_said: set[tuple[str, str]] = set()
_ways: dict[tuple[str, int | None], Literal["formula", "outside"]] = {}  # of losses that are no op in some code


def label(name: str, options: Options) -> str:
    """What the graphs of this process call a loss: its name, and a number."""
    found = f"{name}#{next(_numbers)}"
    if (options.policy, options.tune, options.handwritten) != (None, None, None):
        # A gradient that forward has made would have two owners there.
        _options[found] = Options(options.policy, handwritten=options.handwritten, tune=options.tune)
    return found


def options_of(loss: str) -> Options:
    """What is asked of a loss in a graph."""
    return _options.get(loss, PLAIN)


def is_required(loss: str) -> bool:
    """Whether a loss must not run in torch."""
    return resolve(options_of(loss).policy) is Policy.MANDATORY


def name_of(loss: str) -> str:
    """The name of a loss, given its label."""
    return loss.rpartition("#")[0]


def inline(loss: str, reason: str) -> None:
    """From now on, trace a loss as a part of the graph around it, in the code that Dynamo is compiling."""
    _ways[loss, _code()] = "formula"
    say(loss, reason)


def say(loss: str, reason: str) -> None:
    """Log, once, why a loss has no kernels in a graph."""
    if (loss, reason) not in _said:
        _said.add((loss, reason))
        logger.info("%s: in a compiled graph it runs in torch: %s", name_of(loss), reason)


def leave(loss: str, reason: str) -> None:
    """From now on, end the graph of that code where it calls a loss, as it would end inside that in any case."""
    _ways[loss, _code()] = "outside"
    logger.info("%s: it is called between graphs: %s", name_of(loss), reason)


def traced(
    formula: Callable[[], Any],
    call: Callable[[], Any],
    loss: str,
    *,
    marked: Callable[[], Any],
    is_op: bool,
    is_required: bool,
) -> Any:
    """What Dynamo is to trace for a call that is `formula()` in torch, and `call()` outside of graphs.

    A loss that may not be an op there, or cannot be one, is traced as its formula; `marked` is that inside of an op. If
    it is required to run on kernels, it is called between two graphs.
    """
    if not torch.compiler.is_dynamo_compiling():  # it has given up, and this runs for real
        return call()
    way = _way(loss, is_op, is_required)
    if way == "outside":
        return outside(call)
    return formula() if way == "formula" else operator(marked, loss=loss)


def _way(loss: str, is_op: bool, is_required: bool) -> Literal["op", "formula", "outside"]:
    """How a loss is traced: as an op, as torch's formula, or not at all."""
    global operator, outside
    if outside is None:
        outside = torch.compiler.disable(_call)
    settled = _settled(loss)
    if settled == "outside":
        return "outside"
    if availability.is_functional():
        return "formula"
    if is_op and settled is None and availability.has_kernels():
        if operator is None and make_operator is not None:
            operator = make_operator()
        if operator is not None:
            return "op"
    return "outside" if is_required else "formula"


def is_first_attempt() -> bool:
    """Whether Dynamo traces code for the first time since it has last compiled it."""
    trace = torch._guards.CompileContext.current_trace_id()
    return trace is not None and trace.attempt == 0


def _settled(loss: str) -> Literal["formula", "outside"] | None:
    """How a loss is traced that cannot be an op in the code that Dynamo is compiling, as has been found."""
    compilation = torch._guards.CompileContext.current_compile_id()
    if compilation is not None and compilation.frame_compile_id == 0 and is_first_attempt():
        _ways.pop((loss, compilation.frame_id), None)  # it may have to be one graph, where the same code before had not
    return _ways.get((loss, _code()))


def _code() -> int | None:
    """The code that Dynamo is compiling, as a number."""
    compilation = torch._guards.CompileContext.current_compile_id()
    return None if compilation is None else compilation.frame_id


def _call(call: Callable[[], Any]) -> Any:
    return call()


def unseen(function: Function) -> Function:
    """Keep Dynamo out of a function that is called for real while Dynamo is at work, and of all that it calls.

    Of itself it compiles each frame that is run below one that it could not compile as a whole, those of our compiler,
    too. Where it inlines a function, this changes nothing; a call costs it nothing. torch's own decorator is for that
    too slow, and imports Dynamo. It is not public: without it, the function is traced as any other.
    """
    _skip(function, callees=True)
    return function


def passed(function: Function) -> Function:
    """Keep Dynamo out of a function as by `unseen`, but not of what it calls, which may be the user's."""
    _skip(function, callees=False)
    return function


def _skip(function: Callable[..., Any], *, callees: bool) -> None:
    from torch._C._dynamo import eval_frame

    with contextlib.suppress(AttributeError):
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.SKIP if callees else action.DEFAULT)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)


def is_exporting() -> bool:
    """Whether the graph is for `torch.export`. Dynamo takes torch's own function for granted, before torch 2.12."""
    return torch.compiler.is_exporting()


_constant: tuple[Any, ...] = (_way, is_exporting)
for _each in _constant:
    _each._dynamo_marked_constant = True  # all that torch.compiler's decorator does
