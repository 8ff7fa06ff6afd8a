"""The version of the package, which packaging reads from this file."""

__version__ = "0.1.0"
