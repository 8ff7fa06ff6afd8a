"""The first tier of the tests, which `make test` runs: a few cases of each test, none of them slow."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import pytest
import torch

_Values = tuple[tuple[str, str], ...]

MOST_EXAMPLES = 3  # that hypothesis draws, where a test says how many

every = False  # whether all of it runs, which conftest.py sets before any test is imported


def examples(number: int) -> int:
    """How many examples hypothesis draws of `number`."""
    return number if every else min(number, MOST_EXAMPLES)


def cpu_seconds() -> float:
    """The CPU time of this process and of its children that have ended."""
    user, system, users, systems, _ = os.times()
    return user + system + users + systems


def first_tier(items: Iterable[pytest.Item], number: int) -> set[pytest.Item]:
    """What is not slow, and of each parametrised test this number of cases, or that of its mark `cases`."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return {item for cases in tests.values() for item in _covering(cases, number)}


def _covering(cases: Sequence[pytest.Item], number: int) -> Iterator[pytest.Item]:
    """The first case, and those that have the most pairs of parameters' values that no case before has."""
    mark = cases[0].get_closest_marker("cases")
    # Neighbours are alike: ties are taken far from each other.
    left = sorted(range(len(cases)), key=lambda k: k * 0.618 % 1)
    values = [_values(case) for case in cases]
    seen: set[_Values] = set()
    for _ in range(min(mark.args[0] if mark else number, len(cases))):
        best = max(left, key=lambda k: sum(3 - len(each) for each in values[k] - seen))
        left.remove(best)
        seen |= values[best]
        yield cases[best]


def _values(case: pytest.Item) -> set[_Values]:
    """The values of a case's parameters, and the pairs of these."""
    spec = getattr(case, "callspec", None)
    if spec is None:
        return set()
    plain = (str, int, float, torch.dtype)
    given = [
        (name, str(value) if isinstance(value, plain) else f"object {id(value)}")
        for name, value in sorted(spec.params.items())
    ]
    return {(each,) for each in given} | set(combinations(given, 2))
