"""`autogen export`: write the kernels of a loss as code that does not need this package."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from autogen.cli.output import say
from autogen.cli.targets import add_call, device_of, target_of
from autogen.cli.usage import UsageError
from autogen.errors import AutogenError

FORMATS = ("hub", "module")
_TEXT = "write a loss as a repository for Hugging Face kernels, or as one module"


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The command's arguments."""
    parser = commands.add_parser("export", help=_TEXT, description=f"{_TEXT[0].upper()}{_TEXT[1:]}.")
    add_call(parser)
    parser.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="DIR",
        help="the folder of the repository, which must not exist yet, or the file or folder of the module",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="hub", help="a repository (hub, the default) or one file (module)"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import autogen

    target = target_of(options)
    given = target.in_order(*target.arguments(device_of(options)))
    try:
        written = autogen.export(target.loss, given, options.out, format=options.format)
    except AutogenError:
        raise
    except (ValueError, TypeError, OSError) as error:  # as where something is there already
        raise UsageError(str(error)) from error
    say(f"{target.name} is in {written}")
    return 0
