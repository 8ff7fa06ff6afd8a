"""Rows too long for the chip: the looped kernels, forced on short rows, and once on a long one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

import autogen.losses
from autogen import explain
from autogen.tiling import tiler as tiling
from tests.interpret.agreement import agree
from tests.interpret.compare import Call, check
from tests.interpret.samples import Samples

STEP = 64
# Seven steps of a loop and a tail; rows that begin anywhere, and at multiples of 16 bytes.
C = 7 * STEP + 13
ALIGNED = C + 3
N = 3
inf, nan = float("inf"), float("nan")


@pytest.fixture
def short_of_room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No row of more than STEP elements fits on the chip, and a loop takes as many at a time."""
    monkeypatch.setattr(tiling, "MAX_RESIDENT", STEP)
    cut, launch = tiling.Tiler._cut, GridExecutor.__call__
    steps: set[int] = set()

    def small(self: tiling.Tiler, config: tiling.Config, extents: tiling.Extents) -> tiling.Tiling:
        found = cut(self, config, extents)
        tiles = {name: min(tile, STEP) if name == "COLS" else tile for name, tile in found.tiles}
        return replace(found, tiles=tuple(tiles.items())) if found.variant.looped else found

    def noted(executor: GridExecutor, *args: Any, **kwargs: Any) -> Any:
        given, variables = {**dict(zip(executor.arg_names, args, strict=False)), **kwargs}, _variables(executor)
        if "first_col" in variables or ("first_lane" in variables and "col_tiles" not in variables):
            steps.add(given["COLS"])
        return launch(executor, *args, **kwargs)

    monkeypatch.setattr(tiling.Tiler, "_cut", small)
    monkeypatch.setattr(GridExecutor, "__call__", noted)
    yield
    if not request.config.option.emulate:
        assert steps and max(steps) <= STEP, "rows are not walked in steps"


def _variables(executor: GridExecutor) -> tuple[str, ...]:
    return executor.fn.__code__.co_varnames


def logits(special: str, dtype: torch.dtype = torch.float32, *shape: int) -> Tensor:
    """Rows of logits that are hard on an online softmax."""
    x = Samples(torch.float64).real(*(shape or (N, C))) * 3
    first, last = x[0], x[-1]
    match special:
        case "some -inf":
            x[:, ::3] = -inf
        case "-inf prefix":
            first[: 2 * STEP + 5] = -inf  # two whole steps and a part
        case "-inf but one":
            first[:] = -inf
            first[C - 1] = 1.0
        case "all -inf":
            first[:] = -inf
        case "+inf":
            first[5] = inf
        case "huge":
            x *= 1e4
        case "rising":
            x = x.sort(1).values * 50
        case "falling":
            x = x.sort(1, descending=True).values * 50
        case "nan first":
            first[0] = nan
        case "nan last":
            last[C - 1] = nan
        case "constant":
            x[:] = -1e4
    return x.to(dtype)


SPECIAL = (
    "plain", "some -inf", "-inf prefix", "-inf but one", "all -inf", "+inf", "huge", "rising", "falling", "nan first",
    "nan last", "constant",
)  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weight": {"weight": Samples(torch.float64).probability(ALIGNED)},
    "smoothing": {"label_smoothing": 0.1},
    "both": {"weight": Samples(torch.float64).probability(ALIGNED), "label_smoothing": 0.1},
}


def _labels() -> Tensor:
    found = Samples().label(C, N)
    found[0] = C - 1
    return found


def in_dtype(options: dict[str, Any], dtype: torch.dtype, columns: int = C) -> dict[str, Any]:
    return {name: each[:columns].to(dtype) if isinstance(each, Tensor) else each for name, each in options.items()}


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("reduction", "columns"), [("mean", C), ("none", C), ("mean", ALIGNED)])
def test_cross_entropy(special: str, form: str, reduction: str, columns: int) -> None:
    options = {**in_dtype(FORMS[form], torch.float32, columns), "reduction": reduction}
    x = logits(special, torch.float32, N, columns)
    check(Call("CrossEntropyLoss", options, (x, _labels())))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", FORMS)
def test_class_probabilities(special: str, form: str) -> None:
    target = Samples().probability(N, C)
    target = target / target.sum(1, keepdim=True)
    wanted = (True, True, False)
    check(Call("CrossEntropyLoss", in_dtype(FORMS[form], torch.float32), (logits(special), target), wanted))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_dtypes(dtype: torch.dtype, form: str) -> None:
    options = in_dtype(FORMS[form], dtype)
    check(Call("CrossEntropyLoss", options, (logits("plain", dtype), _labels()), (True,)))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("form", FORMS)
def test_classes_apart_in_memory(form: str) -> None:
    """Neighbouring rows, not neighbouring classes, are neighbours in memory."""
    target = Samples().label(C, 2, 5, 3)
    check(Call("CrossEntropyLoss", in_dtype(FORMS[form], torch.float32), (Samples().real(2, C, 5, 3), target)))


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_other_losses(reduction: str) -> None:
    s = Samples()
    x, target = s.real(N, C), s.label(C, N)
    wide = x.log_softmax(1), s.real(N, C).softmax(1)
    check(Call("NLLLoss", {"reduction": reduction}, (x, target)))
    check(Call("KLDivLoss", {"reduction": reduction}, wide))
    for p in (1, 2):
        check(Call("MultiMarginLoss", {"reduction": reduction, "p": p, "weight": s.probability(C)}, (x, target)))
    check(Call("MultiLabelSoftMarginLoss", {"reduction": reduction}, (x, s.probability(N, C))))
    for p in (1.0, 2.0, 3.0):
        check(Call("TripletMarginLoss", {"reduction": reduction, "p": p}, (x, s.real(N, C), s.real(N, C))))


OWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logsumexp": lambda x, m: m.squeeze(1) + (x - m).exp().sum(1).log(),
    "scaled": lambda x, m: (x.sin().nan_to_num() * (x - m).exp()).sum(1),
    "shifted": lambda x, m: (x - m).mean(1),
    "weighted": lambda x, m: (torch.arange(x.shape[1]) * (x - m)).sum(1),
}


@pytest.mark.usefixtures("short_of_room")
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("form", OWN)
def test_sums_that_follow_a_maximum(special: str, form: str) -> None:
    """Unlike torch's logsumexp, they are nan in a row of -inf."""
    agree(lambda x: OWN[form](x, x.amax(1, keepdim=True)), logits(special), launches=None)


def test_a_long_vocabulary() -> None:
    """40 000 columns loop without being forced to."""
    s = Samples()
    x, target = s.real(2, 40_000).requires_grad_(), s.label(40_000, 2)
    check(Call("CrossEntropyLoss", {}, (x, target)))
    report = explain(autogen.losses.CrossEntropyLoss(), x, target)
    assert report.forward is not None and report.backward is not None
    # One walk over the columns each way; backward needs no loop for it.
    assert report.forward.source.count("for first_col in") == 1
    assert "for " not in report.backward.source
