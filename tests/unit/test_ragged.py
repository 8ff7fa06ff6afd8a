"""Jagged tensors of packed sequences, and what is said of numbers that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import autogen
from autogen import AutogenError, DataError
from autogen.compat import jagged_extras

Given = Tensor | Sequence[int]


def values(rows: int) -> Tensor:
    return torch.arange(3.0 * rows).reshape(rows, 3)


@pytest.mark.parametrize("lengths", [[2, 0, 3], [0, 0], [], [1], [0, 4, 1, 0]])
@pytest.mark.parametrize("given", ["lengths", "offsets"])
@pytest.mark.parametrize("kind", [list, tuple, torch.int64, torch.int32])
def test_sequences_are_those_that_were_packed(lengths: list[int], given: str, kind: Any) -> None:
    packed = values(sum(lengths)).requires_grad_()
    offsets = [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    numbers = lengths if given == "lengths" else offsets
    passed = kind(numbers) if isinstance(kind, type) else torch.tensor(numbers, dtype=kind)
    jagged = autogen.ragged(packed, **{given: passed})
    assert jagged.layout is torch.jagged and jagged.dtype == packed.dtype and jagged.shape[0] == len(lengths)
    assert [each.tolist() for each in jagged.unbind()] == [each.tolist() for each in packed.split(lengths)]
    assert jagged.values().data_ptr() == packed.data_ptr()
    if given == "offsets" and isinstance(passed, Tensor):
        assert jagged.offsets() is passed
    assert jagged_extras(jagged)["max_seqlen"] == max(lengths, default=0)
    (jagged.values() ** 2).sum().backward()
    torch.testing.assert_close(packed.grad, 2 * packed.detach(), rtol=0, atol=0)


def test_tensors_of_the_same_offsets_are_combined() -> None:
    offsets = torch.tensor([0, 2, 5])
    one, other = (autogen.ragged(values(5), offsets) for _ in range(2))
    torch.testing.assert_close((one + other).values(), 2 * values(5), rtol=0, atol=0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"offsets": [0, 4, 2, 5]}, "offsets decrease: offsets[1] is 4, and offsets[2] is 2"),
    ({"offsets": torch.tensor([1, 5])}, "offsets[0] is 1"),
    ({"offsets": [0, 7]}, "offsets end past values: offsets[1] is 7, and values has 5 rows"),
    ({"offsets": [0, 3]}, "offsets end before the end of values: offsets[1] is 3, and values has 5 rows"),
    ({"offsets": []}, "offsets has the shape (0,)"),
    ({"offsets": torch.zeros(2, 2, dtype=torch.int64)}, "offsets has the shape (2, 2)"),
    ({"offsets": torch.tensor([0.0, 5.0])}, "offsets is float32"),
    ({"offsets": torch.tensor([0, 5], device="meta")}, "offsets is on meta, and values on cpu"),
    ({"lengths": [2, -1, 4]}, "lengths[1] is -1"),
    ({"lengths": torch.tensor([2, 2])}, "lengths add up to 4, and values has 5 rows"),
    ({"lengths": [2.5, 2.5]}, "lengths is float32"),
    ({"lengths": [True, True]}, "lengths is bool"),
    ({"lengths": torch.tensor(5)}, "lengths has the shape ()"),
    ({}, "ragged was given neither offsets nor lengths"),
    ({"offsets": [0, 5], "lengths": [5]}, "ragged was given both offsets and lengths"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_does_not_fit(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as raised:
        autogen.ragged(values(5), **wrong)
    assert raised.value.reason == said and isinstance(raised.value, ValueError)
    assert isinstance(raised.value, AutogenError) and raised.value.remedy


def test_values_that_are_no_packed_sequences() -> None:
    jagged = autogen.ragged(values(5), [0, 5])
    for wrong, said in ((torch.tensor(1.0), "0-dimensional tensor"), ([1.0], "list"), (jagged, "3-dimensional tensor")):
        with pytest.raises(DataError, match=said):
            autogen.ragged(wrong, [0, 1])


def test_numbers_on_a_device_are_read_only_if_asked_for() -> None:
    """Those of a meta tensor cannot be read, so whoever reads them fails."""
    packed, wrong = values(5).to("meta"), torch.tensor([0, 9], device="meta")
    assert jagged_extras(autogen.ragged(packed, wrong))["max_seqlen"] is None
    with pytest.raises(NotImplementedError, match="meta"):
        autogen.ragged(packed, wrong, check=True)
    listed = autogen.ragged(packed, lengths=[2, 3])
    assert listed.offsets().device.type == "meta" and jagged_extras(listed)["max_seqlen"] == 3
    with pytest.raises(DataError, match="lengths add up to 9"):
        autogen.ragged(packed, lengths=[9])


def test_torch_captures_it_whole_and_once_for_all_lengths() -> None:
    captures = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        captures.append(graph)
        return graph

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def total(packed: Tensor, offsets: Tensor) -> Tensor:
        return autogen.ragged(packed, offsets).sin().values().sum()

    for lengths in ([2, 3, 2, 4], [0, 6, 2], [5, 1, 1, 1, 1]):
        packed = values(sum(lengths))
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        torch.testing.assert_close(total(packed, offsets), packed.sin().sum())
    assert len(captures) == 1


def test_a_least_length_of_0_or_1_is_no_capture_of_its_own() -> None:
    captures = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        captures.append(graph)
        return graph

    @torch.compile(backend=backend, fullgraph=True, dynamic=True)
    def total(jagged: Tensor) -> Tensor:
        return jagged.values().sum()

    for lengths in ([2, 3, 2, 4], [0, 6, 2], [5, 1, 1, 1, 1]):
        total(autogen.ragged(values(sum(lengths)), lengths=lengths))
    assert len(captures) == 1
