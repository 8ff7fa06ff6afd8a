"""Losses that are given lists of tensors of many lengths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from autogen import FallbackWarning, autogen_loss, explain, policy, trace_count
from autogen.capture.packing import MOST_LISTED

Loss = Callable[..., Tensor]
WIDTH = 9  # there is room for more than the longest; as torch tells a whole row from a slice, that is a capture
LENGTHS = [[5, 3, 2], [3, 0, 1], [1, 4, 0], [2, 1, 1], [0, 7, 5]]


def joined(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
    p = torch.cat([prediction[i, : len(t)] for i, t in enumerate(targets)])
    return (p - torch.cat(targets)).square().sum(1).mean()


def counted(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
    count = max(sum(len(t) for t in targets), 1)
    p = torch.cat([p[: len(t)] for p, t in zip(prediction, targets, strict=True)])
    return (p - torch.cat(targets)).abs().sum() / count


def padded(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
    target = pad_sequence(targets, batch_first=True)  # type: ignore[arg-type]
    lengths = torch.tensor([len(t) for t in targets])
    mask = torch.arange(target.shape[1])[None] < lengths[:, None]
    return ((prediction[:, : target.shape[1]] - target).square().sum(-1) * mask).sum() / mask.sum()


def padded_in_time(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
    target = pad_sequence(targets, padding_value=2.0)  # type: ignore[arg-type]
    return (prediction.transpose(0, 1)[: len(target)] - target).sigmoid().sum()


def twice(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
    """Parts that overlap: gradients are added up."""
    parts = [prediction[i, : len(t)] for i, t in enumerate(targets)]
    return (torch.cat([*parts, *parts]) * torch.cat([*targets, *targets]).exp()).sum()


def arguments(lengths: Sequence[int], *, wanted: bool = False) -> tuple[Tensor, list[Tensor]]:
    prediction = torch.randn(len(lengths), WIDTH, 4, requires_grad=True)
    return prediction, [torch.randn(n, 4, requires_grad=wanted) for n in lengths]


def of(count: int, lengths: Sequence[int]) -> list[int]:
    """Some lengths again and again, for `count` images."""
    return [lengths[i % len(lengths)] for i in range(count)]


def values(loss: Loss, prediction: Tensor, targets: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    own = [t.detach().to(dtype).requires_grad_(t.requires_grad) for t in (prediction, *targets)]
    value = loss(own[0], own[1:])
    wanted = [t for t in own if t.requires_grad]
    return [value.detach().double(), *(g.double() for g in torch.autograd.grad(value, wanted))]


def agree(ours: Loss, loss: Loss, lengths: Sequence[int], *, wanted: bool = False) -> None:
    prediction, targets = arguments(lengths, wanted=wanted)
    with policy("mandatory"):
        found = values(ours, prediction, targets, torch.float32)
    judge = values(loss, prediction, targets, torch.float64)
    torch.testing.assert_close(found, judge, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("loss", [counted, padded], ids=lambda loss: loss.__name__)
def test_lists_of_any_lengths_are_one_capture(loss: Loss) -> None:
    """Nothing in some of them, or one row, are no captures of their own."""
    ours = autogen_loss(loss)
    for lengths in LENGTHS:
        agree(ours, loss, of(12, lengths), wanted=True)
    assert trace_count(ours) == 1
    with policy("mandatory"):
        report = explain(ours, *arguments(of(12, LENGTHS[0]), wanted=True))
    assert report.path == "partial" and "of 12" in report.reason
    assert report.forward is not None and report.backward is not None
    assert (report.forward.launches, report.backward.launches) == (1, 1)
    agree(ours, loss, [0] * 12, wanted=True)  # kernels for nothing are others
    assert trace_count(ours) == 2


def test_few_tensors_of_any_lengths_are_one_capture_in_one_launch_each_way() -> None:
    ours = autogen_loss(joined)
    for lengths in LENGTHS:
        agree(ours, joined, lengths)
    assert trace_count(ours) == 1
    report = explain(ours, *arguments(LENGTHS[0]))
    assert report.forward is not None and report.backward is not None
    assert report.forward.torch_steps == ("cat of 3", "cat of 3")
    assert (report.forward.launches, report.backward.launches) == (1, 1)


@pytest.mark.parametrize("loss", [padded_in_time, twice], ids=lambda loss: loss.__name__)
def test_gradients_of_parts(loss: Loss) -> None:
    agree(autogen_loss(loss), loss, of(10, LENGTHS[1]), wanted=True)


def test_one_tensor_and_none() -> None:
    ours = autogen_loss(joined)
    agree(ours, joined, [3])
    agree(ours, joined, [0])
    with pytest.raises((RuntimeError, ValueError), match="empty"):
        ours(torch.zeros(0, WIDTH, 4), [])


def test_code_is_the_same_for_any_number_of_tensors() -> None:
    def source_of(count: int) -> str:
        ours = autogen_loss(joined)
        prediction, targets = arguments(of(count, LENGTHS[0]))
        report = explain(ours, prediction.detach(), targets)
        assert report.forward is not None
        return report.forward.source

    assert source_of(MOST_LISTED + 1) == source_of(24)


def test_all_that_torch_runs_is_told() -> None:
    def sorted_(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
        return (joined(prediction, targets) * torch.cat(targets).sort(0).values).sum()

    report = explain(autogen_loss(sorted_), *arguments(LENGTHS[0]))
    assert "cat of 3" in report.reason and "sort" in report.reason
    assert report.forward is not None and [each.split(",")[0] for each in report.forward.torch_steps][-1] == "sort"


def test_second_derivatives() -> None:
    prediction, targets = arguments(of(10, LENGTHS[0]))
    found = []
    for loss in (autogen_loss(joined), joined):
        (gradient,) = torch.autograd.grad(loss(prediction, targets), prediction, create_graph=True)
        found.append(torch.autograd.grad(gradient.square().sum(), prediction))
    torch.testing.assert_close(*found)


def test_the_largest_of_nothing_is_torchs_error() -> None:
    def largest(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
        return (torch.cat([prediction[i, : len(t)] for i, t in enumerate(targets)]) - torch.cat(targets)).max()

    ours = autogen_loss(largest)
    agree(ours, largest, of(10, LENGTHS[1]))
    with pytest.raises(RuntimeError, match="max"):
        ours(*arguments([0] * 10))


@pytest.mark.parametrize("count", [3, 12])
def test_lists_of_numbers_are_inputs(count: int) -> None:
    def masked(prediction: Tensor, lengths: Sequence[int]) -> Tensor:
        mask = torch.arange(prediction.shape[1])[None] < torch.tensor(lengths)[:, None]
        return (prediction.square().sum(-1) * mask).sum() / mask.sum().clamp(min=1)

    ours = autogen_loss(masked)
    for lengths in LENGTHS:
        x = torch.randn(count, WIDTH, 4)
        with policy("mandatory"):
            found = ours(x, of(count, lengths))
        torch.testing.assert_close(found.double(), masked(x.double(), of(count, lengths)), rtol=2e-6, atol=1e-6)
    assert trace_count(ours) == 1


def test_tensors_that_kernels_see_as_well_are_of_any_length() -> None:
    def both(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
        joined = torch.cat([prediction[i, : len(t)] for i, t in enumerate(targets)]) * torch.cat(targets)
        return joined.sum() + sum(t.exp().sum() for t in targets)

    ours = autogen_loss(both)
    for lengths in ([5, 1], [3, 1], [6, 1]):
        agree(ours, both, lengths, wanted=True)
    assert trace_count(ours) == 1


def test_what_comes_before_in_place_operations_stays_before() -> None:
    def written(prediction: Tensor, targets: Sequence[Tensor]) -> Tensor:
        rows = prediction * 1
        rows[:, 0] = 3.0
        return (torch.cat([rows[i, : len(t)] for i, t in enumerate(targets)]) - torch.cat(targets)).square().sum()

    agree(autogen_loss(written), written, [3, 1])


def test_long_loops_are_left_to_torch() -> None:
    def looped(prediction: Tensor, targets: Sequence[Tensor]) -> Any:
        total: Any = 0.0
        for p, t in zip(prediction, targets, strict=True):
            for scale in (1.0, 2.0, 3.0, 4.0):
                total = total + (p[: len(t)] - t * scale).abs().sigmoid().square().sum()
        return total

    ours = autogen_loss(looped)
    random.seed(0)
    prediction, targets = arguments([random.randrange(WIDTH) for _ in range(16)])
    with pytest.warns(FallbackWarning, match="a loop over them"):
        ours(prediction, targets)
    assert trace_count(ours) == 0
    torch.testing.assert_close(ours(prediction, targets), looped(prediction, targets))
