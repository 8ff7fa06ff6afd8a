"""Run the command line as `python -m autogen`; see `autogen.cli`."""

from autogen.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
