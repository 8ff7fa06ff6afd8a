"""Losses of torch whose margins and the like vary from call to call: one trace, and torch's gradients, errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import autogen.losses
from autogen import autogen_loss, explain, trace_count

Loss = Callable[[Tensor, Tensor, float], Tensor]


def _labels(y: Tensor) -> Tensor:
    return y.argmax(1).masked_fill(y[:, 0] > 1, -100)


LOSSES: dict[str, Loss] = {
    "margin_ranking": lambda x, y, v: F.margin_ranking_loss(x, y, y.sign(), margin=v),
    "margin_ranking, none": lambda x, y, v: F.margin_ranking_loss(x, y, y.sign().long(), v, reduction="none"),
    "hinge_embedding": lambda x, y, v: F.hinge_embedding_loss(x, y.sign().where(y < 1, 0), margin=v, reduction="sum"),
    "cosine_embedding": lambda x, y, v: F.cosine_embedding_loss(x, y, y[:, 0].sign().long(), margin=v / 3),
    "cosine_embedding, one": lambda x, y, v: F.cosine_embedding_loss(x[0], y[0], y[0, 0].sign(), margin=v / 3),
    "triplet_margin": lambda x, y, v: F.triplet_margin_loss(x, y, y.roll(1, 0), margin=v),
    "triplet_margin, swap": lambda x, y, v: F.triplet_margin_loss(
        x, y, y.roll(1, 0), margin=v, p=3, eps=0.1, swap=True, size_average=False
    ),
    "huber": lambda x, y, v: F.huber_loss(x, y, delta=v),
    "huber of what is read": lambda x, y, v: F.huber_loss(x, y, delta=v * (x - y).detach().abs().max().item()),
    "smooth_l1": lambda x, y, v: F.smooth_l1_loss(x, y, beta=v, reduce=False),
    "smooth_l1 of a size": lambda x, y, v: F.smooth_l1_loss(x, y, beta=1 / len(x)) * v,
    "smoothed": lambda x, y, v: F.cross_entropy(x, _labels(y), label_smoothing=v / 3),
    "smoothed, weights": lambda x, y, v: F.cross_entropy(x, _labels(y), y[0].abs(), label_smoothing=v / 3),
    "smoothed, sum": lambda x, y, v: F.cross_entropy(x, _labels(y), y[0].abs(), label_smoothing=v / 3, reduction="sum"),
    "smoothed, none": lambda x, y, v: F.cross_entropy(
        x.t()[None], _labels(y)[None], label_smoothing=v / 3, reduce=False
    ),
    "smoothed probabilities": lambda x, y, v: F.cross_entropy(x, y.softmax(1), y[0].abs(), label_smoothing=v / 3),
    "lerp": lambda x, y, v: torch.lerp(x, y, v / 3).square(),
    "lerp in place": lambda x, y, v: (x * 2).lerp_(y, v / 3).square(),
    "quantile": lambda x, y, v: torch.quantile((x - y).abs(), v / 3),
    "nanquantile": lambda x, y, v: (x - y).nanquantile(1 - v / 3, 1, keepdim=True, interpolation="lower"),
    "pairs": lambda x, y, v: (x @ y.t())[tuple(torch.triu_indices(len(x), len(x), 1))] * v,
    "a triangle": lambda x, y, v: (x @ y.t())[tuple(torch.tril_indices(len(x), len(x)))].square() * v,
    "linspace": lambda x, y, v: ((x - y).mean(1) * torch.linspace(-1, v, len(x))).square(),
}

if torch.__version__ < "2.12":  # where torch takes these with sizes that it knows alone
    del LOSSES["quantile"], LOSSES["nanquantile"]


def given(seed: int, rows: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = rows or 4 + seed % 3, 5
    return torch.randn(shape, generator=generator).requires_grad_(), torch.randn(shape, generator=generator)


@pytest.mark.parametrize("name", LOSSES)
def test_one_trace_for_all_numbers(name: str) -> None:
    theirs = LOSSES[name]
    ours = autogen_loss(theirs)
    for seed in range(6):
        x, y = given(seed)
        value = -0.1 if seed == 5 and name.startswith("smoothed") else 0.4 + 0.3 * seed
        found, wanted = ours(x, y, value), theirs(x.double(), y.double(), value)
        torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=2e-6)
        upstream = torch.randn_like(found)
        (gradient,) = torch.autograd.grad(found, x, upstream)
        (expected,) = torch.autograd.grad(wanted, x, upstream.double())
        torch.testing.assert_close(gradient, expected, rtol=5e-6, atol=2e-6)
        assert found.shape == theirs(x, y, value).shape
    assert explain(ours, x, y, value).path in ("generated", "partial")
    assert trace_count(ours) <= 4 + name.startswith("smoothed")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("triplet_margin", -1.0),
        ("huber", 0.0),
        ("smooth_l1", -1.0),
        ("smoothed", 3.5),
        ("smoothed probabilities", 3.5),
        *([("quantile", 3.5)] if "quantile" in LOSSES else []),
    ],
)
def test_numbers_that_torch_refuses(name: str, refused: float) -> None:
    theirs = LOSSES[name]
    ours = autogen_loss(theirs)
    for seed in range(4):
        ours(*given(seed), 0.5 + 0.1 * seed)
    for loss in (theirs, ours, ours):
        with pytest.raises((RuntimeError, ValueError)) as error:
            loss(*given(0), refused)
        assert type(error.value) in (RuntimeError, ValueError)
    x, y = given(3)
    torch.testing.assert_close(ours(x, y, 0.9), theirs(x, y, 0.9))


@pytest.mark.parametrize("name", ["huber", "smooth_l1", "smoothed"])
@pytest.mark.parametrize(
    "dtypes", [(torch.float64, torch.float64), (torch.float32, torch.float64), (torch.bfloat16,) * 2]
)
def test_dtypes(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    theirs = LOSSES[name]
    ours = autogen_loss(theirs)
    for seed in range(4):
        x, y = given(seed)
        x, y = x.detach().to(dtypes[0]), y.to(dtypes[1])
        for is_cast in (False, True):
            with torch.autocast("cpu", enabled=is_cast):
                try:
                    wanted = theirs(x, y, 0.5 + 0.25 * seed)
                except RuntimeError:
                    with pytest.raises(RuntimeError):
                        ours(x, y, 0.5 + 0.25 * seed)
                    continue
                found = ours(x, y, 0.5 + 0.25 * seed)
            tolerance = {"rtol": 2e-2, "atol": 2e-2} if torch.bfloat16 in dtypes else {}
            torch.testing.assert_close(found, wanted, **tolerance)


@pytest.mark.parametrize("name", ["huber", "smooth_l1"])
def test_gradients_of_differences(name: str) -> None:
    """Of nan, of infinities, at the threshold, and of differences that are small beside it."""
    theirs = LOSSES[name]
    ours = autogen_loss(theirs)
    x, y = torch.tensor([[math.nan, math.inf, -math.inf, 2.0, 0.5, -1.5, 1e-3, 0.3, -40.0], [0.0] * 9])
    x.requires_grad_()
    for threshold in (0.5, 0.75, 1.5, 1e5, 30.0):
        found, expected = (
            torch.autograd.grad((loss(x, y, threshold) * torch.linspace(1, 2, 9)).sum(), x) for loss in (ours, theirs)
        )
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
    assert explain(ours, x, y, threshold).path == "generated" and trace_count(ours) == 3


@pytest.mark.parametrize("theirs", [torch.lerp, lambda x, y, v: x.clone().lerp_(y, v)])
def test_weights_of_halves_are_not_rounded(theirs: Loss) -> None:
    ours = autogen_loss(lambda x, y, v: theirs(x, y, v))
    for weight in (0.3, 0.45, 0.6, 0.7):
        x = torch.linspace(1, 2, 50).half()
        y = x * (weight - 1) / weight  # of which little is left
        torch.testing.assert_close(ours(x, y, weight), theirs(x, y, weight), rtol=0, atol=1e-4)


def test_targets_of_integers() -> None:
    def theirs(x: Tensor, y: Tensor, v: float) -> Tensor:
        return F.huber_loss(x, y.long(), delta=v)

    ours = autogen_loss(theirs)
    for seed in range(4):
        torch.testing.assert_close(ours(*given(seed), 0.5 + seed), theirs(*given(seed), 0.5 + seed))
        with pytest.raises(RuntimeError, match="Found dtype Long but expected Float"):
            ours(*given(seed), 0.5 + seed).backward()


RANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "integers": lambda x: torch.linspace(0, 10, len(x), dtype=torch.int64) / 3 + x,
    "between tensors": lambda x: torch.linspace(x.min(), x.max(), len(x)) * x,
    "to a tensor": lambda x: torch.linspace(-1, x.sum(), len(x)) * x,
    "from many": lambda x: torch.linspace(x, 1, len(x)) * x,
    "to an out": lambda x: torch.linspace(0, 1, len(x), out=torch.empty(len(x))) * x,
    "places that are floats": lambda x: torch.triu_indices(len(x), 3, dtype=torch.float64).sum() * x,
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges_that_are_left_to_torch(name: str) -> None:
    ours = autogen_loss(RANGES[name])
    for seed in range(3):
        x = given(seed)[0][:, 0]
        found: list[Any] = []
        for loss in (ours, RANGES[name]):
            try:
                found.append((loss(x).detach(), *torch.autograd.grad(loss(x).sum(), x)))
            except (NotImplementedError, RuntimeError) as error:
                found.append(type(error))
        if isinstance(found[1], type):
            assert found[0] is found[1]
        else:
            torch.testing.assert_close(*found)


def test_sizes_that_differ_are_warned_of() -> None:
    def theirs(x: Tensor, y: Tensor, v: float) -> Tensor:
        return F.smooth_l1_loss(x, y[:1], beta=v)

    ours = autogen_loss(theirs)
    for seed in range(4):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.testing.assert_close(ours(*given(seed), 0.5 + seed), theirs(*given(seed), 0.5 + seed))
        assert any("target size" in str(each.message) for each in seen)


def test_a_margin_that_grows_in_a_module() -> None:
    ours, theirs = autogen.losses.TripletMarginLoss(), torch.nn.TripletMarginLoss()
    before: Any = None
    for seed in range(8):
        ours.margin = theirs.margin = 0.2 + 0.1 * seed
        x, y = given(seed, 6)
        torch.testing.assert_close(ours(x, y, y.roll(1, 0)), theirs(x, y, y.roll(1, 0)))
        before = trace_count(ours) if seed == 4 else before
    assert trace_count(ours) == before
