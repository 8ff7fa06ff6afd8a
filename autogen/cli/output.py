"""Print to a terminal with colours and rules, and to everything else as plain text."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 120  # of tables that nobody looks at in a terminal


def say(text: str) -> None:
    """Print a text, of which the output may not have all characters."""
    _write(text, sys.stdout)


def complain(text: str) -> None:
    """Print a text among the errors."""
    _write(text, sys.stderr)


def _write(text: str, stream: Any) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def code(source: str) -> None:
    """Print Python source."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(source, "python", theme="ansi_dark"), soft_wrap=True)
    else:
        say(source)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns of numbers are aligned at the right."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console().print(_table(heads, rows))
        return
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None).print(_table(heads, rows))
    say("\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n"))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, header_style="bold")
    for k, head in enumerate(heads):
        is_number = all(row[k][:1].isdigit() for row in rows)
        made.add_column(Text(head), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


class Step(Protocol):
    """What is told of each step that begins."""

    def __call__(self, what: str) -> None: ...


@contextmanager
def progress(title: str, count: int | None = None) -> Iterator[Step]:
    """A bar of how far something is, if errors go to a terminal; `count` is the number of steps, if it is known."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=count)

        def step(what: str) -> None:
            bar.update(task, description=f"{title}: {what}", advance=1)

        yield step
