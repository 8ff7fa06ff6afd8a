"""The user's code: which statement is being run, or has raised, as one line of text."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import re
import sys
import textwrap
import tokenize
import traceback
from collections.abc import Iterable
from types import CodeType, FrameType

import torch
import typing_extensions

from autogen.calls.libraries import is_library
from autogen.errors import SourceLine

_TORCH = torch.__path__[0]
_OWN = __file__.removesuffix("tracing/source.py")
_TRACER = f"{_OWN}tracing/tracer.py"
# Code of libraries that is about losses as a user's is.
_LOSSES = ("autogen.losses", "torch.nn.functional", "torch.nn.modules", "torch.distributions")
_WRAPPERS = frozenset({contextlib.__file__, typing_extensions.__file__})  # of functions of torch that are decorated


def is_torchs(filename: str) -> bool:
    """Whether a file belongs to torch."""
    return filename.startswith(_TORCH)


def is_users(filename: str) -> bool:
    """Whether a file is neither torch's nor a part of the compiler."""
    is_own = filename.startswith(_OWN) and not filename.startswith(f"{_OWN}losses/")
    return not is_own and not is_torchs(filename)


def is_asked_by_a_loss() -> bool:
    """Whether what has called the function that asks is a loss's, not torch's, which tells symbols from numbers."""
    return is_of_a_loss(sys._getframe(2))


def is_of_a_loss(frame: FrameType) -> bool:
    """Whether code that runs is a loss's."""
    name = frame.f_globals.get("__name__")
    return not is_library(name) or str(name).startswith(_LOSSES)


def current_statement() -> SourceLine | None:
    """The user's statement that is being run."""
    return _innermost(traceback.walk_stack(sys._getframe(1)))


def statement_that_raised(error: BaseException) -> SourceLine | None:
    """The user's statement that an exception came from."""
    return _innermost(reversed(list(traceback.walk_tb(error.__traceback__))))


def _innermost(frames: Iterable[tuple[FrameType, int]]) -> SourceLine | None:
    """Of some frames with line numbers, innermost first: the first one outside torch, else inside `torch.nn`.

    One whose text can be read is better than one that has none, such as that of `python -c`.
    """
    inside_torch: tuple[CodeType, int] | None = None
    without_text: tuple[CodeType, int] | None = None
    for frame, lineno in frames:
        filename = frame.f_code.co_filename
        if filename.startswith(f"{_TORCH}/nn/"):
            inside_torch = inside_torch or (frame.f_code, lineno)
        elif filename == _TRACER:  # what called the loss is none of it
            break
        elif is_users(filename) and filename not in _WRAPPERS and not filename.startswith("<frozen "):
            if linecache.getline(filename, lineno, frame.f_globals):  # by which a text in an archive is found
                return statement_at(frame.f_code, lineno)
            without_text = without_text or (frame.f_code, lineno)
    found = without_text or inside_torch
    return statement_at(*found) if found else None


def statement_of(frame: FrameType) -> SourceLine:
    """The statement that a frame is at."""
    return statement_at(frame.f_code, frame.f_lineno)


def statement_at(code: CodeType, lineno: int) -> SourceLine:
    """The statement at a line of a function, whole and on one line however it is broken over several."""
    return _statement_at(code.co_filename, code, lineno)  # code of two files may be equal


@functools.lru_cache(maxsize=4096)
def _statement_at(filename: str, code: CodeType, lineno: int) -> SourceLine:
    statement = _statements(filename, code).get(lineno)
    if statement is None or statement.lineno == statement.end_lineno:
        return SourceLine(filename, lineno, _without_comment(linecache.getline(filename, lineno)))
    return SourceLine(filename, statement.lineno, ast.unparse(statement))


@functools.lru_cache(maxsize=256)
def _statements(filename: str, code: CodeType) -> dict[int, ast.stmt]:
    """The simple statements of a function by every line that they extend over."""
    first = code.co_firstlineno
    linecache.checkcache(filename)  # the module may have been loaded again
    lines = linecache.getlines(filename)[first - 1 :]
    try:
        if code.co_name != "<module>":
            lines = inspect.getblock(lines)
        tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1)
    except (SyntaxError, tokenize.TokenError, ValueError):
        # Part of a statement, such as a lambda in a call; or the file is another than was imported (the last: a null).
        return {}
    simple = (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body"))
    return {line: each for each in simple for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)}


def _without_comment(line: str) -> str:
    return re.sub(r"\s*#[^'\"]*$", "", line.strip())
