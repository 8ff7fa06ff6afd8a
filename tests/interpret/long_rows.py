"""Treat short rows as long ones: tiles of few columns, and inputs that are hard on running sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import GridExecutor

from autogen.tiling import tiler as tiling
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
