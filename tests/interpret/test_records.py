"""Neighbouring elements of a row, such as a box's corners, are read at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autogen import autogen_loss, explain
from tests.interpret.agreement import agree, draw

Loss = Callable[..., Tensor]


def areas(boxes: Tensor) -> Tensor:
    left, top, right, bottom = boxes.unbind(-1)
    return ((right - left) * (bottom - top)).square().mean()


def shapes(boxes: Tensor, target: Tensor) -> Tensor:
    """With something per corner beside what is per box."""
    size = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    return ((boxes - target).abs().sum(-1) * size.sigmoid()).mean()


def angles(points: Tensor) -> Tensor:
    x, y = points.unbind(-1)
    return torch.atan2(y, x + 3).square().mean()


def per_image(x: Tensor, boxes: Tensor) -> Tensor:
    left, top, right, bottom = boxes.unbind(-1)
    size = ((right - left) * (bottom - top))[:, None, None]
    return (x * x[:, :1] * size).square().sum(2).add(1).log().mean()


def halves(pairs: Tensor) -> Tensor:
    """Three of four."""
    first, second, _, last = pairs.unbind(-1)
    return (first * last + second).square().mean()


def calls(source: str) -> dict[str, int]:
    return {name: source.count(f"{name}(") for name in ("parts_of_2", "parts_of_4")}


def source_of(loss: Loss, *inputs: Tensor) -> str:
    report = explain(autogen_loss(loss), *inputs)
    assert report.forward is not None
    return report.forward.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("loss", [areas, shapes, angles], ids=lambda loss: loss.__name__)
def test_at_once(loss: Loss, dtype: torch.dtype) -> None:
    size = 2 if loss is angles else 4
    inputs = [draw("real", 1031, 3, size, dtype=dtype, seed=seed) for seed in range(1 + (loss is shapes))]
    source = source_of(loss, *inputs)
    assert calls(source) == {"parts_of_2": int(size == 2), "parts_of_4": int(size == 4)}
    for tensor in ("boxes", "points"):
        assert source.count(f"tl.load({tensor}_ptr") <= 2  # in a full block, and in the last
    agree(loss, *inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("loss", "size"), [(areas, 4), (angles, 2)])
def test_a_gradient_of_neighbours_is_stored_at_once(loss: Loss, size: int, dtype: torch.dtype) -> None:
    report = explain(autogen_loss(loss), draw("real", 1031, 3, size, dtype=dtype))
    assert report.backward is not None and report.backward.bytes_moved <= 1.001 * report.backward.bytes_minimum
    source = report.backward.source
    assert (
        source.count(f"record_of_{size}(") == 1 and source.count("tl.store(") == 2
    )  # in a full block, and in the last
    assert "col" not in source


def test_a_box_that_is_read_per_corner_too_is_read_once() -> None:
    inputs = [draw("real", 20_000, 4, seed=seed) for seed in range(2)]
    report = explain(autogen_loss(shapes), *inputs)
    assert report.backward is not None
    assert report.backward.source.count("tl.load(boxes_ptr") == 1
    assert report.backward.bytes_moved <= 1.001 * report.backward.bytes_minimum


@pytest.mark.parametrize(
    ("why", "loss", "inputs"),
    [
        ("rows of five begin anywhere", lambda x: areas(x[:, :4]) + x[:, 4].mean(), [draw("real", 1031, 5)]),
        ("one for all rows of a tile", per_image, [draw("real", 3, 700, 9), draw("real", 3, 4)]),
        ("they are reduced", lambda x: x[:, :4].prod(1).mean(), [draw("real", 1031, 6)]),
        ("not all of them", halves, [draw("real", 1031, 4)]),
        ("they are apart in memory", areas, [draw("real", 4, 1031).detach().t().requires_grad_()]),
    ],
)
def test_by_themselves(why: str, loss: Loss, inputs: list[Tensor]) -> None:
    assert calls(source_of(loss, *inputs))["parts_of_4"] == 0, why
    agree(loss, *inputs)


def test_a_record_within_longer_rows() -> None:
    """The corners of anchors, beside a confidence and three classes that another loss reads."""
    inputs = [draw("real", 517, 8)]
    assert calls(source_of(lambda x: areas(x[:, 4:]), *inputs))["parts_of_4"] == 1
    agree(lambda x: areas(x[:, 4:]), *inputs)


def test_a_record_at_the_start_of_a_row_that_is_read_whole_too() -> None:
    def beside_all(x: Tensor) -> Tensor:
        first, second, *_ = x.unbind(1)
        return (x.square().sum(1).log() * first * second).mean()

    inputs = [draw("real", 517, 6)]
    assert calls(source_of(beside_all, *inputs))["parts_of_2"] == 1
    agree(beside_all, *inputs)


def test_two_records_of_a_row() -> None:
    def both(x: Tensor) -> Tensor:
        return areas(x[:, :4]) + areas(x[:, 4:])

    assert calls(source_of(both, draw("real", 4099, 8)))["parts_of_4"] == 2
    agree(both, draw("real", 4099, 8))
