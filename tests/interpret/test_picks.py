"""Losses that pick from what they have reduced: the work of their kernels grows with the rows, not their square."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import autogen_loss, explain
from tests.interpret.agreement import agree, draw, labels

C = 5


def _counts(y: Tensor, like: Tensor) -> Tensor:
    return F.one_hot(y, C).sum(0).to(like.dtype)


def balanced(x: Tensor, y: Tensor) -> Tensor:
    return ((1 / _counts(y, x).clamp(min=1))[y] * F.cross_entropy(x, y, reduction="none")).sum()


def weighted(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x, y, weight=1 / _counts(y, x).clamp(min=1))


def scattered(x: Tensor, y: Tensor) -> Tensor:
    counts = torch.zeros(C, dtype=x.dtype).scatter_add_(0, y, torch.ones(len(y), dtype=x.dtype))
    return F.cross_entropy(x, y, weight=1 / counts.clamp(min=1))


def expanded(x: Tensor, y: Tensor) -> Tensor:
    weight = (1 / _counts(y, x).clamp(min=1)).expand(len(y), C)
    return (weight.gather(1, y[:, None])[:, 0] * F.cross_entropy(x, y, reduction="none")).mean()


def centers(x: Tensor, y: Tensor) -> Tensor:
    one_hot = F.one_hot(y, C).to(x.dtype)
    center = (one_hot[:, :, None] * x[:, None]).sum(0) / one_hot.sum(0)[:, None].clamp(min=1)
    return (x - center[y]).square().sum(1).mean()


def group_means(x: Tensor, y: Tensor) -> Tensor:
    each = x.square().mean(1)
    total = torch.zeros(C, dtype=x.dtype).index_add(0, y, each)
    return (each - (total / _counts(y, x).clamp(min=1))[y]).abs().mean()


def load(x: Tensor, y: Tensor) -> Tensor:
    share = x.softmax(1)
    return (share.mean(0).gather(0, y) * share.gather(1, y[:, None])[:, 0]).sum()


def twice(x: Tensor, y: Tensor) -> Tensor:
    """What is picked is reduced, and picked from again."""
    means = torch.zeros(C, dtype=x.dtype).index_add(0, y, x.mean(1))
    others = torch.zeros(C, dtype=x.dtype).index_add(0, y.flip(0), means[y].square())
    return (x.sum(1) * others[y]).mean()


LOSSES = (balanced, weighted, scattered, expanded, centers, group_means, load, twice)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [1, 7, 600])
def test_as_torch(loss: Callable[[Tensor, Tensor], Tensor], rows: int) -> None:
    agree(loss, draw("real", rows, C), labels(C, rows), launches=None)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_kernel_compares_all_rows_with_all(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    report = explain(autogen_loss(loss), draw("real", 20000, C), labels(C, 20000))
    assert report.forward is not None and report.backward is not None
    for function in (report.forward.source + report.backward.source).split("@triton.jit")[1:]:
        walked = [line.split() for line in function.splitlines() if line.strip().startswith(("n_rows: ", "n_cols: "))]
        assert walked != [["n_rows:", "N"], ["n_cols:", "N"]]


def test_what_is_picked_from_a_matrix_is_computed_where_it_is_used() -> None:
    """As many elements as rows: of all distances, those that are chosen."""

    def chosen(x: Tensor, y: Tensor) -> Tensor:
        distances = (x[:, None] - x[None]).square().sum(-1)
        return distances.gather(1, y[:, None]).mean()

    agree(chosen, draw("real", 40, C), labels(40, 40), launches=None)
    report = explain(autogen_loss(chosen), draw("real", 40, C), labels(40, 40))
    assert report.forward is not None and report.forward.launches == 1


AT_ONE: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "of another tensor": (
        lambda x, w, k: x.square().mean(1) * w[:, k],
        (draw("real", 3, 4, 5), draw("real", 3, 6), torch.tensor([2])),
    ),
    "of the same": (lambda x, k: x.sum(1) * x[:, k, 0], (draw("real", 3, 4, 5), torch.tensor([2]))),
    "gathered": (
        lambda x, k: x.sum(1) * x[:, :, 0].gather(1, k.expand(3, 1)),
        (draw("real", 3, 4, 5), torch.tensor([[2]])),
    ),
    "selected": (
        lambda x, k: x.sum(1) * x.index_select(1, k)[:, 0],
        (draw("real", 3, 4, 5), torch.tensor([2])),
    ),
}


@pytest.mark.parametrize("case", AT_ONE)
def test_one_place_for_all_rows(case: str) -> None:
    """A place that is computed once, in a table that has rows."""
    loss, inputs = AT_ONE[case]
    agree(loss, *inputs, launches=None)


def test_a_place_found_in_a_row_that_all_share() -> None:
    """One number, found by every program in a whole row, from where each row of its tile reads the same."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return (b.mean(1) - b.take_along_dim(a.argmax(1, True), 1)[:, 0, 1:]).abs()

    shared = draw("real", 1, 20_000, 2).expand(2, 20_000, 2)
    agree(loss, shared, draw("real", 2, 20_000, 2, seed=1), launches=None)


def test_a_number_from_a_place_found_in_a_row() -> None:
    """The result itself, beside a gradient that has rows."""

    def loss(a: Tensor) -> Tensor:
        largest = torch.meshgrid(a.flatten(), a.flatten(), indexing="ij")[1].topk(1, 1).values
        return largest[largest.argmax(0)].mean()

    agree(loss, draw("real", 12, 2), launches=None)


@pytest.mark.parametrize("chosen", [0, 1, 2, 4])
def test_as_many_places_as_a_mask_chooses(chosen: int) -> None:
    def loss(x: Tensor, mask: Tensor) -> Tensor:
        return x.square().mean(1) * x[:, mask.nonzero().squeeze(1), 0].sum(1, keepdim=True)

    agree(loss, draw("real", 3, 4, 5), torch.arange(4) < chosen, launches=None)
