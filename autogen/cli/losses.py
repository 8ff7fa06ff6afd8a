"""`autogen losses`: list every loss and how it runs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from autogen.cli.output import progress, say, table
from autogen.cli.usage import UsageError


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The command's arguments."""
    text = "list the losses, with the path and the number of launches of each"
    parser = commands.add_parser("losses", help=text, description=f"{text[0].upper()}{text[1:]}; none is run.")
    parser.add_argument(
        "names", nargs="*", metavar="LOSS", help="a class of autogen.losses; by default all, which takes a while"
    )
    parser.add_argument("--json", action="store_true", help="print everything that is known of each loss, as JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from autogen import supported_losses

    with progress("losses") as step:
        try:
            found = supported_losses(*options.names, progress=step)
        except ValueError as error:
            raise UsageError(str(error)) from None
    if options.json:
        say(json.dumps({name: asdict(each) for name, each in found.items()}, indent=2))
        return 0
    rows = [
        (each.name, each.path, " + ".join(map(str, each.launches)), ", ".join(each.torch_steps), each.falls_back)
        for each in found.values()
    ]
    table(("loss", "path", "launches", "torch runs", "falls back"), rows)
    return 0
