"""`autogen cache`: show, or clear, the cache of generated modules and tuned configurations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from autogen.cli.output import say

if TYPE_CHECKING:
    from autogen.tuning import store


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The command's arguments."""
    text = "show the cache of generated modules and tuned configurations, or clear it"
    parser = commands.add_parser("cache", help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--clear", action="store_true", help="delete all generated modules and tuned configurations")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from autogen.runtime import build
    from autogen.tuning import store

    if options.clear:
        say(f"{build.clear_cache()} files deleted from {build.cache_folder()}")
        return 0
    content = build.cache_content()
    say(f"{content.folder}: {content.modules} modules, {content.size / 1024:.1f} KiB")
    for key, tuned in store.entries():
        say(describe_tuned(key, tuned))
    return 0


def describe_tuned(key: store.Key, tuned: store.Tuned) -> str:
    """A tuned configuration in a line."""
    extents = "x".join(str(size) for size in key.bucket[:-2] if size > 1) or "1"
    return f"tuned: {tuned.config}, {tuned.speedup:.2f} times the default's speed, for {extents} of " + (
        f"{', '.join(key.dtypes)} on {key.device}"
    )
