"""The one place where the version is written; packaging reads it from here."""

__version__ = "0.1.0"
