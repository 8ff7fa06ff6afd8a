"""`python -m autogen.aot`: the process behind `autogen.aot.compile_all`."""

import os
import sys

from autogen.aot.workers import serve

if __name__ == "__main__":
    # What compilers print belongs to the error output; the real output carries results.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as results:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.stdin.buffer, results)
