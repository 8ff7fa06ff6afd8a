"""Launch parameters: whatever the sizes, every element is in some tile, and tiles are what Triton takes."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import autogen.scheduling.launches.kernel
from autogen.ir.sizes import next_power_of_2
from autogen.runtime.launch import Launcher
from autogen.scheduling.launches.kernel import MAX_IN_ONE_PROGRAM
from autogen.tiling.horizontal import HorizontalTiler
from autogen.tiling.space import Space
from autogen.tiling.tiler import (
    FEW_PROGRAMS,
    HELD,
    INT32_MAX,
    MOST_PROGRAMS,
    MOST_TILES,
    READ_ONCE,
    Tiler,
    Tiling,
    alignment,
    strided,
)
from tests.unit.pipeline import Loss, floats, plan_of, weighted

X = floats(3, 4)


class Tiled:
    """The forward kernel of a loss of (N, C) tensors, to be tiled for any N and C."""

    def __init__(self, loss: Loss, *args: Any) -> None:
        plan, self.sizes = plan_of(loss, *args)
        (self.kernel,) = plan.forward
        self.space = Space(self.kernel)
        self.tiler = Tiler(self.kernel, self.space)

    def tiling(self, n: int, c: int) -> Tiling:
        return self.tiler.tiling({**self.sizes, "N": n, "C": c})


LOSSES: dict[str, tuple[Loss, tuple[Any, ...]]] = {
    "flat": (nn.MSELoss(), (X, X.detach())),
    "tiled": (weighted, (X, X.detach().sigmoid(), X[0].detach())),
    "rows": (nn.CrossEntropyLoss(), (X, torch.tensor([0, 1, 2]))),
    "adjacent rows": (lambda x: x.logsumexp(0), (X,)),
}


@functools.cache
def tiled(name: str) -> Tiled:
    """One of `LOSSES`, in double precision."""
    loss, args = LOSSES[name]
    return Tiled(loss, *args)


EDGES = [2**k + d for k in range(6, 20) for d in (-1, 0, 1)]
SIZES = st.one_of(st.integers(0, 70), st.integers(0, 2**17), st.sampled_from(EDGES))


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


@pytest.mark.parametrize("name", LOSSES)
@given(SIZES, SIZES)
def test_tiles_cover_all_elements(name: str, n: int, c: int) -> None:
    tiling = tiled(name).tiling(n, c)
    tiles = dict(tiling.tiles)
    rows, columns = (c, n) if name == "adjacent rows" else (n, c)
    assert tiling.programs >= 1
    if name == "flat":
        _assert_covered(tiling, max(1, -(-n * c // tiles["BLOCK"])))
        return
    row_tiles = -(-rows // tiles["ROWS"])
    if name == "tiled":
        _assert_covered(tiling, row_tiles * -(-columns // tiles["COLS"]))
        return
    assert tiling.variant.looped or tiles["COLS"] >= columns
    _assert_covered(tiling, row_tiles)


SCANS: dict[str, Loss] = {
    "along rows": lambda x: x.cumsum(1).square().mean(),
    "down columns": lambda x: x.cumsum(0).square().mean(),
    "of pairs": lambda x: (x[:, :1] - x[:1]).cumsum(1).square().mean(),
}


@pytest.mark.parametrize("name", SCANS)
@given(st.integers(1, 2**17), st.integers(1, MAX_IN_ONE_PROGRAM))
def test_a_scan_has_whole_rows(name: str, rows: int, columns: int) -> None:
    """Few of them, but where neighbouring columns are adjacent: threads exchange a tile of them in shared memory."""
    tiling = scanned(name).tiling(*((columns, rows) if name == "down columns" else (rows, columns)))
    tiles = dict(tiling.tiles)
    assert not tiling.variant.looped and tiles["COLS"] >= columns
    most = MAX_IN_ONE_PROGRAM if name == "along rows" else max(HELD // 2, tiles["COLS"])
    assert tiles["ROWS"] * tiles["COLS"] <= most
    assert tiling.programs * tiles["ROWS"] >= rows or tiling.variant.strided


@functools.cache
def scanned(name: str) -> Tiled:
    """One of `SCANS`, in double precision."""
    return Tiled(SCANS[name], X)


def _assert_covered(tiling: Tiling, tiles: int) -> None:
    """That programs have so many tiles, each about as many, and no more of them than is worth it."""
    if not tiling.variant.strided:
        assert tiling.programs == max(1, tiles)
        return
    most, each = MOST_PROGRAMS << (tiling.num_warps == 1), -(-tiles // tiling.programs)
    assert 1 < each <= MOST_TILES
    assert tiling.programs == -(-tiles // each), "a program would have nothing to do"
    assert tiling.programs <= most or each == MOST_TILES
    assert tiles > most or (each <= 4 // tiling.num_warps and tiling.programs <= FEW_PROGRAMS * 2)


@pytest.mark.parametrize(
    ("tiles", "num_warps", "programs"),
    [
        (0, 1, 1),
        (2048, 1, 2048),
        (2049, 1, 1025),
        (8192, 1, 2048),
        (32768, 1, 8192),
        (65536, 1, 8192),
        (262144, 1, 16384),
        (4096, 2, 2048),
        (4096, 8, 4096),
        (32768, 8, 4096),
    ],
)
def test_programs_that_draw_tickets(tiles: int, num_warps: int, programs: int) -> None:
    assert strided(tiles, num_warps) == programs


@pytest.mark.parametrize("name", LOSSES)
@given(SIZES, SIZES)
def test_tiles_are_what_triton_takes(name: str, n: int, c: int) -> None:
    tiling = tiled(name).tiling(n, c)
    tiles = dict(tiling.tiles)
    assert all(is_power_of_two(tile) for tile in tiles.values())
    assert is_power_of_two(tiling.num_warps) and 1 <= tiling.num_warps <= 32
    held = math.prod(tiles.get(tile, 1) for tile in ("BLOCK", "ROWS", "COLS"))
    assert held <= 32 * 1024  # what a program has on chip
    assert held // (32 * tiling.num_warps) <= 32  # what a thread has in registers
    if "PARTIALS" in tiles:
        assert tiles["PARTIALS"] >= min(tiling.programs, 512 * tiling.num_warps, 512 if name == "rows" else 4096)
        assert tiles["PARTIALS"] <= 16 * 32 * tiling.num_warps


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_sizes_give_the_same_tiling(name: str) -> None:
    other = Tiler(tiled(name).kernel, tiled(name).space)
    for n, c in [(3, 4), (1000, 1000), (2, 100_000)]:
        assert other.tiling({**tiled(name).sizes, "N": n, "C": c}) == tiled(name).tiling(n, c)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("n", [0, 1])
def test_nothing_and_one_element_take_one_program(name: str, n: int) -> None:
    assert tiled(name).tiling(n, 1).programs == tiled(name).tiling(1, n).programs == 1


def test_only_programs_that_draw_tickets_have_several_tiles() -> None:
    tilings = {name: tiled(name).tiling(10**6, 1000) for name in LOSSES}
    assert {name for name, tiling in tilings.items() if tiling.variant.strided} == {"flat", "tiled", "rows"}
    assert not tiled("rows").tiling(FEW_PROGRAMS, 1000).variant.strided
    assert tiled("rows").tiling(MOST_PROGRAMS * 2, 1000).programs == MOST_PROGRAMS
    assert not tiled("flat").tiling(MOST_PROGRAMS, 2048).variant.strided
    assert tiled("flat").tiling(MOST_PROGRAMS * 2, 2048).programs == MOST_PROGRAMS


def test_one_block_has_warps_for_its_largest_tile() -> None:
    """No value has all axes, and threads beyond its elements would read them again."""
    own = Tiled(lambda x, y: (x.square().sum(1) * y.square().sum(1)).mean(), floats(64, 128), floats(64, 8))
    assert own.kernel.one_block
    assert own.tiler.tiling(own.sizes).num_warps == 64 * 128 // 512


class TestParts:
    @staticmethod
    @functools.cache
    def launcher() -> tuple[HorizontalTiler, list[Tiler], dict[str, int]]:
        """A flat part and one of whole rows, of tensors of (N, C) and (M, K)."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 0)
            plan, sizes = plan_of(lambda x, y: x.exp().mean() + y.logsumexp(1).sum(), floats(3, 4), floats(5, 6))
        (kernel,) = plan.forward
        return HorizontalTiler(kernel), [Tiler(part, Space(part), is_part=True) for part in kernel.parts], sizes

    @given(SIZES, SIZES, SIZES, SIZES)
    def test_are_cut_up_as_by_themselves_for_the_most_warps(self, n: int, c: int, m: int, k: int) -> None:
        tiler, parts, sizes = self.launcher()
        flat, rows = (part.default({**sizes, "N": n, "C": c, "y_size0": m, "y_size1": k}) for part in parts)
        sizes = {**sizes, "N": n, "C": c, "y_size0": m, "y_size1": k}
        config, tiling = tiler.default(sizes), tiler.tiling(sizes)
        tiles = dict(tiling.tiles)
        assert tiling.num_warps == max(flat.num_warps, rows.num_warps)
        assert tiles["BLOCK_1"] == dict(flat.tiles)["BLOCK"] * tiling.num_warps // flat.num_warps
        assert tiles["COLS_2"] == dict(rows.tiles)["COLS"]
        alone = [part.cut(own, sizes) for part, own in zip(parts, config.parts, strict=True)]
        assert tiling.programs == sum(each.programs for each in alone)
        assert tiling.variant.parts == tuple(each.variant for each in alone)
        assert tiling.variant.wide == any(each.variant.wide for each in alone)
        assert tiles["PARTIALS"] == max(dict(each.tiles)["PARTIALS"] for each in alone)

    def test_are_named_in_reports(self) -> None:
        tiler, _, sizes = self.launcher()
        assert str(tiler.default(sizes)) == "BLOCK 512, 4 warps | ROWS 8, COLS 8, 4 warps"


class TestWideOffsets:
    @pytest.mark.parametrize("name", LOSSES)
    def test_from_two_to_the_31_on(self, name: str) -> None:
        for n, c in [(2**31, 1), (1, 2**31), (2**16, 2**15), (2**20, 2**20)]:
            assert tiled(name).tiling(n, c).variant.wide

    @pytest.mark.parametrize("name", LOSSES)
    def test_not_before(self, name: str) -> None:
        for n, c in [(1, 1), (2**30, 1), (2**14, 2**16)]:
            assert not tiled(name).tiling(n, c).variant.wide

    def test_a_gap_in_memory_counts(self) -> None:
        gapped = Tiled(lambda x: x.exp().sum(), floats(3, 8).detach()[:, :4])
        assert gapped.tiler.tiling({**gapped.sizes, "N": 2, "C": 2, "x_stride0": 2**31}).variant.wide

    def test_what_only_the_last_block_reads_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 64)
        scale = floats(2, 8).detach()[:, ::2]
        loss = Tiled(lambda x, scale: (x.softmax(1).sum(2) * scale).log().sum(), floats(2, 4, 30), scale)
        assert loss.kernel.last_block and all(load.attrs[0].name != "scale" for load in loss.kernel.loads())
        for stride in (2**20, 2**30):
            tiling = loss.tiler.tiling({**loss.sizes, "scale_stride1": stride})
            assert tiling.variant.wide == (stride == 2**30)

    def test_the_end_of_the_last_block_fits_into_the_offsets(self) -> None:
        tiling = tiled("flat").tiling(INT32_MAX, 1)
        assert tiling.variant.wide or tiling.programs * dict(tiling.tiles)["BLOCK"] <= INT32_MAX


def test_rows_that_fit_are_resident_and_longer_ones_are_looped() -> None:
    looped = [tiled("rows").tiling(8, 2**k).variant.looped for k in range(4, 20)]
    assert not looped[0] and looped[-1]
    assert looped == sorted(looped), "once too long, always too long"


def test_double_precision_halves_what_fits() -> None:
    def longest(x: torch.Tensor) -> int:
        rows = Tiled(lambda x: (x - x.mean(1, keepdim=True)).square().sum(), x)
        return max(2**k for k in range(4, 20) if not rows.tiling(8, 2**k).variant.looped)

    assert longest(X.detach().float()) == 2 * longest(X.detach())


def test_rows_that_are_read_once_are_walked_earlier() -> None:
    twice = Tiled(lambda x: (x - x.mean(1, keepdim=True)).square().sum(), X.detach().float())
    once = Tiled(nn.CrossEntropyLoss(), X.detach().float(), torch.tensor([0, 1, 2]))
    assert [rows.tiling(8, READ_ONCE).variant.looped for rows in (twice, once)] == [False, False]
    assert [rows.tiling(8, READ_ONCE + 1).variant.looped for rows in (twice, once)] == [False, True]


@given(st.integers(0, 2**40))
def test_next_power_of_2(n: int) -> None:
    power = next_power_of_2(n)
    assert is_power_of_two(power) and power >= n and (power == 1 or power // 2 < n)


@given(st.integers(0, 2**40), st.sampled_from((2, 4, 8, 16)))
def test_alignment_divides(n: int, access: int) -> None:
    found = alignment(n, access)
    assert n % found == 0 and is_power_of_two(found) and found in {*range(access + 1), 16}
    assert found >= access or n % (2 * found) != 0


def test_whole_rows_are_said_to_fill_a_tile_where_they_do() -> None:
    """`ALIGN` is `COLS` for these alone: a kernel takes that for the number of columns."""
    for columns in (*range(600), 1000, 1024, 2000, 2048):
        tiles = dict(tiled("rows").tiling(100, columns).tiles)
        assert (tiles.get("ALIGN") == tiles["COLS"]) == (columns == tiles["COLS"]), columns
    for name, columns in (("rows", 2**17), ("tiled", 256)):
        assert dict(tiled(name).tiling(100, columns).tiles)["ALIGN"] == 16, "walked in steps, or not of whole rows"


@pytest.mark.parametrize(("name", "most"), [("flat", 10), ("tiled", 9), ("rows", 6), ("adjacent rows", 9)])
def test_sizes_share_kernels(name: str, most: int) -> None:
    """A batch of another size is hardly ever another kernel, which Triton would compile for a second."""
    case = tiled(name)
    launcher = Launcher(case.kernel, plan_of(*LOSSES[name][:1], *LOSSES[name][1])[0].provenance)
    for n in (*range(2, 300), *range(300, 40_000, 111)):
        launcher.prepare({**case.sizes, "N": n, "C": 300}, torch.device("cpu"))
    assert sum(len(each.compiled) for each in launcher._written.values()) <= most
