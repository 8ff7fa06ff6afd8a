"""`python -m autogen.aot`: the process behind `autogen.aot.compile_all`."""

import argparse
import os
import sys

from autogen.aot.workers import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m autogen.aot",
        description="The process behind autogen.aot.compile_all, which starts it: it reads a pickle of what to compile "
        "from its standard input, and writes a pickle of each result to its standard output.",
    )
    parser.parse_args()
    # What compilers print belongs to the error output; the real output carries results.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            serve(sys.stdin.buffer, results)
        except EOFError:  # a person has started it, or what did is gone
            parser.error("the standard input ends before it says what to compile")
