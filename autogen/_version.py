"""The version of the package, which packaging reads from this file."""

__version__ = "0.2.0"
