"""Describe losses that run a part of themselves in torch, such as a matrix product, and the rest on kernels.

Such a loss has an attribute `__autogen_parts__`, a function that takes its arguments apart into `Parts`, for `explain`;
or says why torch computes the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

PARTS = "__autogen_parts__"


@dataclass(frozen=True)
class Parts:
    """A loss as what torch runs of it, `steps` by name, and the call of a decorated function, not made yet."""

    steps: tuple[str, ...]
    call: partial[Any]
