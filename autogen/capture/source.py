"""Find the statement of the user's code that a node of a graph comes from."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re

import torch
import typing_extensions

from autogen.errors import SourceLine

_TORCH = torch.__path__[0]
_OWN = __file__.removesuffix("capture/source.py")
_WRAPPERS = frozenset({contextlib.__file__, typing_extensions.__file__})  # of functions of torch that are decorated
_MODULE = re.compile(r"^<torch(.*)>$")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*')


def is_torchs(filename: str) -> bool:
    """Whether a file belongs to torch."""
    return filename.startswith(_TORCH)


def is_users(filename: str) -> bool:
    """Whether a file is neither torch's nor ours, losses of this package apart."""
    is_own = filename.startswith(_OWN) and not filename.startswith(f"{_OWN}losses/")
    return not (is_own or is_torchs(filename) or filename in _WRAPPERS or filename.startswith("<torch"))


def innermost(frames: list[tuple[str, int]]) -> SourceLine | None:
    """Of some frames, outermost first, the innermost statement outside torch, else inside `torch.nn`.

    One whose text can be read is better than one that has none, such as that of `python -c`.
    """
    users = [frame for frame in frames if is_users(frame[0])]
    with_text = [frame for frame in users if linecache.getline(*frame)]
    # Code of torch that is captured has the name of its module for a file.
    copied = [
        (_MODULE.sub(lambda name: f"{_TORCH}{name[1].replace('.', '/')}.py", file), line) for file, line in frames
    ]
    in_torch = [frame for frame in copied if frame[0].startswith(f"{_TORCH}/nn/")]
    found = with_text or users or in_torch
    return statement_at(*found[-1]) if found else None


@functools.lru_cache(maxsize=4096)
def line_of_trace(stack_trace: str | None) -> SourceLine | None:
    """The user's statement in a stack trace, as torch keeps it in `node.meta["stack_trace"]`."""
    return innermost([(file, int(line)) for file, line in _FRAME.findall(stack_trace or "")])


@functools.lru_cache(maxsize=4096)
def statement_at(filename: str, lineno: int) -> SourceLine:
    """The statement at a line of a file, whole and on one line however it is broken over several."""
    statement = _statements(filename).get(lineno)
    if statement is None or statement.lineno == statement.end_lineno:
        code = re.sub(r"\s*#[^'\"]*$", "", linecache.getline(filename, lineno).strip())
        return SourceLine(filename, lineno, code)
    return SourceLine(filename, statement.lineno, ast.unparse(statement))


@functools.lru_cache(maxsize=64)
def _statements(filename: str) -> dict[int, ast.stmt]:
    """The simple statements of a file that are broken over several lines, by each line that they extend over."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):  # the file is another one than was imported
        return {}
    simple = (node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body"))
    return {line: each for each in simple for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
