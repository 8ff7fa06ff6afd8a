"""What a loss finds beside its arguments: a replay puts it there again, with other tensors, and takes it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from autogen.calls.places import Difference, Kept, Place
from autogen.frozen import frozen


def make_parameter(value: torch.Tensor) -> None:
    """Have a tensor be a parameter to `isinstance`, as what it stands for is."""
    value._is_param = True


@frozen
class Change:
    """What a loss has changed: a difference at the place of a number."""

    place: int
    difference: Difference


@frozen
class Surroundings:
    """All `places` where a loss may change something, and where its tensors and floats are `kept`."""

    kept: tuple[Kept, ...]
    places: tuple[Place, ...]

    @contextmanager
    def swapped(self, values: Sequence[Any]) -> Iterator[Callable[[], list[Change]]]:
        """All places as they were found, with other values for what is kept; then as they are now.

        What the loss changes there meanwhile is undone; a function tells what it has changed so far.
        """
        outside = [place.look() for place in self.places]
        for place in self.places:
            place.put_back()
        arguments = [each.put(value) for each, value in zip(self.kept, values, strict=True)]
        for former, value in zip(arguments, values, strict=True):
            if isinstance(former, torch.nn.Parameter):
                make_parameter(value)
        inside = [place.look() for place in self.places]

        def changed() -> list[Change]:
            return [Change(k, each) for k, place in enumerate(inside) for each in place.differences()]

        try:
            yield changed
        finally:
            for place in inside:
                place.put_back()
            for each, value in reversed(list(zip(self.kept, arguments, strict=True))):
                each.put(value)
            for place in outside:
                place.put_back()

    def released(self) -> Surroundings:
        """The same, which keeps no tensors alive."""
        held = {(id(each.container), each.key) for each in self.kept}
        return Surroundings(
            tuple([replace(each, value=None) for each in self.kept]),
            tuple([place.without(held) for place in self.places]),
        )
