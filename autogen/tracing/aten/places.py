"""Places along a dimension that are counted from its end, or lie beyond it: as they are counted from its beginning.

torch moves them when an op runs. Whether a size, or a number computed from sizes, has to be moved is asked here while
they are traced, so that the answer is a condition of the trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from autogen.tracing.aten.checks import refuse

aten = torch.ops.aten

# Where the shape that a place is in, the dimension and the place are among the arguments.
_STARTS = {aten.slice.Tensor: (0, 1, 2), aten.slice_backward.default: (1, 2, 3), aten.slice_scatter.default: (0, 2, 3)}
_SELECTED = {
    aten.select.int: (0, 1, 2),
    aten.select_backward.default: (1, 2, 3),
    aten.select_scatter.default: (0, 2, 3),
}


def from_the_beginning(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an op, with the place where it begins between 0 and the size of the dimension.

    Raises:
        IndexError: the one place that is read or written lies before the first; of those after the last, torch says so.
    """
    found = _STARTS.get(func) or _SELECTED.get(func)
    if found is None or len(args) <= found[2]:
        return args
    of, dim, at = found
    shape = args[of].shape if isinstance(args[of], torch.Tensor) else args[of]
    place = args[at]
    if place is None or not len(shape):
        return args
    size = shape[args[dim]]
    if guard_or_false(place < 0):
        place = place + size
        refuse(func in _SELECTED and guard_or_false(place < 0), "a place before the first", IndexError)
    if func in _STARTS:
        if guard_or_false(place < 0):
            place = 0
        elif guard_or_false(place > size):
            place = size
    return (*args[:at], place, *args[at + 1 :])
