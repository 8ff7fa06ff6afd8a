"""Texts of numbers that a loss prints or logs, as in `print(f"loss {loss.item():.3f}")`: each call writes its own.

While a loss is traced, a sign stands in the text for the number. Nothing but the call that prints may see it: signs are
given only where a statement is that call, and the text an argument as it is written.
"""

from __future__ import annotations

import ast
import functools
import re
from types import FrameType
from typing import Any

import torch

from autogen.calls.changes import Formatted
from autogen.errors import SourceLine, ValueBranchError
from autogen.frozen import frozen
from autogen.tracing.source import statement_of

_SIGN = "\ue000{}\ue001"
_SIGNS = re.compile("(\ue000[0-9]+\ue001)")
_FUNCTIONS = frozenset({"print", "warn"})
_METHODS = frozenset({"debug", "info", "warning", "warn", "error", "critical", "log"})
_LIKE = {torch.SymInt: 1, torch.SymFloat: 0.5}


@frozen
class _Written:
    number: Any
    how: str
    frame: int
    where: SourceLine


class Texts:
    """The signs that stand for numbers in one trace."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[str, _Written] = {}

    def write(self, number: Any, how: str, frame: FrameType) -> str | None:
        """A sign for a number that code formats; None where others may see it."""
        where = statement_of(frame)
        if not _says(where.code):
            return None
        format(_LIKE[type(number)], how)  # which raises what it raises
        sign = _SIGN.format(self._count)
        self._count += 1
        self._waiting[sign] = _Written(number, how, id(frame), where)
        return sign

    def settled(self, leaf: Any, frame: FrameType) -> Any:
        """A leaf of what code says, with the numbers that stand in it if it is a text.

        Raises:
            ValueBranchError: it was not the statement at hand that has formatted them.
        """
        parts = _SIGNS.split(leaf) if isinstance(leaf, str) else ()
        return Formatted(tuple([self._part(each, frame) for each in parts])) if len(parts) > 1 else leaf

    def _part(self, text: str, frame: FrameType) -> str | tuple[Any, str]:
        if _SIGNS.fullmatch(text) is None:
            return text
        written = self._waiting.pop(text, None)
        where = statement_of(frame)
        if written is None or (written.frame, written.where) != (id(frame), where):
            raise refused(where)
        return written.number, written.how

    def refuse_waiting(self) -> None:
        """Raise if a text has gone elsewhere."""
        for written in self._waiting.values():
            raise refused(written.where)


def refused(where: SourceLine) -> ValueBranchError:
    """That the text of a number is one of each call, which goes where others may see it."""
    return ValueBranchError('formatting a number, as in f"{loss.item():.3f}"', where=where)


@functools.lru_cache(maxsize=1024)
def _says(statement: str) -> bool:
    """Whether a statement does nothing but say something, and what it formats becomes its arguments as it is."""
    try:
        (tree,) = ast.parse(statement.strip()).body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(tree, ast.Expr) or not isinstance(tree.value, ast.Call):
        return False
    call = tree.value
    if isinstance(call.func, ast.Attribute):
        is_known = call.func.attr in _METHODS
    else:
        is_known = isinstance(call.func, ast.Name) and call.func.id in _FUNCTIONS
    return is_known and all(map(_is_as_written, (*call.args, *(each.value for each in call.keywords))))


def _is_as_written(node: ast.expr) -> bool:
    """Whether the texts that an expression formats are a part of its value, and nothing else is done with them."""
    if isinstance(node, ast.JoinedStr):
        return not any(_formats(each.value) for each in node.values if isinstance(each, ast.FormattedValue))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_as_written(node.left) and _is_as_written(node.right)
    if isinstance(node, ast.Call) and _is_format(node) and isinstance(node.func.value, ast.Constant):  # type: ignore[attr-defined]
        return not any(map(_formats, (*node.args, *(each.value for each in node.keywords))))
    return not _formats(node)


def _is_format(node: ast.AST) -> bool:
    """Whether it is a call of `format`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"


def _formats(node: ast.AST) -> bool:
    return any(isinstance(each, ast.JoinedStr) or _is_named_format(each) for each in ast.walk(node))


def _is_named_format(node: ast.AST) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) in ("format", "format_map", "__format__")
