"""`autogen explain` and `autogen show`: report how a call would run, and print its kernels, without running them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autogen.cli.output import code, say
from autogen.cli.targets import add_call, calling, device_of, target_of
from autogen.cli.usage import UsageError

if TYPE_CHECKING:
    from autogen.report import Report


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The commands' arguments."""
    for name, run, text in (
        ("explain", _explain, "report how a call would run, why, and how many bytes its kernels move"),
        ("show", _show, "print the source of a call's kernels"),
    ):
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}; nothing is run.")
        add_call(parser)
        parser.add_argument(
            "--stages",
            action="store_true",
            help="also print torch's graphs, the IR, and how each kernel was scheduled and launched",
        )
        if name == "explain":
            parser.add_argument(
                "--html",
                metavar="FILE",
                type=Path,
                help="also write the report, with the kernels' source, as an HTML page",
            )
        parser.set_defaults(run=run)


def _explain(options: argparse.Namespace) -> int:
    report, stages = _report(options)
    say(report.summary)
    if stages is not None:
        say(f"\n{stages}")
    if options.html is not None:
        from autogen.report import html

        try:
            options.html.write_text(html.page(report.to_dict()), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.html} cannot be written: {error.strerror}") from None
    return 0


def _show(options: argparse.Namespace) -> int:
    report, stages = _report(options)
    if stages is not None:
        say(f"{stages}\n")
    sources = [each.source.rstrip() for each in (report.forward, report.backward) if each is not None]
    if not sources:
        raise UsageError(f"{report.loss} has no kernels here, as {report.reason}")
    code("\n\n\n".join(dict.fromkeys(sources)))
    return 0


def _report(options: argparse.Namespace) -> tuple[Report, str | None]:
    """The report, and the stages if they were asked for; of a device without kernels, as if it had some."""
    from autogen.report import explain_call
    from autogen.report.stages import stages
    from autogen.runtime.availability import has_kernels

    target = target_of(options)
    args, named = target.arguments(device_of(options), matters=False)
    anywhere = not has_kernels()
    with calling(target):
        report = explain_call(target.loss, args, named, anywhere=anywhere)
        return report, stages(target.loss, args, named) if options.stages else None
