"""Turn the user's names into unique identifiers."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Collection

NUMBER = "_number"  # ends the names of numbers that kernels are given, beside sizes

# What results, their gradients, and what kernels keep between blocks are called.
_OURS = re.compile(r"loss(_\d+)?|number(_\d+)?|grad_\w+|\w+_(partial|ptr)|counter")


def spelled(name: str) -> str:
    """`name` as Python spells it, with `_` for what no identifier has, or Triton finds in none; keywords are kept."""
    letters = unicodedata.normalize("NFKC", name)
    name = "".join(each if each.isalnum() and f"_{each}".isidentifier() else "_" for each in letters)
    return name if name.isidentifier() or not name else f"_{name}"


def identifier(name: str) -> str:
    """The user's `name` for a value, as an identifier."""
    name = spelled(name)
    return f"{name}_" if keyword.iskeyword(name) else name


def of_input(name: str) -> str:
    """The user's `name` for an input, as an identifier that nothing of ours is called by."""
    name = identifier(name)
    return f"{name}_" if _OURS.fullmatch(name) else name


def unique(name: str, taken: Collection[str]) -> str:
    """`name`, numbered if it is taken."""
    candidate, copy = name, 2
    while candidate in taken:
        candidate, copy = f"{name}_{copy}", copy + 1
    return candidate
