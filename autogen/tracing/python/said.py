"""What a loss says: what it prints, logs and warns of. It is noted while the loss is traced, and said after the kernels
of each call.

A record of a log is of the line that wrote it, and made only if its logger wants it in that call.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from autogen.calls.changes import Formatted
from autogen.calls.libraries import is_library
from autogen.errors import SourceLine, UnsupportedOpError, ValueBranchError
from autogen.frozen import frozen
from autogen.locks import compiling
from autogen.tracing.python.disguise import swapped
from autogen.tracing.python.texts import Texts, refused
from autogen.tracing.results import flattened
from autogen.tracing.source import is_of_a_loss, statement_of
from autogen.tracing.symbols import NUMBERS, number_of

_OF_RECORDS = {*vars(logging.makeLogRecord({})), "message", "asctime"}  # of any log


@frozen
class Logged:
    """Writes a record to a log."""

    logger: logging.Logger
    level: int
    line: tuple[str, int, str | None]  # the file, the number, and the function

    def is_wanted(self) -> bool:
        """Whether anybody is to hear of it."""
        return self.logger.isEnabledFor(self.level)

    def __call__(self, message: Any, args: Any, extra: Any) -> None:
        file, number, function = self.line
        make = logging.getLogRecordFactory()  # whose own attributes are those of this call
        record = make(self.logger.name, self.level, file, number, message, args, None, function)
        vars(record).update({name: value for name, value in extra.items() if name not in vars(record)})
        self.logger.handle(record)


@frozen
class Warned:
    """Gives a warning, as from a line of a module with these globals."""

    file: str
    number: int
    scope: dict[str, Any]

    def __call__(self, message: Any, category: type[Warning] | None, source: Any) -> None:
        kind, module = category or UserWarning, self.scope.get("__name__") or "<string>"
        registry = self.scope.setdefault("__warningregistry__", {})
        warnings.warn_explicit(message, kind, self.file, self.number, module, registry, self.scope, source)


def _print_as_an_error(*values: Any, **options: Any) -> None:
    print(*values, file=sys.stderr, **options)


@frozen
class Saying:
    """A call of a function that says something, from a line of the loss: with the leaves and the structure of all its
    arguments as they were then, and the `nodes` that stood for the tensors among them.
    """

    function: Callable[..., None]
    leaves: list[Any]
    structure: pytree.TreeSpec
    nodes: list[Any]
    where: SourceLine

    def parts(self) -> list[Any]:
        """All that is in its arguments, and in their texts."""
        texts = [part for leaf in self.leaves if isinstance(leaf, Formatted) for part in leaf.parts]
        return [*self.leaves, *(part[0] for part in texts if not isinstance(part, str))]


class Listener:
    """Notes what the loss says that this thread traces; what others say meanwhile is said.

    `node_of` gives what stands for a tensor, which is another one once that is written to.
    """

    def __init__(self, node_of: Callable[[torch.Tensor], Any] = id) -> None:
        self.heard: list[Saying] = []
        self._thread = threading.get_ident()
        self._is_backward = False
        self._texts = Texts()
        self._node_of = node_of
        self._out, self._errors, self._filters = sys.stdout, sys.stderr, warnings.filters
        self._print, self._warn = builtins.print, warnings.warn
        self._handle, self._is_enabled = logging.Logger.handle, logging.Logger.isEnabledFor
        self._effective_level = logging.Logger.getEffectiveLevel

    def replacements(self) -> dict[tuple[Any, str], Any]:
        """What Python's functions are meanwhile, by where they are."""
        return {
            (builtins, "print"): self._note_print,
            (warnings, "warn"): self._note_warning,
            (logging.Logger, "handle"): lambda *args: self._note_record(*args),
            (logging.Logger, "isEnabledFor"): lambda *args: self._would_log(*args),
            (logging.Logger, "getEffectiveLevel"): lambda logger: self._level(logger, sys._getframe(1)),
            **{
                (kind, "__format__"): lambda number, how: self._format(number, how, sys._getframe(1))
                for kind in NUMBERS
            },
            (FakeTensor, "__repr__"): lambda tensor, **_: self._show_tensor(tensor, sys._getframe(1)),
            (FakeTensor, "__format__"): lambda tensor, how: self._format_tensor(tensor, how, sys._getframe(1)),
        }

    def end(self) -> None:
        """Take what comes now for backward's, in which nothing can be said.

        Raises:
            ValueBranchError: a text of a number has gone elsewhere.
        """
        self._texts.refuse_waiting()
        self._is_backward = True
        self._node_of = id  # another thread may have found a replacement, and is not to keep the trace alive

    def _hears(self, frame: types.FrameType) -> bool:
        return threading.get_ident() == self._thread and not is_library(frame.f_globals.get("__name__"))

    def _note(self, frame: types.FrameType, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        where = statement_of(frame)
        if self._is_backward:
            raise UnsupportedOpError("what is printed or logged in backward", where=where)
        leaves, structure = flattened((args, kwargs))
        leaves = [self._texts.settled(leaf, frame) for leaf in leaves]
        nodes = [self._node_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.heard.append(Saying(function, leaves, structure, nodes, where))

    def _format(self, number: Any, how: str, frame: types.FrameType) -> str:
        written = self._texts.write(number, how, frame) if self._hears(frame) else None
        if written is not None:
            return written
        if not is_of_a_loss(frame):
            return object.__format__(number, how)
        if isinstance(number, torch.SymFloat) and how:
            return object.__format__(number, how)  # an error, after which sizes are taken as they are
        if free_unbacked_symbols(number):
            raise refused(statement_of(frame))
        return format(number_of(number), how)

    def _format_tensor(self, tensor: Any, how: str, frame: types.FrameType) -> str:
        if tensor.dim() or isinstance(tensor, torch.nn.Parameter) or not self._hears(frame):
            return self._show_tensor(tensor, frame) if not how else object.__format__(tensor, how)
        number = tensor.item()
        return self._format(number, how, frame) if isinstance(number, NUMBERS) else format(number, how)

    def _show_tensor(self, tensor: Any, frame: types.FrameType) -> str:
        if self._hears(frame):
            raise ValueBranchError("the text of a tensor", where=statement_of(frame))
        return torch.Tensor.__repr__(tensor)

    def _note_print(self, *values: Any, **options: Any) -> None:
        frame, file = sys._getframe(1), options.get("file") or sys.stdout
        if not self._hears(frame):
            self._print(*values, **options)
            return
        if file not in (self._out, self._errors):
            raise UnsupportedOpError("print to a file", where=statement_of(frame))
        function = self._print if file is not self._errors else _print_as_an_error
        self._note(frame, function, *values, **{name: each for name, each in options.items() if name != "file"})

    def _note_warning(
        self, message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **options: Any
    ) -> None:
        frame = sys._getframe(1)
        if not self._hears(frame):
            self._warn(message, category, stacklevel + 1, source, **options)
            return
        if warnings.filters is not self._filters:
            raise UnsupportedOpError("a warning under filters of its own", where=statement_of(frame))
        of = _outside(frame, stacklevel)
        self._note(frame, Warned(of.f_code.co_filename, of.f_lineno, of.f_globals), message, category, source)

    def _note_record(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        frame = _behind_logging(sys._getframe(2))
        if not self._hears(frame):
            self._handle(logger, record)
            return
        if record.exc_info or record.stack_info:
            raise UnsupportedOpError("a record with a traceback", where=statement_of(frame))
        line = record.pathname, record.lineno, record.funcName
        extra = {name: value for name, value in vars(record).items() if name not in _OF_RECORDS}
        args = (record.args,) if isinstance(record.args, dict) else record.args
        self._note(frame, Logged(logger, record.levelno, line), record.msg, args, extra)

    def _would_log(self, logger: logging.Logger, level: int) -> bool:
        """Whether a logger is asked for a level, which is so for a loss's record until it is to be written."""
        asking = sys._getframe(2)
        frame = _behind_logging(asking)
        if not self._hears(frame):
            return self._is_enabled(logger, level)
        if frame is asking:  # by the loss itself, which may do something else if it is not
            raise UnsupportedOpError("Logger.isEnabledFor", where=statement_of(frame))
        return True

    def _level(self, logger: logging.Logger, frame: types.FrameType) -> int:
        if self._hears(frame):
            raise UnsupportedOpError("Logger.getEffectiveLevel", where=statement_of(frame))
        return self._effective_level(logger)


def _behind_logging(frame: types.FrameType) -> types.FrameType:
    """The frame of what has called a function of Python's own `logging`."""
    while frame.f_globals.get("__name__") == "logging" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _outside(frame: types.FrameType, stacklevel: int) -> types.FrameType:
    """The frame that a warning or a record is of, as its `stacklevel` says."""
    for _ in range(stacklevel - 1):
        frame = frame.f_back or frame
    return frame


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Meanwhile nothing is said that a loss says in this thread: it runs once more."""
    with compiling, swapped(Listener().replacements()):  # of which one thread at a time puts back what was there
        yield
