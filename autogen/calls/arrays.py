"""Arrays that are no tensors, such as NumPy's: what is in them belongs to the key of a call; a loss may write there."""

from __future__ import annotations

import array
import sys
from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from typing import Any

from autogen.calls.identity import Identity
from autogen.calls.spots import MISSING, Difference, Namer, Place
from autogen.frozen import frozen

MOST_BYTES = 4096  # of an array whose content is part of the key


def is_array(value: Any) -> bool:
    """Whether something is an array, or a number of NumPy's."""
    return isinstance(value, bytearray) or hasattr(type(value), "tobytes")


def is_of_objects(value: Any) -> bool:
    """Whether an array holds objects, so that its bytes are addresses."""
    return getattr(getattr(value, "dtype", None), "kind", "") == "O"


def content_of(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """What an array holds: the kind of its items, its shape, and its bytes."""
    kind = getattr(value, "dtype", getattr(value, "typecode", ""))
    return str(kind), getattr(value, "shape", ()), bytes(value) if isinstance(value, bytearray) else value.tobytes()


def key_of(value: Any) -> Hashable:
    """What tells an array from others; a large one is known by itself, not by what is in it."""
    return (type(value), *content_of(value)) if _is_small(value) else Identity(value)


@frozen
class Content(Place):
    """What is in an array; `before` is None for a large one that nobody has looked into."""

    array: Any
    before: tuple[str, tuple[int, ...], bytes] | None

    @classmethod
    def of(cls, value: Any) -> Content | None:
        """The place that an array is, if it can be written to."""
        if not _is_written_to(value):
            return None
        return cls(value, content_of(value) if _is_small(value) else None)

    def look(self) -> Content:
        return replace(self, before=content_of(self.array))

    def differences(self) -> Iterator[Difference]:
        if self._has_changed():
            yield Difference(f"a {type(self.array).__name__}", MISSING, self.before, self.array)

    def put_back(self) -> None:
        if self.before is None or not self._has_changed():
            return
        data = self.before[-1]
        if isinstance(self.array, bytearray):
            self.array[:] = data
        elif isinstance(self.array, array.array):
            self.array[:] = array.array(self.array.typecode, data)
        else:
            numpy: Any = sys.modules["numpy"]
            self.array[...] = numpy.frombuffer(data, self.array.dtype).reshape(self.array.shape)

    def without(self, kept: Collection[tuple[int, Any]]) -> Content:
        return self

    def conditions(self, name: Namer, kept: Collection[tuple[int, Any]]) -> Iterator[str]:
        if self.before is not None:
            yield f"{name(content_of)}({name(self.array)}) == {name(self.before)}"

    def _has_changed(self) -> bool:
        return self.before is not None and content_of(self.array) != self.before


def is_number(value: Any) -> bool:
    """Whether something is a number of NumPy's, which nobody can write to."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _is_small(value: Any) -> bool:
    """Whether to look at all that is in an array, at each call."""
    size = getattr(value, "nbytes", None)  # which not all that can be made bytes of have
    return bool((len(content_of(value)[-1]) if size is None else size) <= MOST_BYTES)


def _is_written_to(value: Any) -> bool:
    """Whether an array is of a kind whose content can be put back, and is not read-only."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return bool(value.flags.writeable)
    return isinstance(value, (bytearray, array.array))
