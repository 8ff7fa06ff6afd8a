"""What code does with the names that it mentions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from autogen.calls.mentions import only_called

ONLY_CALLED: dict[str, Callable[..., Any]] = {
    "not at all": lambda x: x.float(),
    "called": lambda x: float(x) + max(float(x.sum()), 1.0),
    "called within a call": lambda x: round(float(x[0]), int(x[1])),
    "called in a comprehension": lambda x: [float(each) for each in x],
    "mapped": lambda x: list(map(float, x)),
    "asked about": lambda x: x if isinstance(x, float) else isinstance(x, (int, float)),
}
MORE: dict[str, Callable[..., Any]] = {
    "an argument": lambda x: x.to(float),
    "an argument of what is called": lambda x: sorted(x, key=float),
    "mapped over": lambda x: list(map(x, float)),
    "a keyword": lambda x: x.sum(dtype=float),
    "compared": lambda x: type(x) is float,
    "an attribute": lambda x: float.fromhex(x),
    "kept": lambda x: {float: 1}[x],
    "returned": lambda: float,
    "in an inner function": lambda: lambda x: x.to(float),
    "given beside a call": lambda x: x.to(float) + float(x),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the byte code does not tell")
@pytest.mark.parametrize("case", ONLY_CALLED)
def test_a_name_that_is_only_called(case: str) -> None:
    assert only_called(ONLY_CALLED[case].__code__, "float")


@pytest.mark.parametrize("case", MORE)
def test_a_name_that_is_more_than_called(case: str) -> None:
    assert not only_called(MORE[case].__code__, "float")
