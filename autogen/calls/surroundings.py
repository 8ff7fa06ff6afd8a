"""What a loss finds beside its arguments: a replay puts it there again, with other tensors, and takes it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from autogen.calls.places import Appended, Entries, Items, Kept
from autogen.calls.spots import Difference, Place
from autogen.frozen import frozen


def make_parameter(value: torch.Tensor) -> None:
    """Have a tensor be a parameter to `isinstance`, as what it stands for is."""
    value._is_param = True


@frozen
class Change:
    """What a loss has changed: a difference at the place of a number; if it `is_given`, at that of an argument."""

    place: int
    difference: Difference
    is_given: bool = False


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
        inside: list[Place] = []

        def changed() -> list[Change]:
            return [Change(k, each) for k, place in enumerate(inside) for each in place.differences()]

        # What is begun is undone, also if it is interrupted: the user's objects would hold the tensors of a trace.
        with ExitStack() as undoing:
            for place in reversed(outside):
                undoing.callback(place.put_back)
            for place in self.places:
                place.put_back()
                place.hide()
            for each, value in zip(self.kept, values, strict=True):
                former = each.now()
                undoing.callback(each.put, former)
                each.put(value)
                if isinstance(former, torch.nn.Parameter):
                    make_parameter(value)
            for place in self.places:
                inside.append(place.look())
            for place in reversed(inside):
                undoing.callback(place.put_back)
            yield changed

    @property
    def containers(self) -> frozenset[int]:
        """The lists and dictionaries among the places, by id."""
        return frozenset(id(each.container) for each in self.places if isinstance(each, (Appended, Entries, Items)))

    def released(self) -> Surroundings:
        """The same, which keeps no tensors alive."""
        held = {(id(each.container), each.key) for each in self.kept}
        return Surroundings(
            tuple([replace(each, value=None) for each in self.kept]),
            tuple([place.without(held) for place in self.places]),
        )
