"""`python -m examples.refresh_readme`: run what README.md shows, and write its outputs anew.

A block marked `text`, or `py` if it is source code, is the output of the block marked `python` that it follows. The
blocks run one after the other, as in one session. In a block marked `console`, each line after a dollar sign is a
command of `autogen`'s, and the lines below are what it prints. What lies between `<!-- coverage -->` and
`<!-- /coverage -->` is the table of `examples.coverage`, between `<!-- beyond -->` and `<!-- /beyond -->` that of
`examples.beyond`; between `<!-- demo -->` and `<!-- /demo -->`, it comes from a whole run of the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"

# In messages and in comments of kernels, the reader's own file.
SCRIPT = "example.py"

_BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```(?:text|py)\n(?P<output>.*?)```\n)?", re.DOTALL)
_CONSOLE = re.compile(r"(?<=```console\n).*?(?=```\n)", re.DOTALL)
COVERAGE = re.compile(r"(?<=<!-- coverage -->\n).*?(?=<!-- /coverage -->)", re.DOTALL)
BEYOND = re.compile(r"(?<=<!-- beyond -->\n).*?(?=<!-- /beyond -->)", re.DOTALL)
_DEMO = re.compile(r"(?<=<!-- demo -->\n).*?(?=<!-- /demo -->)", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code, and the output that README.md claims for it, None if it claims none."""

    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a Markdown text."""
    return [Block(match["code"], match["output"]) for match in _BLOCK.finditer(text)]


def outputs(found: list[Block]) -> Iterator[str]:
    """Run blocks one after the other, as one script; yields what each prints, without blank lines at its end."""
    script = ""
    session: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        code = "\n" * script.count("\n") + block.code
        script += block.code
        # Where Python, and so the tracer, looks a line of the script up.
        linecache.cache[SCRIPT] = (len(script), None, script.splitlines(keepends=True), SCRIPT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, SCRIPT, "exec"), session)
        text = printed.getvalue().rstrip()
        yield f"{text}\n" if text else ""


def with_outputs(text: str) -> str:
    """The text with what its blocks print in the place of what it claims."""
    printed = outputs(blocks(text))

    def renew(match: re.Match[str]) -> str:
        output = next(printed)
        language = "py" if output.startswith('"""') else "text"
        shown = f"\n```{language}\n{output}```\n" if output else ""
        return f"```python\n{match['code']}```\n{shown}"

    return _BLOCK.sub(renew, text)


def consoles(text: str) -> list[str]:
    """The blocks of commands of a Markdown text."""
    return _CONSOLE.findall(text)


def with_printed(console: str) -> str:
    """A block of commands, with what each of them prints now."""
    from autogen.cli import main

    shown = ""
    for line in console.splitlines():
        if line.startswith("$ "):
            program, *arguments = shlex.split(line.removeprefix("$ "))
            assert program == "autogen", f"{line!r} is not a command of autogen's"
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                main(arguments)
            shown += f"{line}\n{printed.getvalue().rstrip()}\n"
    return shown


def demo_section() -> str:
    """The demo's findings as Markdown."""
    from examples.demo.__main__ import STEPS, prepare
    from examples.demo.tour import explore
    from examples.demo.words import error_text, launches_text, traffic_text, verdict_text, versions

    findings = explore(prepare(), STEPS, quick=False)
    lines = [
        f"{findings.training.statement}, and name {findings.training.generated.accuracy:.1%} of the test digits.",
        "",
        "| loss | options, inputs | path | launches | error of value | of gradients | bytes / minimum | compiled for |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, verdicts in zip(findings.rows, findings.verdicts, strict=True):
        errors = [error_text(row.errors.value), error_text(row.errors.gradient)]
        cells = [row.case.loss, row.case.description, row.report.path, launches_text(row), *errors, traffic_text(row)]
        lines.append(f"| {' | '.join([*cells, ' '.join(map(verdict_text, verdicts))])} |")
    return "\n".join([*lines, "", f"({versions()}, in Triton's interpreter)", ""])


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.refresh_readme")
    parser.add_argument("--skip-demo", action="store_true", help="leave the demo's table alone, which takes a minute")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"
    from examples import beyond, coverage

    text = with_outputs(README.read_text(encoding="utf-8"))
    text = _CONSOLE.sub(lambda match: with_printed(match[0]), text)
    text = COVERAGE.sub(lambda _: coverage.table(), text)
    text = BEYOND.sub(lambda _: beyond.table(), text)
    if not options.skip_demo:
        section = demo_section()
        text = _DEMO.sub(lambda _: section, text)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
