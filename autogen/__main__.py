"""`python -m autogen`: looking after the cache of generated modules and tuned configurations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from autogen.runtime import build
from autogen.tuning import store


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        prog="python -m autogen", description="Looks after what is kept on disk of generated kernels."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    cache = commands.add_parser("cache", help="list the cache of modules and tuned configurations, or clear it")
    cache.add_argument("--clear", action="store_true", help="delete everything in it")
    options = parser.parse_args(arguments)
    if options.clear:
        _say(f"{build.clear_cache()} files deleted from {build.cache_folder()}")
    else:
        _say(describe(build.cache_content()))
        for key, tuned in store.entries():
            _say(describe_tuned(key, tuned))


def _say(text: str) -> None:
    """Print a text, of which the output may not have all characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def describe(content: build.CacheContent) -> str:
    """The cache in a line or two."""
    text = f"{content.folder}: {content.modules} modules, {content.size / 1024:.1f} KiB"
    if content.modules:
        text += f"\nthe oldest from {_ago(content.oldest)}, the newest from {_ago(content.newest)}"
    return text


def describe_tuned(key: store.Key, tuned: store.Tuned) -> str:
    """A tuned configuration in a line."""
    extents = "x".join(str(size) for size in key.bucket[:-2] if size > 1) or "1"
    return f"tuned: {tuned.config}, {tuned.speedup:.2f} times the default's speed, for {extents} of " + (
        f"{', '.join(key.dtypes)} on {key.device}"
    )


def _ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "less than a minute ago"


if __name__ == "__main__":
    main()
