"""The Jinja2 templates of the generated Triton modules, read as package data from `FOLDER`."""

from pathlib import Path

FOLDER = Path(__file__).parent
