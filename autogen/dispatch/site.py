"""A cache entry for Dynamo's captures of one function, or of modules with the same constants.

Dynamo keeps what it captures by code object, and counts recompiles there. All instances of a class share the code of
their `forward`, so that the hyperparameters of one would use up the budget of another. A site therefore has a copy of
the function with a code object of its own. There is one for each set of plain attributes that modules have when they
are first called, and another if kernels are mandatory; a loss that reads its arguments alone has one for each kind of
these.

`MOST_CAPTURES` counts for the function and for each function that Dynamo captures by itself after a graph break, and is
independent of the limit of the user's own `torch.compile`. Past it, captures that exist are still used, and a
`FallbackWarning` says once which guard failed.

A frame is captured in up to three attempts: with symbolic sizes, and with numbers and sizes that depend on values in
the graph; without the latter, so that the graph ends where a value is read; and static, with a guard on each size. For
tensors in lists, one before these leaves the first size of each open, from 0 on. If all fail, Python runs the frame. An
error that torch would raise for these arguments anyway is no reason to give the function up; `_MOST_FAULTS` in a row
are. Only arguments that may hold tensors are made dynamic by name, never modules or plain numbers.
"""

from __future__ import annotations

import inspect
import logging
import threading
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

from autogen import compat
from autogen.capture import formulas
from autogen.capture.packing import MOST_PARTS
from autogen.capture.source import innermost, is_torchs
from autogen.capture.static_graph import Graph
from autogen.dispatch import watch
from autogen.dispatch.backend import Backend, Captured
from autogen.dispatch.fallbacks import Fallbacks
from autogen.errors import (
    ASKED_FOR,
    AutogenError,
    GraphBreakError,
    GraphChangedError,
    RecompileLimitError,
    UnavailableError,
)
from autogen.runtime.availability import PLAIN_TYPES
from autogen.runtime.locks import compiling
from autogen.settings.options import Options

logger = logging.getLogger(__name__)

MOST_CAPTURES = 16
"""Of one function, before its further kinds of calls run in torch."""

MOST_OPERATIONS = 256
"""Of a graph that reads more than `MOST_PARTS` tensors of lists: each takes torch some 20 ms to capture, and more to
differentiate, so that a loop over 64 images would take minutes."""

_ATTEMPTS: tuple[dict[str, Any], ...] = (
    {"knows_values": True},
    {"knows_values": False},
    {"knows_values": False, "static": True},
)

_MOST_FAULTS = 3  # calls that torch may have refused, before capturing a function is given up


class Site:
    """A loss that is called by way of Dynamo.

    Args:
        function: what computes the loss.
        name: the loss's name.
        options: how the loss is to run.
        fallbacks: is told why torch runs it, if it does.
        mandatory: whether what has no kernel is an error.
        runs: whether kernels are to run (see `Backend`).
        is_of_kind: whether the numbers among the arguments are the same in each call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: Options,
        fallbacks: Fallbacks,
        *,
        mandatory: bool,
        runs: bool = True,
        is_of_kind: bool = False,
    ) -> None:
        self.name, self.options, self.mandatory = name, options, mandatory
        self.captures = 0
        self.reason: str | None = None  # why torch has refused the function, if it has
        self._function, self._is_of_kind = _with_own_code(function), is_of_kind
        self._counts: Counter[Any] = Counter()
        self._faults: Counter[Any] = Counter()
        self._fixes_lengths: set[Any] = set()  # what torch captures only if tensors in lists are not of any length
        self._graphs: dict[Any, Graph] = {}
        self._frame = threading.local()
        self._fallbacks, self._has_kernels, self._is_full = fallbacks, False, False
        self._refusals: list[str] = []  # why parts have no kernels, or all of it
        self._backend = Backend(name, options, self._hear, fallbacks, mandatory=mandatory, runs=runs)
        compat.know_formulas(formulas.OF_SIZES)
        self._call = compat.captures(self._function, self._backend, self._capture, fullgraph=mandatory)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.options.retraces:
            compat.forget(self._function.__code__)
            self._counts.clear()
        try:
            result = self._call(*args, **kwargs)
        except _NotCapturedError as error:
            fault = error.__cause__
        else:
            if self._refusals or self._fallbacks.pending:
                self._say()
            return result
        assert isinstance(fault, Exception)
        self._function(*args, **kwargs)  # which raises what the loss raises, if that was the reason
        raise GraphBreakError(compat.reason_of(fault), where=innermost(compat.frames_of(fault))) from fault

    def _capture(self, frame: types.FrameType, convert: Callable[..., Any]) -> Any:
        """Capture one frame, with as many of its sizes and values as symbols as torch allows."""
        code = frame.f_code
        key = (code.co_filename, code.co_firstlineno, code.co_name)
        if self._counts[key] >= MOST_CAPTURES:
            reasons = compat.reasons_to_capture(frame)
            why = f": {reasons[0]}" if reasons else ""
            reason = f"it was captured {MOST_CAPTURES} times, and none of the captures holds for this call{why}"
            if self.mandatory:
                raise RecompileLimitError(self.name, reason)
            self.reason = reason
            if not self._is_full:
                self._is_full = True
                self._fallbacks.note(self.name, reason, further=True)
            return compat.captures_no_more(reason)
        is_root = code is self._function.__code__
        self._frame.key, fault = key, None
        self._frame.is_nested = not (is_root or compat.continues(code, self._function.__code__))
        options: dict[str, Any] = {"dynamic": _tensors_in(frame), "knows_numbers": self._is_of_kind}
        found_lists = _lists_in(frame)
        lists = () if key in self._fixes_lengths else tuple(found_lists)
        if sum(found_lists.values()) > MOST_PARTS:
            options["operations"] = MOST_OPERATIONS
        first: list[dict[str, Any]] = [{"knows_values": True, "lists": lists}] if lists else []
        for attempt in (*first, *_ATTEMPTS):
            self._backend.may_fail = "static" not in attempt
            try:
                with compiling:
                    found = convert(**options, **attempt)
            except compat.TooManyOperationsError:
                return self._leave_loop(code, key, is_root=is_root)
            except Exception as error:
                cause = compat.cause_of(error)
                if isinstance(cause, ASKED_FOR) or (self.mandatory and isinstance(cause, AutogenError)):
                    raise cause from None
                fault = error
                if compat.is_of_call(error) and "lists" not in attempt:
                    break
                continue
            if lists and "lists" not in attempt:
                self._fixes_lengths.add(key)
            if found.guarded_code is not None:
                self._counts[key] += 1
                self.captures += is_root
                self._faults[key] = 0
            elif is_root:
                self.reason = compat.skip_reason_of(found)
            return found
        assert fault is not None
        if self.mandatory:
            raise _NotCapturedError from fault
        self._faults[key] += 1
        reason, is_of_call, has_captures = compat.reason_of(fault), compat.is_of_call(fault), self._counts[key] > 0
        is_known = self._faults[key] >= _MOST_FAULTS or not (is_of_call or has_captures)
        if is_root and is_known:
            self.reason = reason
            self._refusals.append(reason)
        logger.info("torch runs %s of %s: %s", code.co_name, self.name, reason)
        if is_known and has_captures:  # which go on
            return compat.captures_no_more(reason)
        return compat.left_to_python(reason, always=is_known, deep=is_of_call)

    def _leave_loop(self, code: types.CodeType, key: Any, *, is_root: bool) -> Any:
        """Leave a function to torch that has more operations than could be compiled in reasonable time."""
        reason = (
            f"{code.co_name} has more than {MOST_OPERATIONS} operations for a list of more than {MOST_PARTS} tensors,"
            " as in a loop over them; put them together first, by torch.cat or pad_sequence"
        )
        if self.mandatory:
            raise GraphBreakError(reason)
        if is_root:
            self.reason = reason
            self._refusals.append(reason)
        logger.info("torch runs %s of %s: %s", code.co_name, self.name, reason)
        return compat.captures_no_more(reason) if self._counts[key] else compat.left_to_python(reason, always=True)

    def _hear(self, captured: Captured, runner: Callable[..., Any]) -> Callable[..., Any]:
        """Note a graph; returns what runs it."""
        captured.is_nested = self._frame.is_nested
        self._has_kernels |= captured.runner is not None
        if captured.error is not None and not isinstance(captured.error, UnavailableError):
            self._refusals.append(captured.reason)
        if self.options.static_graph and captured.runner is not None:
            self._compare(captured)
        return watch.watched(captured, runner)

    def _compare(self, captured: Captured) -> None:
        """Raise if a graph is another one than the first of its place in the loss, for the same gradients."""
        assert captured.runner is not None
        joint = captured.runner.segment.graph
        wanted = frozenset(
            each.name.rstrip("0123456789").rstrip("_")
            for each, gradient in zip(joint.inputs, joint.gradients, strict=True)
            if gradient is not None
        )
        later = Graph.of(joint)
        first = self._graphs.setdefault((self._frame.key, wanted), later)
        difference = first.difference(later)
        if difference is not None:
            raise GraphChangedError(self.name, difference)

    def _say(self) -> None:
        """Warn, after a call, if no part of the loss has kernels."""
        if watch.is_stopping():
            return
        for reason in () if self._has_kernels else self._refusals:
            self._fallbacks.note(self.name, reason)
        self._refusals.clear()
        self._fallbacks.say()


def _with_own_code(function: Callable[..., Any]) -> Any:
    """A function that does the same, with a code object of its own: by that Dynamo keeps what it captures."""
    if not isinstance(function, types.FunctionType):
        inner = function

        def function(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

    code = function.__code__
    # Dynamo leaves code of torch's files alone, and has one place for the captures of all of them.
    filename = f"<{function.__module__}>" if is_torchs(code.co_filename) else code.co_filename
    copy = types.FunctionType(
        code.replace(co_filename=filename),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return copy


def _tensors_in(frame: types.FrameType) -> str:
    """A pattern of the names of what may hold tensors among a frame's arguments: not a module, nor a plain number."""
    import re

    import torch

    names = [
        re.escape(f"L['{name}']")
        for name, value in frame.f_locals.items()
        if not isinstance(value, (*PLAIN_TYPES, torch.nn.Module))
    ]
    return "|".join(names)


def _lists_in(frame: types.FrameType) -> dict[str, int]:
    """The names of arguments that have tensors in lists, which may be of many lengths, and how many these are."""
    import torch

    def tensors_of(value: Any) -> int:
        if isinstance(value, (list, tuple, dict)):
            return sum(map(tensors_of, value.values() if isinstance(value, dict) else value))
        return isinstance(value, torch.Tensor)

    code = frame.f_code
    spread = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][: bool(code.co_flags & inspect.CO_VARARGS)]
    given = {name: value for name, value in frame.f_locals.items() if name not in spread}
    lists = {name: value for name, value in given.items() if isinstance(value, (list, tuple, dict))}
    return {name: count for name, value in lists.items() if (count := tensors_of(value))}


class _NotCapturedError(Exception):
    """Torch cannot capture the loss in one graph, by its cause."""
