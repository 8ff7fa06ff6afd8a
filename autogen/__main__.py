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
        content = build.cache_content()
        _say(f"{content.folder}: {content.modules} modules, {content.size / 1024:.1f} KiB")
        for key, tuned in store.entries():
            _say(describe_tuned(key, tuned))


def _say(text: str) -> None:
    """Print a text, of which the output may not have all characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def describe_tuned(key: store.Key, tuned: store.Tuned) -> str:
    """A tuned configuration in a line."""
    extents = "x".join(str(size) for size in key.bucket[:-2] if size > 1) or "1"
    return f"tuned: {tuned.config}, {tuned.speedup:.2f} times the default's speed, for {extents} of " + (
        f"{', '.join(key.dtypes)} on {key.device}"
    )


if __name__ == "__main__":
    main()
