"""Numbers that a loss finds: those that are known to vary are no part of the key, and kernels are given them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

from autogen.calls.places import Kept
from autogen.names import unique

_MOST_EXACT = 2**53  # below which a float can be any integer

UNLIKE: dict[type, str] = {
    float: "not {0} or {0} - {0} != 0.0",
    int: f"not {{0}} or not -{_MOST_EXACT} < {{0}} < {_MOST_EXACT}",
}
"""Which numbers of a kind are part of the key in any case, as text: 0, as it may be an error, nan and infinities."""


_is_unlike: dict[type, Callable[[float], bool]] = {
    kind: eval(f"lambda number: {text.format('number')}") for kind, text in UNLIKE.items()
}


class Numbers:
    """The numbers of one call: `kept` are those that vary, by the names in `varying`, `fixed` all others by name."""

    def __init__(self, varying: Collection[str]) -> None:
        self.kept: list[Kept] = []
        self.fixed: dict[str, float] = {}
        self._varying = varying
        self._named: set[str] = set()

    def note(self, number: float, name: str, container: Any, key: Any) -> Hashable:
        """A key for a number that is kept somewhere."""
        kind: Any = type(number)
        name = unique(name, self._named)
        self._named.add(name)
        if name in self._varying and kind in _is_unlike and not _is_unlike[kind](number):
            self.kept.append(Kept(name, number, container, key))
            return kind
        self.fixed[name] = number
        return kind, repr(number)  # nan equals itself here, and 0.0 differs from -0.0


def is_long(container: Any) -> bool:
    """Whether a list is data, whose integers nobody varies one by one."""
    return type(container) is list and len(container) > 16
