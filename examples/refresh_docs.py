"""`python -m examples.refresh_docs`: run what README.md and the pages of docs/ show, and write their outputs anew.

With `--check` nothing is written: each output that has changed is named by its page and line, and the command fails.

The blocks of a page that are marked `python` are one script, if one of them is followed by its output: a block marked
`text`, or `py` if it is source code. Other blocks marked `py` are only shown. In a block marked `console`, each line
after a dollar sign is a command of `autogen`'s, and the lines below are what it prints. What lies between
`<!-- name -->` and `<!-- /name -->` is what the function of that name in `sections` returns.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

# In messages and in comments of kernels, the reader's own file.
SCRIPT = "example.py"

_PART = re.compile(
    r"```python\n(?P<code>.*?)```\n(?:\n```(?:text|py)\n(?P<output>.*?)```\n)?"
    r"|```console\n(?P<commands>.*?)```\n"
    r"|<!-- (?P<name>\w+) -->\n(?P<section>.*?)<!-- /(?P=name) -->\n",
    re.DOTALL,
)
# What another processor, or another build of torch, may print: errors of rounding, and the versions under a table.
_OF_THE_MACHINE = re.compile(r"\d\.\d+e[-+]?\d+|^\(autogen-loss .*\)$", re.MULTILINE)


_OTHERS = {"eager": "eager", "compile": "`torch.compile`", "liger": "Liger-Kernel"}  # columns of measured times


class Script:
    """The blocks of a page, run one after the other as one module."""

    def __init__(self) -> None:
        self._source = ""
        self._session: dict[str, object] = {"__name__": "__main__"}

    def run(self, code: str) -> str:
        """What the next block prints, without blank lines at its end."""
        compiled = compile("\n" * self._source.count("\n") + code, SCRIPT, "exec")
        self._source += code
        # Where Python, and so torch's capture, looks a line of the script up.
        lines = self._source.splitlines(keepends=True)
        linecache.cache[SCRIPT] = (len(self._source), None, lines, SCRIPT)
        return _printed(lambda: exec(compiled, self._session))


def _printed(call: Callable[[], object]) -> str:
    """What a call prints, from an empty folder."""
    printed = io.StringIO()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        os.chdir(folder)
        try:
            call()
        finally:
            os.chdir(before)
    text = printed.getvalue().rstrip()
    return f"{text}\n" if text else ""


def run_commands(block: str) -> str:
    """A block of commands, with what each of them prints now."""
    from autogen.cli import main

    shown = ""
    for line in block.splitlines():
        if line.startswith("$ "):
            program, *arguments = shlex.split(line.removeprefix("$ "))
            if program != "autogen":
                raise ValueError(f"{line!r} is not a command of autogen's")
            shown += f"{line}\n{_printed(lambda: main(arguments))}"  # noqa: B023, as it is called here
    return shown


def sections() -> dict[str, Callable[[], str]]:
    """What makes each section of a page that is not the output of a block."""
    from examples import beyond, coverage, walk

    return {
        "beyond": beyond.table,
        "coverage": coverage.table,
        "demo": _demo,
        "goals": _goals,
        "memory": _memory,
        "speed": _speed,
        "walk": walk.walk,
    }


def _demo() -> str:
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


def _goals() -> str:
    """Which goals the last version that an H200 has measured meets."""
    from bench import goals, results

    rows = results.read(results.file_of("NVIDIA H200"))
    return f"```text\n{goals.summary([row for row in rows if row.versions == rows[-1].versions])}\n```\n"


def _speed() -> str:
    """How fast losses are beside others, over all cases that an H200 has measured."""
    from bench import results

    rows = results.read(results.file_of("NVIDIA H200"))
    found = results.speedups(rows)
    last = results.speedups([row for row in rows if row.versions == rows[-1].versions])["compile"]
    lines = ["| beside | cases | geometric mean | least |", "|---|---|---|---|"]
    for column, name in _OTHERS.items():
        each = found[column]
        lines.append(f"| {name} | {each.count} | {each.mean:.2f} | {each.least:.2f} ({each.least_case}) |")
    slower = {case: ratio for case, ratio in found["compile"].ratios.items() if ratio < 1}
    pairs = [ratio for case, ratio in slower.items() if case.startswith(("infonce ", "supcon "))]
    others = [ratio for case, ratio in slower.items() if not case.startswith(("infonce ", "supcon "))]
    text = f"Slower than `torch.compile` are {len(slower)} cases: {len(pairs)} of InfoNCE and SupCon"
    text += f" ({min(pairs):.3f} to {max(pairs):.3f} times as fast),\n"
    text += f"and {len(others)} others ({min(others):.3f} to {max(others):.3f}). Of the\n"
    text += f"{last.count} cases that were measured last, the geometric mean beside `torch.compile` is {last.mean:.2f}."
    return "\n".join([*lines, "", text, ""])


def _memory() -> str:
    """What a cross entropy of the largest measured head allocates at most beside its inputs."""
    from bench import memory

    rows = [row for row in memory.read(memory.FILE)[2] if row.loss == "cross entropy"]
    count, width, classes = shape = max((row.size.rows, row.size.width, row.size.classes) for row in rows)
    columns = {memory.OURS: "autogen-loss", "eager": "eager", "torch, chunks": "torch, in chunks"}
    columns["liger, chunks"] = "Liger-Kernel"
    lines = [f"| {count} x {width} x {classes} | {' | '.join(columns.values())} |", f"|---{'|---' * len(columns)}|"]
    for dtype in ("bfloat16", "float32"):
        found = [row for row in rows if str(row.size.dtype) == f"torch.{dtype}"]
        peaks = {row.column: row.peak for row in found if (row.size.rows, row.size.width, row.size.classes) == shape}
        lines.append(f"| {dtype} | {' | '.join(f'{peaks[column] / 2**20:.0f} MiB' for column in columns)} |")
    return "\n".join([*lines, ""])


def renewed(text: str, skipped: Collection[str] = ()) -> tuple[str, list[str]]:
    """The text of a page with its outputs as they are now, and what has changed, by line. Skipped sections stay."""
    script, made = Script(), sections()
    is_script = any(match["output"] for match in _PART.finditer(text))
    changes: list[str] = []

    def renew(match: re.Match[str]) -> str:
        if match["code"] is not None and is_script:
            output = script.run(match["code"])
            language = "py" if output.startswith('"""') else "text"
            shown = f"\n```{language}\n{output}```\n" if output else ""
            what, before, after = "the output of the block", match["output"] or "", output
            new = f"```python\n{match['code']}```\n{shown}"
        elif match["commands"] is not None:
            what, before, after = "the output of the commands", match["commands"], run_commands(match["commands"])
            new = f"```console\n{after}```\n"
        elif match["name"] in made and match["name"] not in skipped:
            what, before, after = f"the section `{match['name']}`", match["section"], made[match["name"]]()
            new = f"<!-- {match['name']} -->\n{after}<!-- /{match['name']} -->\n"
        else:
            return match[0]
        if _OF_THE_MACHINE.sub("", before) != _OF_THE_MACHINE.sub("", after):
            changes.append(f"line {text.count(chr(10), 0, match.start()) + 1}: {what} has changed")
        return new

    return _PART.sub(renew, text), changes


def versions_differ() -> str:
    """Why outputs may be others than those of the pages, which are of the torch in constraints.txt; or nothing."""
    import torch

    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    own = torch.__version__.split("+")[0]
    return "" if own == pinned else f"the pages show outputs of torch {pinned}, and this is {own}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m examples.refresh_docs")
    parser.add_argument("pages", nargs="*", type=Path, help="the pages to run; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if an output has changed")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME", help="leave a section alone: demo, say")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1"
    if options.check and (reason := versions_differ()):
        print(reason, file=sys.stderr)
        return 2
    has_changed = False
    for page in [each.resolve() for each in options.pages] or PAGES:
        before = page.read_text(encoding="utf-8")
        after, changes = renewed(before, options.skip)
        for change in changes:
            print(f"{page.relative_to(ROOT)}, {change}", flush=True)
        has_changed |= bool(changes)
        if not options.check and after != before:
            page.write_text(after, encoding="utf-8")
    if options.check and has_changed:
        print("run `python -m examples.refresh_docs`", file=sys.stderr)
    return int(options.check and has_changed)


if __name__ == "__main__":
    sys.exit(main())
