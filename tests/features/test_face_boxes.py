"""The article told again: rows D7, D8, D10, D15 and D39 of the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import autogen
from examples import face_boxes
from examples.face_boxes import RANGES, Faces, Model, Sample, Way, main, naive, ways

SLOTS = 16


def value_and_gradient(way: Way, predicted: Tensor, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    predicted = predicted.detach().requires_grad_()
    value = way.loss(predicted, *way.collate(samples)[1])
    return value.detach(), *torch.autograd.grad(value, predicted)


def exact(predicted: Tensor, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """The article's loop, in double precision."""
    predicted = predicted.detach().double().requires_grad_()
    value = naive(predicted, [each.boxes.double() for each in samples])
    return value.detach(), *torch.autograd.grad(value, predicted)


@pytest.mark.slow
def test_every_way_is_measured_and_gives_one_loss(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "boxes.svg"
    options = ["--steps", "2", "--batch", "5", "--slots", str(SLOTS), "--size", "16", "--device", "cpu"]
    rows = main([*options, "--figure", str(figure)])[5]
    printed = capsys.readouterr().out

    torch.manual_seed(0)
    model, faces = Model(SLOTS), Faces(5, 16, SLOTS, 3.0)
    samples = [faces[k] for k in range(5)]
    assert sum(len(each.boxes) for each in samples) > 0
    value, gradient = exact(model(torch.stack([each.image for each in samples])), samples)
    assert [row.name for row in rows] == [
        "naive",
        "concatenated",
        "padded",
        "generated",
        "generated, skipping",
        "ragged",
    ]
    for row in rows:
        torch.testing.assert_close(
            torch.tensor(row.value),
            value.float(),
            rtol=2e-6,
            atol=1e-7,
            msg=lambda said, row=row: f"{row.name}: {said}",
        )
        torch.testing.assert_close(
            row.gradient, gradient.float(), rtol=1e-5, atol=1e-7, msg=lambda said, row=row: f"{row.name}: {said}"
        )
        assert [*row.milliseconds] == [*RANGES] and all(each > 0 for each in row.milliseconds.values())
        assert all(each > 0 for each in (*row.launches, *row.bytes)) and row.peak is None
        assert f"| {' | '.join(row.cells)} |" in printed
    for row in rows[3:]:
        assert row.path == "generated" and row.launches == (1, 1)
    assert rows[2].launches[0] > 20 * rows[3].launches[0] and rows[2].bytes[0] > 5 * rows[3].bytes[0]
    assert "the article's formula gives +0.111, GIoU is -0.778." in printed
    assert all(f"<!-- {row.name} -->" in figure.read_text() for row in rows), "the names in the legend"


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[2, 0, 300, 1], [0, 0, 0, 0]], ids=str)
def test_more_boxes_than_the_article_has_and_none(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)

    def boxes(*shape: int) -> Tensor:
        corner, side = torch.rand(2, *shape, 2, generator=generator)
        return torch.cat([corner, corner + side + 0.01], -1)

    samples = [Sample(torch.zeros(1), boxes(length)) for length in lengths]
    predicted = boxes(len(lengths), 300)
    expected = exact(predicted, samples)
    assert (expected[0] == 0) == (not sum(lengths))
    for way in ways(300):
        found = value_and_gradient(way, predicted, samples)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(
                one, other.float(), rtol=2e-5, atol=1e-7, msg=lambda said, way=way: f"{way.name}: {said}"
            )


def test_no_images() -> None:
    """A loader never gives such a batch; a process among several may have none left."""
    predicted = torch.zeros(0, SLOTS, 4, requires_grad=True)
    empty = autogen.ragged(torch.zeros(0, 4), [0])
    lengths = torch.zeros(0, dtype=torch.int64)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (face_boxes.naive, ([],)),
        (face_boxes.padded, (torch.zeros(0, SLOTS, 4),)),
        (face_boxes.generated, (torch.zeros(0, SLOTS, 4),)),
        (face_boxes.skipping, (torch.zeros(0, SLOTS, 4), lengths)),
        (face_boxes.ragged, (empty,)),
    ]
    for loss, targets in calls:
        assert loss(predicted, *targets).item() == 0, loss
