"""Triton's own launcher, on a driver that only notes what it is given, gets the same from us as from `kernel[grid]`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ptx.driver import run


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What arrived, forward and backward of six calls; in the last two, tensors are not aligned."""
    return run("tests.ptx.launching", tmp_path_factory.mktemp("driver"))


def test_every_call_is_one_launch_each_way(noted: list[dict[str, Any]]) -> None:
    assert [each["launches"] for each in noted] == list(range(1, 13))


def test_later_calls_are_launched_directly(noted: list[dict[str, Any]]) -> None:
    """The third call is the first with prepared launches; each alignment goes through Triton once."""
    counts = [each["through_triton"] for each in noted]
    assert counts[6:8] == [counts[5]] * 2 and counts[10:] == [counts[9]] * 2
    assert counts[9] == counts[7] + 2


def test_what_arrives_is_the_same(noted: list[dict[str, Any]]) -> None:
    for k, each in enumerate(noted):
        elements = 5008 - (k >= 8)
        is_backward = k % 2
        # x, y, loss, partial results, counter, n; or x, y, upstream, gradient, n
        parameters = each["parameters"]
        assert parameters[:2] == each["pointers"][:2]
        assert parameters[3 if is_backward else 2] == each["pointers"][2]
        assert parameters[4 if is_backward else 5] & 0xFFFFFFFF == elements
        assert each["programs"] == -(-elements // 1024) and each["stream"] == 0xABC
