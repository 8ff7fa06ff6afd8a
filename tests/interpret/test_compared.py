"""Values that are compared with their own extremes, where several kernels compute them: torch computes them once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.interpret.agreement import agree, draw


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def standard(x: Tensor) -> Tensor:
    return centred(x) / x.std(0)


def largest_both_ways(x: Tensor) -> Tensor:
    v = centred(x)
    return (v.amax(0) * v.amax(1)[:, None]).sum()


def least_both_ways(x: Tensor) -> Tensor:
    v = centred(x)
    return (v.amin(0) * v.amin(1)[:, None]).sum()


def places(x: Tensor) -> Tensor:
    v = standard(x)
    return (v.amax(0) * v.argmax(1)[:, None]).sum()


def elements(x: Tensor) -> Tensor:
    v = centred(x)
    return torch.where(v == v.max(), 3 * v, 0).sum() + torch.where(v <= v.amin(1, keepdim=True), v * v, 0).sum()


def distance(x: Tensor) -> Tensor:
    v = centred(x)
    return ((v - v.amax(1, keepdim=True)).abs() * v.amax(0)).sum()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    each.__name__: each for each in (largest_both_ways, least_both_ways, places, elements, distance)
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_value_meets_its_extreme(name: str) -> None:
    agree(LOSSES[name], draw("real", 130, 131), launches=None)


def hard(x: Tensor) -> Tensor:
    v = (x * 1.3).abs()
    return (v * (v >= v.flatten().topk(3).values[-1])).sum()


def middle(x: Tensor) -> Tensor:
    v = (x * 1.3).square().mean(1)
    return torch.where(v == v.median(), 3 * v, 0).sum()


def largest_probabilities(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return (p.t() * (p >= p.topk(2, -1).values[:, -1:]).t()).sum()


def written_largest(x: Tensor) -> Tensor:
    v = (x * 1.3).sum(1)
    return v.scatter_reduce(0, v.argsort(), v * 2, "amax").sum()


RETURNED = (hard, middle, largest_probabilities, written_largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("loss", RETURNED, ids=lambda loss: loss.__name__)
def test_a_value_meets_what_torch_has_made_of_it(loss: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    agree(loss, draw("real", 33, 17, dtype=dtype), launches=None)


def _scores(x: Tensor) -> Tensor:
    return (x * (1 - torch.eye(x.shape[0], dtype=x.dtype))).sum(1)


WITH_ITSELF: dict[str, Callable[[Tensor], Tensor]] = {
    "equal": lambda s: (s[:, None] == s[None]).sum(),
    "as great": lambda s: (s[:, None] >= s[None]).sum(1),
    "the larger": lambda s: torch.maximum(s[:, None], s[None]).mean(),
    "logarithms of differences": lambda s: torch.where(s[:, None] != s[None], (s[:, None] - s[None]).abs(), 1).log(),
    "signs": lambda s: (s[:, None] - s[None]).sign().sum(1) * s,
}
STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(1) + 0 * x.sum(0),
    "without the diagonal": _scores,
    "mean": lambda x: x.mean(1) + 0 * x.sum(0),
    "logsumexp": lambda x: x.logsumexp(1) + 0 * x.sum(0),
    "of planes": lambda x: x.unflatten(1, (-1, 1)).square().sum((1, 2)) + 0 * x.sum(0),
}


@pytest.mark.parametrize("n", [3, 9, 20, 33])
@pytest.mark.parametrize("how", WITH_ITSELF)
@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_statistic_of_a_square_is_compared_with_itself(statistic: str, how: str, n: int) -> None:
    """It is the same number along both axes, to the last bit."""

    def loss(x: Tensor) -> Tensor:
        return WITH_ITSELF[how](STATISTICS[statistic](x))

    agree(loss, draw("real", n, n), launches=None)


def test_a_statistic_of_planes_is_compared_within_these() -> None:
    def loss(x: Tensor) -> Tensor:
        s = x.sum(1)
        return (s[:, :, None] >= s[:, None]).sum(2) * s

    agree(loss, draw("real", 9, 7, 9), launches=None)


def _apart(x: Tensor) -> Tensor:
    return (x[:, :, None] - x[:, None]).square().sum(-1)


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 12, 36, 120])
@pytest.mark.parametrize("width", [5, 33])
def test_the_farthest_of_each_group(n: int, width: int) -> None:
    """Seen as groups by a view, distances are not looked for as they are added up, and so are stored."""

    def loss(x: Tensor) -> Tensor:
        return _apart(x.view(-1, 3, x.shape[1])).amax(2).mean()

    for seed in range(3):
        agree(loss, draw("real", n, width, seed=seed), launches=None)


def _hardest(x: Tensor) -> Tensor:
    """As a triplet loss with mining within a batch has it, in one matrix of distances."""
    square = x.square().sum(1, keepdim=True).expand(len(x), len(x))
    apart = (square + square.t() - 2 * (x @ x.t())).clamp(min=1e-12).sqrt()
    is_same = (torch.arange(len(x)) % 3)[:, None] == torch.arange(len(x)) % 3
    return apart.where(is_same, 0).amax(1) - apart.where(~is_same, torch.inf).amin(0)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: _hardest(x).add(0.3).relu().mean(),
        lambda x: torch.stack([_hardest(x)[k].exp() for k in (0, 2, 3)]).mean(),
        lambda x: x.mean().sigmoid().maximum(x.detach().amax(-1)).mean(),
        lambda x: (x.detach().mean().sigmoid().maximum(x.amax(-1)) * x.amax(1)).mean(),
    ],
    ids=["hardest", "hardest of some", "one sum and extremes", "extremes and one sum"],
)
@pytest.mark.parametrize("n", [6, 40])
def test_sums_that_are_seen_in_two_ways(loss: Callable[[Tensor], Tensor], n: int) -> None:
    agree(loss, draw("real", n, 5), launches=None)


def test_the_farthest_of_groups_that_are_given() -> None:
    for shape in ((2, 3, 5), (4, 6, 9)):
        agree(lambda x: _apart(x).amax(2).mean(), draw("real", *shape), launches=None)
