"""Handwritten kernels are launched directly, too, and are given the same as by `kernel[grid]`."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest

from tests.ptx.driver import run

COSINE, MARGIN, CTC, NCE = "CosineEmbeddingLoss", "MultiLabelMarginLoss", "CTCLoss", "InfoNCELoss"
OTHERS = "of other sizes"  # cosine's: three that Triton does not tell apart, and one that it does


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What arrived, forward and backward of each call, by loss; in the last two of cosine, a tensor is not aligned."""
    found = run("tests.ptx.launching_handwritten", tmp_path_factory.mktemp("driver"))
    own = [1 + (each["loss"] == NCE and not k % 2) for k, each in enumerate(found)]  # two of its forward
    assert [each["launches"] for each in found] == list(accumulate(own))
    for one, after in pairwise(found):
        after["before"] = one["through_triton"]
    found[0]["before"] = 0
    return {name: [each for each in found if each["loss"] == name] for name in (COSINE, MARGIN, CTC, NCE, OTHERS)}


def _through_triton(calls: list[dict[str, Any]]) -> list[int]:
    """How many of the launches of each call, since the first one, went through Triton."""
    before = [calls[0]["before"], *(each["through_triton"] for each in calls)]
    steps = [after - first for first, after in pairwise(before)]
    return [forward + backward for forward, backward in zip(steps[::2], steps[1::2], strict=True)]


@pytest.mark.parametrize(
    ("loss", "counts"),
    [
        (COSINE, [2, 0, 0, 0, 2, 0]),
        (MARGIN, [2, 0, 0, 0, 0]),
        (CTC, [2, 0, 0, 0]),
        (NCE, [3, 0, 0, 0]),
        (OTHERS, [0, 0, 0, 2]),
    ],
)
def test_what_triton_tells_apart_goes_through_it_once(noted: Any, loss: str, counts: list[int]) -> None:
    assert _through_triton(noted[loss]) == counts


@pytest.mark.parametrize(("loss", "pointers"), [(COSINE, (9, 8)), (MARGIN, (5, 4)), (CTC, (9, 8)), (NCE, (8, 8))])
def test_what_arrives_is_the_same(noted: Any, loss: str, pointers: tuple[int, int]) -> None:
    for is_backward in (False, True):
        calls, count = noted[loss][is_backward::2], pointers[is_backward]
        first = calls[0]
        assert all(0 not in each["parameters"][:count] for each in calls)
        numbers = [number & 0xFFFFFFFF for number in first["parameters"][count:]]
        for each in calls:
            assert [number & 0xFFFFFFFF for number in each["parameters"][count:]] == numbers
            assert each["programs"] == first["programs"] and each["stream"] == 0xABC
            assert loss == NCE or each["pointers"][0] == each["parameters"][0]  # which are factors of it
            assert each["pointers"][1] in each["parameters"][:count]
