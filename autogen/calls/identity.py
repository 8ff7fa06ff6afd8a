"""Objects that are known by identity alone, as parts of keys."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Identity:
    """Any other object: equal to itself only. Holding it keeps its identity from being given to another, but what takes
    much memory is not kept alive: once it is gone, nothing is equal to it.
    """

    __slots__ = ("_id", "_reference", "_value")

    def __init__(self, value: Any) -> None:
        is_large = isinstance(value, torch.Tensor) or hasattr(type(value), "tobytes")
        self._id = id(value)
        self._reference = weakref.ref(value) if is_large and type(value).__weakrefoffset__ else None
        self._value = value if self._reference is None else None

    @property
    def value(self) -> Any:
        """The object; None if it is gone."""
        return self._value if self._reference is None else self._reference()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or other._id != self._id:
            return False
        value = self.value
        return other is self or (value is not None and other.value is value)

    def __hash__(self) -> int:
        return self._id
