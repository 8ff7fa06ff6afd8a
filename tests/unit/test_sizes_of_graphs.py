"""The names that sizes and numbers of a captured graph have, and where a call reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autogen.capture.joint import Segment
from autogen.capture.sizes import Place
from tests.unit.pipeline import Loss, floats, pointwise, run_of, weighted


def segment_of(loss: Loss, *args: Any) -> tuple[Segment, dict[str, Any]]:
    run, segment = run_of(loss, *args)
    return segment.segment, segment.kernels_for(run.arguments)[1]


def test_the_first_tensor_with_dimensions_names_them() -> None:
    segment, sizes = segment_of(pointwise, floats(2, 3, 4, 5), floats(2, 3, 4, 5))
    assert sizes == {"N": 2, "C": 3, "D1": 4, "D2": 5}
    assert set(segment.graph.sizes.symbols.values()) == {Place("shape", 0, dim) for dim in range(4)}
    assert segment.graph.sizes.hints() == sizes


def test_equal_sizes_have_one_name_and_others_that_of_their_tensor() -> None:
    assert segment_of(weighted, floats(3, 4), floats(3, 4), floats(4, grad=False))[1] == {"N": 3, "C": 4}
    found = segment_of(lambda x, y: x.mean() + y.exp().mean(), floats(3, 4), floats(3))[1]
    assert found == {"N": 3, "C": 4, "y_size0": 3}


def test_strides_that_no_shape_tells() -> None:
    found = segment_of(lambda x: x.exp().mean(), floats(3, 8)[:, 2:6].detach())[1]
    assert {"N": 3, "C": 4, "x_stride0": 8}.items() <= found.items()


def test_sizes_of_one_and_those_of_a_module_are_numbers() -> None:
    segment, sizes = segment_of(lambda x, y: (x * y).mean(), floats(3, 4), floats(1, 4))
    assert sizes == {"N": 3, "C": 4} and segment.graph.inputs[1].shape[0] == 1
    segment, sizes = segment_of(nn.BCEWithLogitsLoss(pos_weight=torch.ones(4)), floats(3, 4), floats(3, 4))
    assert sizes == {"N": 3}


def test_factors_of_equal_products_are_equal() -> None:
    _, sizes = segment_of(lambda x, y: (x.flatten() * y.flatten()).exp().mean(), floats(3, 4), floats(3, 4))
    assert sizes == {"N": 3, "C": 4}
    _, sizes = segment_of(lambda x, y: (x.flatten() * y.flatten()).exp().mean(), floats(3, 4), floats(6, 2))
    assert len(sizes) > 2


def test_a_call_of_other_sizes_is_read() -> None:
    segment, _ = segment_of(pointwise, floats(3, 4), floats(3, 4))
    assert segment.graph.sizes.read([floats(7, 9), floats(7, 9)]) == {"N": 7, "C": 9}
