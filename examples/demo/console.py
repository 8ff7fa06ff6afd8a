"""Print the demo's findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.compiling import Verdict
from examples.demo.findings import Findings
from examples.demo.training import Difference, Training
from examples.demo.words import device_sentence, error_text, launches_text, traffic_text, verdict_text

_WIDTH_OF_A_PIPE = 120
_CAPTION = (
    "Launches, and bytes moved over the minimum: forward + backward. Errors: the largest error as a share of the\n"
    "largest number in the right answer, which is torch's in double precision."
)

console = Console(highlight=False)
if not console.is_terminal:
    console = Console(highlight=False, width=_WIDTH_OF_A_PIPE)


def greet(device: torch.device) -> None:
    """Say what this is and where it runs."""
    console.print("\n[bold]autogen-loss[/]: PyTorch losses as generated Triton kernels\n")
    console.print(f"{device_sentence(device)}\n", soft_wrap=True)


def progress() -> Progress:
    """A progress bar."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )


def show(findings: Findings) -> None:
    """Print the results."""
    _show_training(findings.training)
    color = "green" if findings.heads.agrees else "bold red"
    console.print(f"\n[{color}]{findings.heads.statement}.[/]\n")
    console.print(_table(findings))
    console.print(f"[dim]{_CAPTION}[/]")
    for fault in _faults(findings):
        console.print(f"[red]{escape(fault)}[/]", soft_wrap=True)


def tell_page(path: Path) -> None:
    """Say where the page is."""
    text = f"\nThe table, the curves and the source of every kernel are in [bold]{escape(str(path))}[/]"
    console.print(text, soft_wrap=True)


def _show_training(training: Training) -> None:
    color = "green" if training.agrees else "bold red"
    console.print(f"\n[{color}]{training.statement}.[/]")
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("", "final loss", "test accuracy", "launches"):
        table.add_column(heading, justify="right" if heading else "left")
    for run, launches in ((training.torch, ""), (training.generated, str(training.launches))):
        table.add_row(run.name, f"{run.losses[-1]:.6f}", f"{run.accuracy:.2%}", launches)
    console.print(table)
    console.print(
        f"Largest difference over all steps: {_difference_text(training.differences)}.\n"
        f"For comparison, torch in single against torch in double precision: {_difference_text(training.rounding)}.",
        soft_wrap=True,
    )


def _difference_text(differences: Sequence[Difference]) -> str:
    largest = Difference.largest(differences)
    return f"loss {error_text(largest.loss)}, any parameter {error_text(largest.parameter)}"


def _table(findings: Findings) -> Table:
    timed = findings.rows[0].time is not None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("loss", min_width=29)
    table.add_column("path", min_width=9)
    for heading in ("launches", "error of\nvalue", "error of\ngradients", "bytes over\nminimum"):
        table.add_column(heading, justify="right", no_wrap=True)
    if timed:
        table.add_column("µs, and\ntorch's", justify="right", no_wrap=True)
    table.add_column("compiled for")
    for row, verdicts in zip(findings.rows, findings.verdicts, strict=True):
        name = row.case.loss + (f"\n[dim]{escape(row.case.description)}[/]" if row.case.description else "")
        path = row.report.path if row.report.path == "generated" else f"[bold red]{row.report.path}[/]"
        cells = [name, path, launches_text(row), error_text(row.errors.value), error_text(row.errors.gradient)]
        cells.append(traffic_text(row))
        if row.time is not None:
            cells.append(f"{row.time:.0f}, {row.torch_time:.0f}")
        table.add_row(*cells, _verdict_cell(verdicts))
    return table


def _verdict_cell(verdicts: Sequence[Verdict]) -> str:
    words = [verdict_text(each) for each in verdicts]
    return " ".join(w if v.good else f"[bold red]{escape(w)}[/]" for w, v in zip(words, verdicts, strict=True))


def _faults(findings: Findings) -> list[str]:
    """Why a loss has no kernel, and why a kernel did not compile, each once."""
    faults = []
    for row, verdicts in zip(findings.rows, findings.verdicts, strict=True):
        if row.report.path != "generated":
            faults.append(f"{row.case.loss} did not run on generated kernels: {row.report.reason}")
        messages = [(verdict.target, verdict.message) for verdict in verdicts if verdict.message]
        faults += [f"{row.case.loss} did not compile for {target}: {message}" for target, message in messages]
    return list(dict.fromkeys(faults))
