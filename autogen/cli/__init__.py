"""The command `autogen`, or `python -m autogen`: inspect losses, their kernels, and the environment."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from autogen._version import __version__
from autogen.cli import bench, cache, check, env, explain, export, losses
from autogen.cli.output import complain
from autogen.cli.usage import UsageError
from autogen.errors import AutogenError

COMMANDS = (explain, check, bench, export, losses, cache, env)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 where a check has failed, 2 where it could not be done."""
    parser = argparse.ArgumentParser(
        prog="autogen", description="Inspect, check, time and export the Triton kernels of PyTorch losses."
    )
    parser.add_argument("--version", action="version", version=f"autogen-loss {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for each in COMMANDS:
        each.add(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except (UsageError, AutogenError) as error:
        complain(f"autogen {options.command}: {error}")
        return 2
    except BrokenPipeError:  # as of `| head`; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
