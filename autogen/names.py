"""Names that are told apart."""

from __future__ import annotations

from collections.abc import Collection

NUMBER = "_number"  # ends the names of numbers that kernels are given, beside sizes


def unique(name: str, taken: Collection[str]) -> str:
    """`name`, numbered if it is taken."""
    candidate, copy = name, 2
    while candidate in taken:
        candidate, copy = f"{name}_{copy}", copy + 1
    return candidate
