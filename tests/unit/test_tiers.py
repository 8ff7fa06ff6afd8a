"""Which cases of a parametrised test the first tier runs."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import torch

from tests.tiers import first_tier


class Item:
    """What the first tier asks of a test's case."""

    def __init__(self, nodeid: str, params: dict[str, Any], marks: dict[str, int]) -> None:
        self.nodeid, self.callspec = nodeid, SimpleNamespace(params=params)
        self._marks = marks

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=(self._marks[name],)) if name in self._marks else None


def chosen(values: dict[str, tuple[Any, ...]], number: int, **marks: int) -> list[dict[str, Any]]:
    params = [dict(zip(values, given, strict=True)) for given in product(*values.values())]
    items: list[Any] = [Item(f"test[{k}]", each, marks) for k, each in enumerate(params)]
    kept = first_tier(items, number)
    return [item.callspec.params for item in items if item in kept]


OPTIONS = {"loss": ("a", "b", "c"), "dtype": (torch.float32, torch.float64), "options": ({}, {"p": 1})}


def test_all_values_come_before_any_pair_comes_again() -> None:
    found = chosen(OPTIONS, 3)
    assert len(found) == 3 and found[0] == {"loss": "a", "dtype": torch.float32, "options": {}}
    for name, values in OPTIONS.items():
        assert all(any(each[name] is value for each in found) for value in values)


def test_few_cases_have_all_pairs() -> None:
    found = chosen(OPTIONS, 7)  # of twelve
    for one, other in (("loss", "dtype"), ("loss", "options"), ("dtype", "options")):
        pairs = {(str(each[one]), str(each[other])) for each in found}
        assert len(pairs) == len(OPTIONS[one]) * len(OPTIONS[other])


def test_a_mark_says_how_many() -> None:
    assert len(chosen(OPTIONS, 3, cases=5)) == 5
    assert len(chosen(OPTIONS, 100)) == 12
    assert chosen(OPTIONS, 3, slow=0) == []
