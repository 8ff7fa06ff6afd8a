"""Triton's own launcher, on a driver that only notes what it is given, gets the same from us as from `kernel[grid]`."""

from __future__ import annotations

from typing import Any

import pytest

from autogen.runtime import direct
from tests.ptx.driver import run


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What arrived, forward and backward of eight calls: four alike; two on tensors that are not aligned; one of a size
    for which Triton's code is the same, and one for which it is not.
    """
    return run("tests.ptx.launching", tmp_path_factory.mktemp("driver"))


def test_every_call_is_one_launch_each_way(noted: list[dict[str, Any]]) -> None:
    assert [each["launches"] for each in noted] == list(range(1, 17))


def test_later_calls_are_launched_directly(noted: list[dict[str, Any]]) -> None:
    """The first two calls are taken apart; what Triton has compiled for any call is launched directly from then on."""
    counts = [each["through_triton"] for each in noted]
    assert counts[6:8] == [counts[5]] * 2 and counts[10:12] == [counts[9]] * 2
    assert counts[9] == counts[7] + 2
    assert counts[12:14] == [counts[11]] * 2
    assert counts[15] == counts[13] + 2


def test_what_arrives_is_the_same(noted: list[dict[str, Any]]) -> None:
    for k, each in enumerate(noted):
        elements = 4993 if k >= 14 else 4992 if k >= 12 else 5008 - (k >= 8)
        is_backward = k % 2
        # x, y, loss, partial results, counter, n; or x, y, upstream, gradient, n
        parameters = each["parameters"]
        assert parameters[:2] == each["pointers"][:2]
        assert parameters[3 if is_backward else 2] == each["pointers"][2]
        assert parameters[4 if is_backward else 5] & 0xFFFFFFFF == elements
        assert each["programs"] == -(-elements // 1024) and each["stream"] == 0xABC


@pytest.mark.parametrize(
    "numbers", [(0, 16, -32), (1,), (2, 3, 17, -1), (2**31, 2**40), (2**31 + 1, 2**33 + 7), (0.5, 1.0)]
)
def test_kinds_of_numbers_are_tritons(numbers: tuple[float, ...]) -> None:
    specialize = pytest.importorskip("triton._C.libtriton").native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend

    assert len({direct.kind_of(each) for each in numbers}) == 1
    assert len({specialize(CUDABackend, each, False, True, True) for each in numbers}) == 1
    for other in (0, 1, 3, 2**31, 2**31 + 1, 0.25):
        is_same = specialize(CUDABackend, other, False, True, True) == specialize(
            CUDABackend, numbers[0], False, True, True
        )
        assert (direct.kind_of(other) == direct.kind_of(numbers[0])) is is_same
