"""Launch parameters: a pure function of sizes, the same on every device and in every run.

| kernel                  | tile                                                          | warps |
|-------------------------|---------------------------------------------------------------|-------|
| flat                    | 1024 elements up to 2^18, 2048 up to 2^20, then 4096          | 4 - 8 |
| tiles                   | 2048 elements, as many of them columns as there are           | 4     |
| rows, columns adjacent  | whole rows while they fit on chip, several if they are short  | 4 - 32|
|                         | beyond that one row in steps of 4096 columns                  | 8     |
| chunks of results' rows | 2048 - 4096 elements; at most 1024 programs, each in a loop   | 4 - 32|
| one block               | every axis whole                                              | 4 - 32|
| rows, rows adjacent     | up to 128 rows; all columns while they fit, else steps of 32  | 4 - 8 |

A tile that needs more than 32 values per thread and tensor spills on real devices, which bounds what "fits" means;
double precision halves every tile. Flat kernels and tiles with a `lgamma`, or a derivative of it, have twice the warps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
import torch

from autogen import ir
from autogen.emission import Variant
from autogen.kernel import ROWS_ADJACENT, Kernel, Level
from autogen.sizes import Evaluator, magnitude, next_power_of_2
from autogen.space import Space

INT32_MAX = 2**31 - 1
MARGIN = 2**16  # a last block reaches beyond the last element, by less than this
MAX_RESIDENT = 32768
MAX_PARTIALS = 4096
MAX_PROGRAMS = 1024
MAX_SHARED = 2**18


@dataclass(frozen=True)
class Tiling:
    """How one launch is cut up."""

    variant: Variant
    tiles: tuple[tuple[str, int], ...]
    programs: int
    num_warps: int
    chunks: int = 1  # of the rows of a result, each for a program


# Ops of so many registers that a thread should have half as many elements.
HEAVY = frozenset({"lgamma", "digamma", "trigamma", "tetragamma"})


def alignment(n: int) -> int:
    """The largest power of two up to 16 that divides `n`: what every row then is aligned to, in elements."""
    return min(n & -n, 16) if n else 16


class Tiler:
    """The tilings of one kernel."""

    def __init__(self, kernel: Kernel, space: Space) -> None:
        elements = [node for node in kernel.loads() if kernel.level(node) == Level.ELEMENT]
        is_chunked = kernel.last_block is not None and kernel.last_block.chunked
        self._is_chunked = is_chunked
        self._is_flat = not kernel.columns and not is_chunked
        self._whole_rows = kernel.whole_rows
        self._keeps_columns = kernel.keeps_columns
        self._live = max(1, len(elements) + len(kernel.stores) - 1 + (len(kernel.totals) if is_chunked else 0))
        self._double = any(root.node.dtype == torch.float64 for root in kernel.roots)
        self._columns_adjacent = space.columns_adjacent
        nodes = ir.topological(root.node for root in kernel.roots)
        buffers = [node.attrs[0] for node in nodes if node.op == "load"] + [root.buffer for root in kernel.roots]
        extents = {sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)) + 1 for b in buffers if b.shape}
        extents |= {magnitude(node.attrs[0]) for node in nodes if node.op == "index" and node.axes}
        rows = [group.size for group in space.rows]
        kept = sympy.Mul(*(group.size for group in space.kept))
        columns = sympy.Mul(*(group.size for group in space.columns))
        self._sizes = Evaluator(
            [sympy.Mul(*rows), rows[-1] if rows else sympy.S.One, columns, kept, *sorted(extents, key=str)]
        )
        last = Space(kernel.last_block.kernel).columns if kernel.last_block else ()
        self._last_tiles = [group.tile for group in last]
        self._last = Evaluator([group.size for group in last]) if kernel.last_block else None
        self._has_totals = bool(kernel.totals) and kernel.last_block is None
        self._heavy = any(node.op in HEAVY for node in nodes)
        self._blocks = space.columns if kernel.one_block else None

    def tiling(self, sizes: Mapping[str, int]) -> Tiling:
        """The tiling for the given sizes."""
        rows, inner_rows, columns, kept, *extents = self._sizes(sizes)
        wide = max([kept * rows * columns, *extents]) > INT32_MAX - MARGIN
        if self._blocks is not None:
            return self._block(sizes, wide)
        if self._is_flat:
            tiling = self._flat(rows, wide)
        elif self._is_chunked:
            tiling = self._chunks(rows, inner_rows, columns, kept, wide)
        else:
            tiling = (self._rows if self._whole_rows else self._tiles)(rows, inner_rows, columns, wide)
        return tiling if self._last is None else self._with_last_block(tiling, self._last(sizes))

    def _with_last_block(self, tiling: Tiling, extents: Sequence[int]) -> Tiling:
        """A tiling with the tiles of the last block: every axis whole, and as many chunks as go with that."""
        tiles = tuple(zip(self._last_tiles, map(next_power_of_2, extents), strict=True))
        elements = math.prod(size for _, size in tiles)
        warps = max(tiling.num_warps, min(elements // 1024, 32))
        if self._is_chunked:
            tiles += (("CHUNKS", min(next_power_of_2(tiling.chunks), max(512 * warps // elements, 1))),)
        return replace(tiling, tiles=tiling.tiles + tiles, num_warps=warps)

    def _partials(self, programs: int) -> tuple[tuple[str, int], ...]:
        return (("PARTIALS", min(next_power_of_2(programs), MAX_PARTIALS)),) if self._has_totals else ()

    def _block(self, sizes: Mapping[str, int], wide: bool) -> Tiling:
        assert self._blocks is not None
        extents = Evaluator([group.size for group in self._blocks])(sizes)
        tiles = tuple((group.tile, next_power_of_2(n)) for group, n in zip(self._blocks, extents, strict=True))
        warps = min(max(math.prod(size for _, size in tiles) // 512, 4), 32)
        return Tiling(Variant(wide=wide), tiles, 1, warps)

    def _flat(self, n: int, wide: bool) -> Tiling:
        block = 1024 if n <= 2**18 else 2048 if n <= 2**20 else 4096
        block = max(block >> self._double, 128)
        programs = max(1, -(-n // block))
        warps = (8 if block >= 2048 else 4) << self._heavy
        return Tiling(Variant(wide=wide), (("BLOCK", block), *self._partials(programs)), programs, warps)

    def _tiles(self, rows: int, inner_rows: int, columns: int, wide: bool) -> Tiling:
        elements = 2048 >> self._double
        if self._columns_adjacent:
            cols = min(next_power_of_2(columns), elements)
            block_rows = min(elements // cols, 512, next_power_of_2(inner_rows))
        else:
            block_rows = min(next_power_of_2(inner_rows), ROWS_ADJACENT)
            cols = min(next_power_of_2(columns), max(elements // block_rows, 1))
        row_tiles = (rows // inner_rows if inner_rows else 0) * -(-inner_rows // block_rows)
        programs = max(1, row_tiles * -(-columns // cols))
        align = alignment(columns if self._columns_adjacent else inner_rows)
        tiles = (("ROWS", block_rows), ("COLS", cols), ("ALIGN", align), *self._partials(programs))
        return Tiling(Variant(wide=wide), tiles, programs, 4 << self._heavy)

    def _chunks(self, rows: int, inner_rows: int, columns: int, kept: int, wide: bool) -> Tiling:
        whole = next_power_of_2(columns)
        if self._whole_rows and not self._keeps_columns:
            looped = self._rows(rows * kept, inner_rows, columns, wide)
            if looped.variant.looped:
                return replace(looped, chunks=looped.programs // kept)
        elements = 2048 >> self._double
        if self._columns_adjacent:
            cols = whole if self._whole_rows else min(whole, 256)
            block_rows = min(max(elements // cols, 1), 512, next_power_of_2(inner_rows))
        else:
            cols = whole if self._whole_rows else min(whole, max(elements // ROWS_ADJACENT, 1))
            block_rows = min(max(elements * 2 // cols, 1), next_power_of_2(inner_rows), elements)
        col_tiles = -(-columns // cols)
        row_tiles = rows // inner_rows * -(-inner_rows // block_rows)
        chunks = min(row_tiles, max(MAX_PROGRAMS // (kept * col_tiles), 1))
        if self._keeps_columns:
            chunks = min(chunks, max(MAX_SHARED // (kept * columns), 1))
        align = alignment(columns if self._columns_adjacent else inner_rows)
        tiles = (("ROWS", block_rows), ("COLS", cols), ("ALIGN", align))
        warps = min(max(block_rows * cols // 512, 4), 32) << self._heavy
        return Tiling(Variant(wide=wide), tiles, kept * chunks * col_tiles, min(warps, 32), chunks)

    def _rows(self, rows: int, inner_rows: int, columns: int, wide: bool) -> Tiling:
        whole = next_power_of_2(columns)
        resident = MAX_RESIDENT // next_power_of_2(self._live) >> self._double
        if self._columns_adjacent:
            looped = whole > resident
            cols = (4096 >> self._double) if looped else whole
            block_rows = 1 if looped else min(max(2048 // cols, 1), 512, next_power_of_2(inner_rows))
        else:
            block_rows = min(next_power_of_2(inner_rows), ROWS_ADJACENT)
            looped = block_rows * whole > min(resident, 8192)
            cols = max(4096 // block_rows, 1) >> self._double if looped else whole
        outer = rows // inner_rows if inner_rows else 0
        programs = max(1, outer * -(-inner_rows // block_rows))
        warps = min(max(block_rows * cols // 512, 4), 8 if looped else 32)
        align = alignment(columns if self._columns_adjacent else inner_rows)
        tiles = (("ROWS", block_rows), ("COLS", cols), ("ALIGN", align), *self._partials(programs))
        return Tiling(Variant(looped, wide), tiles, programs, warps)
