"""What pyproject.toml cannot say of a build: that links must be links, and where README's links lead on PyPI."""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
HOME = "https://github.com/autogen-loss/autogen-loss"

for name in ("losses", "templates"):
    if not (ROOT / "autogen" / name).is_dir():  # a folder in an sdist
        raise SystemExit(
            f"autogen/{name} is a file where a link to the folder {name}/ belongs, as git was told to check out no "
            "symbolic links: delete autogen/losses and autogen/templates, run `git config core.symlinks true` and `git "
            "checkout autogen` (on Windows in Developer Mode), and build again."
        )


def readme() -> str:
    """README.md with its relative links made absolute, but for code, in which `](` is no link."""
    parts = (ROOT / "README.md").read_text(encoding="utf-8").split("```")
    for folder, link in (("raw", r"(!\[[^\]]*\]\()(?!https?:)"), ("blob", r"(\]\()(?!https?:|#)")):
        parts[::2] = [re.sub(link, rf"\1{HOME}/{folder}/main/", part) for part in parts[::2]]
    return "```".join(parts)


setup(long_description=readme(), long_description_content_type="text/markdown")
