"""Choose few of many calls so that every pair of options occurs."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from tests.interpret.compare import Call


def covering(calls: Sequence[Call]) -> list[Call]:
    """Some of the `calls`: whatever two options, or kinds of inputs, come together in any come together in one."""
    pairs = [_pairs_of(call) for call in calls]
    missing = set[Hashable]().union(*pairs)
    chosen: list[int] = []
    while missing:
        best = max(range(len(calls)), key=lambda k: len(missing & pairs[k]))
        chosen.append(best)
        missing -= pairs[best]
    return [calls[k] for k in sorted(chosen)]


def _pairs_of(call: Call) -> set[Hashable]:
    inputs = {str(k): each for k, each in enumerate(call.inputs)}
    kinds = sorted((name, _kind_of(value)) for name, value in {**call.options, **inputs}.items())
    return set(itertools.combinations(kinds, 2))


def _kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dim()} {value.dtype} {value.numel() == 0}"
    return str(value)
