"""`autogen env` and `autogen capabilities`: show what is installed and what the package can do here."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from autogen.cli.output import say


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The commands' arguments."""
    for name, run, text in (
        ("env", _env, "print versions, devices and settings, for a bug report"),
        ("capabilities", _capabilities, "print what the package does, and what of it is available here"),
    ):
        parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=run)


def _env(options: argparse.Namespace) -> int:
    from autogen.report.environment import environment

    found = environment()
    if options.json:
        say(json.dumps(asdict(found), indent=2))
        return 0
    lines = {name: version or "not installed" for name, version in found.versions.items()}
    lines |= {
        "platform": found.platform,
        "devices": "; ".join(found.devices) or "no GPU",
        "interpreter": "on" if found.interpreter else "off",
        "policy": found.policy,
        "cache": found.cache,
        **{name: version or "not installed" for name, version in found.extras.items()},
        **found.variables,
    }
    width = max(map(len, lines))
    say("\n".join(f"{name:<{width}}  {value}" for name, value in lines.items()))
    return 0


def _capabilities(options: argparse.Namespace) -> int:
    from autogen import capabilities

    found = capabilities()
    say(json.dumps(asdict(found), indent=2) if options.json else str(found))
    return 0
