"""Losses that run a part of themselves in torch, such as a matrix product, and the rest through a fused loss.

Such a loss has an attribute `__autogen_parts__`, a function that takes its arguments apart into `Parts`, for `explain`;
or says why torch computes the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

PARTS = "__autogen_parts__"


@dataclass(frozen=True)
class FusedCall:
    """A call of a decorated function, not made yet."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Make it."""
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Parts:
    """A loss as what torch runs of it, `steps` by name, and the fused call."""

    steps: tuple[str, ...]
    call: FusedCall
