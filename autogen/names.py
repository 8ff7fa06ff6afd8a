"""Names that are told apart."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection

NUMBER = "_number"  # ends the names of numbers that kernels are given, beside sizes

# What results, their gradients, and what kernels keep between blocks are called.
_OURS = re.compile(r"loss(_\d+)?|number_\d+|grad_\w+|\w+_(partial|ptr)|counter")


def identifier(name: str) -> str:
    """The user's `name` for a value, as an identifier."""
    name = re.sub(r"\W", "_", name)
    return f"{name}_" if keyword.iskeyword(name) else f"_{name}" if name[:1].isdigit() else name


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
