"""Choose launch parameters by sizes alone, the same on every device and in every run.

| kernel                  | tile                                                          | warps |
|-------------------------|---------------------------------------------------------------|-------|
| flat                    | 1024 elements, 256 records of 4 that are stored               | 4     |
| flat, with totals       | 1024 elements up to 2^18, 2048 up to 2^20, then 4096; beyond  | 4 - 8 |
|                         | 4096 programs up to 16 tiles of 2048, one after the other     | 8     |
| tiles, short rows       | 2048 elements, 128 if there are few; of these all columns     | 4     |
| tiles, others           | one row, up to 32 elements per thread and 4096 columns (half  | 1 - 8 |
|                         | as many per thread, but of one tensor in half precision); rows|       |
|                         | of fewer, at least 256, if every fifth would be beyond a row  |       |
| rows, columns adjacent  | whole rows while they fit on chip, up to 32 per thread, or    | 1 - 32|
|                         | are of 8192 columns, if they are read only once               |       |
|                         | of up to 128 columns several                                  | 4     |
|                         | beyond 2048 to 4096 programs up to 16 tiles, in turn          | 1 - 32|
|                         | beyond that one row in steps of 4096 columns                  | 8, 4  |
|                         | (4 warps for 1024 rows and more of one in half precision)     |       |
| chunks of results' rows | 2048 - 4096 elements; at most 1024 programs, each in a loop   | 4 - 32|
| one block               | every axis whole                                              | 4 - 32|
| rows, rows adjacent     | up to 128 rows; all columns while they fit, else steps of 32  | 4 - 8 |
|                         | (8192 elements where a sum runs along the columns)            | 4 - 32|
| sequences               | up to 32, as many as have 128 items; steps of up to 1024      | 1 - 4 |
| rows and columns paired | up to 32 rows, in steps of 32 columns                         | 4     |

A tile that needs more than 32 values per thread and tensor spills on real devices, which bounds what "fits" means;
double precision halves every tile. Flat kernels and tiles with a `lgamma`, or a derivative of it, have twice the warps.
Where much is computed, or alive at once, threads have fewer elements (`_lightened`): Triton prints each one's work.
Where warps have 64 threads, a launch has 16 of them at most (`autogen.runtime.build.warps_within`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

from autogen import ir
from autogen.ir.sizes import Evaluator, magnitude, next_power_of_2
from autogen.scheduling.launches.demand import demand_of
from autogen.scheduling.launches.kernel import PAIRED, ROWS_ADJACENT, Kernel, Level
from autogen.scheduling.launches.running import walks_of
from autogen.tiling.skew import ACCESS, skew_of
from autogen.tiling.space import Space
from autogen.tiling.variant import Variant

INT32_MAX = 2**31 - 1
MARGIN = 2**16  # a last block reaches beyond the last element, by less than this
MAX_RESIDENT = 32768
READ_ONCE = 8192  # columns, beyond which rows that are read only once are better walked: so few of them fit on a chip
MAX_PARTIALS = 4096
PARTIALS_OF_WARP = 512  # of each total at once, so that the last block needs no more registers than the others
MAX_PROGRAMS = 1024
MOST_PROGRAMS = 4096  # of those that each draw a ticket, one at a time, twice as many of one warp: all that a large
# GPU holds at once a few times over, so that little of it idles when the last ones are at work,
MOST_TILES = 16  # until one of them would have more than this, whose sums would lose digits
FEW_PROGRAMS = 2048  # whose tickets take no time; more of one warp have four tiles at least, of two warps two
MAX_SHARED = 2**18
LEAST_SHARE = 24  # times as much is read of elements as is shared with the last block
FEW_ELEMENTS = 256  # for a program
LEAST = 128  # elements of a tile of short rows, one for each thread; Triton cannot compile every kernel of 8 x 8
HELD = 8192  # elements of a tile along whose columns, which are apart in memory or of pairs, a sum runs
SHORT = 128  # columns, of which a warp reads several rows at once
MOST_LANES = 1.25  # for each column of a tile that need not be a whole row
LONG = 2048  # columns of a tile that threads have half as many of
MANY_ROWS = 1024  # several for each multiprocessor, which is as busy with fewer warps for each
FEW = 4  # columns, which are never split: they may be a record (`emission.records`)
MOST_SEQUENCES, LONGEST_STEP = 32, 1024  # rows of a tile that are sequences, and items of a step
WARPS = (1, 2, 4, 8, 16, 32)
# Instructions of a thread, and values that it has at once: beyond the first number they are brought below the second.
INSTRUCTIONS = (7200, 4096)
ALIVE = (256, 192)
MOST_HELD = 32  # elements of a thread, and
MOST_THREADS = 1024
ADJACENT = 32  # rows or columns of a tile, which a warp reads side by side


@dataclass(frozen=True)
class Config:
    """What a launch is free to choose: its tiles, its warps, and whether a program walks its rows in steps; or all that
    for each of its parts.

    All else follows from the sizes. Triton's `num_stages` has no effect here: it is about operands of matrix products.
    """

    tiles: tuple[tuple[str, int], ...]
    num_warps: int
    looped: bool = False
    parts: tuple[Config, ...] = ()

    def __str__(self) -> str:
        """`ROWS 1, COLS 4096 in steps, 8 warps`; of several parts, each."""
        if self.parts:
            return " | ".join(map(str, self.parts))
        tiles = ", ".join(f"{name} {size}" for name, size in self.tiles)
        return f"{tiles}{' in steps' * self.looped}{', ' * bool(tiles)}{self.num_warps} warps"


@dataclass(frozen=True)
class Tiling:
    """How one launch is cut up."""

    variant: Variant
    tiles: tuple[tuple[str, int], ...]
    programs: int
    num_warps: int
    chunks: int = 1  # of the rows of a result, each for a program


@dataclass(frozen=True)
class Extents:
    """What of the sizes of a call decides how it is cut up; `whole` are the axes that one program has all of, `held`
    the elements of its largest tile.
    """

    rows: int
    inner_rows: int  # of the rows, those that a tile walks
    columns: int
    kept: int
    whole: tuple[int, ...]
    held: int
    wide: bool


# Ops of so many registers that a thread should have half as many elements.
HEAVY = frozenset({"lgamma", "digamma", "trigamma", "tetragamma"})


def alignment(n: int, access: int) -> int:
    """A power of two that divides `n`: what every row then is aligned to, in elements.

    It is 16, as Triton knows of sizes by itself, or else no more than an `access` has: each is another kernel.
    """
    return 16 if n % 16 == 0 else min(n & -n, access)


def strided(tiles: int, num_warps: int) -> int:
    """How many programs there are for so many tiles, where each draws a ticket."""
    if tiles <= min(FEW_PROGRAMS, MOST_PROGRAMS):
        return max(tiles, 1)
    least = min(max(4 // num_warps, 1), -(-tiles // FEW_PROGRAMS))
    most = MOST_PROGRAMS << (num_warps == 1)
    each = min(max(least, -(-tiles // most)), MOST_TILES)
    return -(-tiles // each)


class Tiler:
    """The tilings of one kernel: `default` chooses a configuration, `cut` makes the launch of any."""

    def __init__(self, kernel: Kernel, space: Space, *, is_part: bool = False) -> None:
        elements = [node for node in kernel.loads() if kernel.level(node) == Level.ELEMENT]
        last = kernel.last_block
        self.is_chunked = last is not None and last.chunked
        self._is_block = kernel.one_block
        self._has_columns = bool(kernel.columns)
        self._is_flat = not kernel.columns and not self.is_chunked
        self._whole_rows = kernel.whole_rows
        self._keeps_columns, self._holds_rows = kernel.keeps_columns, kernel.holds_rows
        self._live = max(1, len(elements) + len(kernel.stores) - 1 + (len(kernel.totals) if self.is_chunked else 0))
        self.columns_adjacent = space.columns_adjacent
        self._is_of_pairs = kernel.is_of_pairs
        self._is_of_sequences = kernel.is_of_sequences
        self._skew = None if kernel.window else skew_of(kernel, space)
        nodes = ir.topological([*kernel.totals, *(root.node for root in kernel.roots)])
        most_axes = max((len(node.axes) for node in nodes), default=0)
        self.is_double = any(node.dtype == torch.float64 and len(node.axes) == most_axes for node in nodes)
        buffers = [node.attrs[0] for node in nodes if node.op == "load"] + [root.buffer for root in kernel.roots]
        self._access = ACCESS // min((buffer.dtype.itemsize for buffer in buffers), default=1)
        extents = {sum((n - 1) * s for n, s in zip(b.shape, b.strides, strict=True)) + 1 for b in buffers if b.shape}
        extents |= {magnitude(node.attrs[0]) for node in nodes if node.op == "index" and node.axes}
        rows = [group.size for group in space.rows]
        kept = sympy.Mul(*(group.size for group in space.kept))
        columns = sympy.Mul(*(group.size for group in space.columns))
        self._sizes = Evaluator(
            [sympy.Mul(*rows), rows[-1] if rows else sympy.S.One, columns, kept, *sorted(extents, key=str)]
        )
        self._one_program = kernel if kernel.one_block else last.kernel if last else None
        whole = space.columns if kernel.one_block else Space(last.kernel).columns if last else ()
        self._whole_tiles = [group.tile for group in whole]
        self._whole = Evaluator([group.size for group in whole])
        self._has_last_block = last is not None
        self._has_totals = bool(kernel.totals) and last is None
        self._may_stride = self._has_totals and not is_part
        # Small programs are for kernels that draw no tickets, or may have several tiles for each.
        self._draws_none = not (kernel.totals or last or is_part)
        self._totals = len(kernel.totals)
        # What programs store of columns, and the last block reads, is not to be more than a part of what they read.
        read, shared = (sum(n.attrs[0].dtype.itemsize for n in elements), sum(n.dtype.itemsize for n in kernel.totals))
        self._rows_of_chunk = max(LEAST_SHARE * 2 * shared // max(read, 1), 1)
        self._record = max(Counter(root.buffer for root in kernel.stores).values(), default=1)  # values, side by side
        self._heavy = any(node.op in HEAVY for node in nodes)
        self._demand = demand_of(kernel)
        across = [node for node in kernel.loads() if kernel.level(node) in (Level.ELEMENT, Level.COLUMN)]
        written = [root for root in kernel.stores if kernel.level_of_axes(root.index_axes) == Level.ELEMENT]
        self._is_slight = len(across) <= 1 and len(written) <= 1
        self._writes_elements = bool(written)
        tensors = [*(node.attrs[0] for node in across), *(root.buffer for root in written)]
        self._is_of_halves = self._is_slight and all(each.dtype.itemsize <= 2 for each in tensors)
        levels = {kernel.level_of_axes(root.index_axes) for root in kernel.stores}
        is_stored = not levels <= {Level.SCALAR, Level.ROW}
        self._is_read_once = not (is_stored or self.is_chunked) and len(walks_of(kernel.row_reductions())) <= 1

    def extents(self, sizes: Mapping[str, int]) -> Extents:
        """How much there is to cut up."""
        rows, inner_rows, columns, kept, *reached = self._sizes(sizes)
        wide = max([kept * rows * columns, *reached]) > INT32_MAX - MARGIN
        held = self._one_program.largest_tile(sizes) if self._one_program else 1
        return Extents(rows, inner_rows, columns, kept, self._whole(sizes), held, wide)

    def tiling(self, sizes: Mapping[str, int]) -> Tiling:
        """The default's tiling for the given sizes."""
        extents = self.extents(sizes)
        return self._cut(self._default(extents), extents)

    def default(self, sizes: Mapping[str, int]) -> Config:
        """The configuration for the given sizes, without any measurement."""
        return self._default(self.extents(sizes))

    def _default(self, extents: Extents) -> Config:
        if self._is_block:
            return Config((), min(max(extents.held // (32 * self._bearable(16)), 4), 32))
        if self._is_flat:
            return self._with_last_block(self._lightened(self._flat(extents)), extents)
        if not self._whole_rows and not self.is_chunked:
            return self._with_last_block(self._lightened(self._tiles(extents)), extents)
        return self._rows_or_chunks(extents, self._must_loop(extents))

    def other(self, sizes: Mapping[str, int]) -> Config | None:
        """The default if rows were walked in steps, or were not, where it does otherwise; None without the choice."""
        extents = self.extents(sizes)
        if not self._may_loop:
            return None
        return self._rows_or_chunks(extents, not self._must_loop(extents))

    def admits(self, config: Config, sizes: Mapping[str, int]) -> bool:
        """Whether a configuration is for these sizes: whole rows where they must be, no tile that is beyond what there
        is or a program can hold, and something to do for each thread.
        """
        extents, tiles = self.extents(sizes), dict(config.tiles)
        needed = {"BLOCK": max(extents.rows, 128), "ROWS": extents.inner_rows, "COLS": extents.columns}
        whole = next_power_of_2(extents.columns)
        held, threads = math.prod(tiles.values()), 32 * config.num_warps
        if not tiles:
            return self._is_block and config.num_warps in WARPS
        return (
            tuple(tiles) == (("BLOCK",) if self._is_flat else ("ROWS", "COLS"))
            and not self._is_block
            and all(size == next_power_of_2(size) <= next_power_of_2(needed[name]) for name, size in tiles.items())
            and (not config.looped or (self._may_loop and tiles["COLS"] < whole))
            and (config.looped or not (self._whole_rows or whole <= FEW) or tiles.get("COLS", whole) == whole)
            and config.num_warps in WARPS
            and threads <= held <= 32 * threads >> self.is_double
        )

    def cut(self, config: Config, sizes: Mapping[str, int]) -> Tiling:
        """The launch of a configuration."""
        return self._cut(config, self.extents(sizes))

    def _cut(self, config: Config, extents: Extents) -> Tiling:
        whole: tuple[tuple[str, int], ...] = ()
        if self._whole_tiles:
            whole = tuple(zip(self._whole_tiles, map(next_power_of_2, extents.whole), strict=True))
        if self._is_block:
            return Tiling(Variant(wide=extents.wide), whole, 1, config.num_warps)
        n_tiles, chunks = self._programs(config, extents)
        may_stride = self._may_stride and not config.looped
        programs = strided(n_tiles, config.num_warps) if may_stride else n_tiles
        is_skewed = self._is_skewed(config, extents)
        variant = Variant(config.looped, extents.wide, is_skewed, strided=programs < n_tiles)
        tiles = config.tiles
        if not self._is_flat and not is_skewed:
            adjacent = extents.columns if self.columns_adjacent else extents.inner_rows
            is_filled = self._whole_rows and self.columns_adjacent and dict(tiles)["COLS"] == extents.columns
            tiles += (("ALIGN", extents.columns if is_filled else alignment(adjacent, self._access)),)
        if self._has_totals:
            tiles += (("PARTIALS", self._partials(programs, config.num_warps)),)
        if self._has_last_block:  # every axis whole, and as many chunks as go with that
            tiles += whole
            if self.is_chunked:
                most = max(256 * config.num_warps // extents.held, 1)
                tiles += (("CHUNKS", min(next_power_of_2(chunks), most)),)
        return Tiling(variant, tiles, programs, config.num_warps, chunks)

    def _partials(self, programs: int, num_warps: int) -> int:
        """How many partial results the last block adds up at once: one per thread, if that is enough, else as many as
        are no more registers than the others need. Any number in between would be another kernel.
        """
        threads = 32 * num_warps
        # Programs that stride are few, so that some warps can do with half as many at once.
        is_half = self._totals > 2 or (self._totals == 2 and self._may_stride and num_warps > 1)
        most = min(PARTIALS_OF_WARP * num_warps >> is_half, MAX_PARTIALS)
        while most > threads and most // threads * self._totals > ALIVE[1]:
            most //= 2
        return threads if programs <= threads else most

    def _is_skewed(self, config: Config, extents: Extents) -> bool:
        """Whether rows are read and written in groups, as they begin anywhere."""
        if self._skew is None:
            return False
        if self.is_chunked and not config.looped:
            return not self._has_columns and self._skew.pays(extents.inner_rows, rows=1)
        tiles, columns = dict(config.tiles), extents.columns
        no_more = -(-self._skew.lanes(columns) // tiles["COLS"]) == -(-columns // tiles["COLS"])
        return self._skew.pays(columns, tiles["ROWS"]) and (config.looped or no_more)

    def _programs(self, config: Config, extents: Extents) -> tuple[int, int]:
        """How many programs there are, and how many of them share the rows of one result."""
        if self._is_flat:
            ((_, block),) = config.tiles
            return max(1, -(-extents.rows // block)), 1
        tiles, inner, kept = dict(config.tiles), extents.inner_rows, extents.kept
        row_tiles = extents.rows // inner * -(-inner // tiles["ROWS"]) if inner else 0
        col_tiles = 1 if self._whole_rows else -(-extents.columns // tiles["COLS"])
        if not self.is_chunked:
            return max(1, row_tiles * col_tiles), 1
        chunks = row_tiles if config.looped else min(row_tiles, max(MAX_PROGRAMS // (kept * col_tiles), 1))
        if self._keeps_columns:
            chunks = min(chunks, max(MAX_SHARED // (kept * extents.columns), 1))
            chunks = min(chunks, max(extents.inner_rows // self._rows_of_chunk, 1))
        return kept * chunks * col_tiles, chunks

    def _bearable(self, held: int) -> int:
        """The elements that a thread may have, of those that it would: fewer if it had too much to compute, or to keep,
        for so many.
        """
        work, live = self._demand.work, self._demand.live
        if work * held > INSTRUCTIONS[0] or live * held > ALIVE[0]:
            while held > 1 and (work * held > INSTRUCTIONS[1] or live * held > ALIVE[1]):
                held //= 2
        return held

    def _lightened(self, config: Config) -> Config:
        """A configuration whose threads have no more to do than they can: of smaller tiles, or else of more warps."""
        tiles, warps = dict(config.tiles), config.num_warps
        held = math.prod(tiles.values()) // (32 * warps)
        least = {"ROWS": 1 if self.columns_adjacent else ADJACENT, "COLS": ADJACENT if self.columns_adjacent else 1}
        if self._whole_rows and not config.looped:
            del least["COLS"]
        free = ["BLOCK"] if self._is_flat else sorted(least, key=lambda name: least[name])
        for _ in range((held // max(self._bearable(held), 1)).bit_length() - 1):
            name = next((name for name in free if tiles[name] > least.get(name, 1)), None)
            if name and (math.prod(tiles.values()) > FEW_ELEMENTS or warps == WARPS[-1]):
                tiles[name] //= 2
            else:
                warps = min(2 * warps, WARPS[-1])
        return replace(config, tiles=tuple(tiles.items()), num_warps=warps)

    def _with_last_block(self, config: Config, extents: Extents) -> Config:
        """A configuration with warps for all that the last block has."""
        if not self._has_last_block:
            return config
        return replace(config, num_warps=max(config.num_warps, min(extents.held // 1024, 32)))

    def _flat(self, extents: Extents) -> Config:
        is_small = extents.rows <= 2**18 or self._draws_none
        block = 1024 if is_small else 2048 if extents.rows <= 2**20 else 4096
        block = max((block >> self.is_double) // self._record, 128)
        num_warps = (8 if block >= 2048 else 4) << self._heavy
        if self._may_stride and extents.rows > MOST_PROGRAMS * block:
            block //= 2  # one after the other, so that a thread has room for its part of the totals
        return Config((("BLOCK", block),), num_warps)

    def _tiles(self, extents: Extents) -> Config:
        inner, whole = next_power_of_2(extents.inner_rows), next_power_of_2(extents.columns)
        if self.columns_adjacent and whole > SHORT and self._draws_none:
            cols = self._well_filled(extents, min(whole, 4 * 32 * self._held(extents)))
            config = self._by_warps(extents, cols)
            # Of the longest tiles, threads have half: more of them are on a chip, and each has enough to do.
            return replace(config, num_warps=8) if cols > LONG and not self._is_of_halves else config
        elements = 2048 >> self.is_double
        if self.columns_adjacent:
            cols = self._well_filled(extents, min(whole, elements))
            rows = max(self._rows_at_once(elements // cols, inner, extents.columns), LEAST // cols)
        else:
            rows = min(inner, ROWS_ADJACENT)
            cols = min(whole, max(elements // rows, 1))
        return Config((("ROWS", rows), ("COLS", cols)), min(4 << self._heavy, max(rows * cols // 128, 4)))

    def _well_filled(self, extents: Extents, cols: int) -> int:
        """The columns of a tile: fewer where too many would be beyond the last, and it may have more rows."""
        if self._reads_one_row(extents.columns):
            return cols
        choices = [cols >> k for k in range(4) if k == 0 or cols >> k >= FEW_ELEMENTS]
        lanes = {each: -(-extents.columns // each) * each for each in choices}
        filled = [each for each in choices if lanes[each] <= MOST_LANES * extents.columns]
        return filled[0] if filled else min(choices, key=lambda each: lanes[each])

    def _held(self, extents: Extents) -> int:
        """Elements of a thread: what is stored of rows that begin anywhere needs more registers."""
        is_skewed = self._skew is not None and self._skew.pays(extents.columns, rows=1)
        is_slight = self._is_slight and not (is_skewed and self._writes_elements)
        return (32 if is_slight else 16) >> self._heavy >> self.is_double

    def _by_warps(self, extents: Extents, cols: int) -> Config:
        """A tile of rows that fill a warp or more: as many warps as they do fill, so that few share a row, and what
        there is one of per row is computed by few.
        """
        of_warp = 32 * self._held(extents)
        rows = self._rows_at_once(of_warp // cols, next_power_of_2(extents.inner_rows), extents.columns)
        return Config((("ROWS", rows), ("COLS", cols)), min(max(rows * cols // of_warp, 1), 32))

    def _rows_at_once(self, most: int, inner: int, columns: int) -> int:
        """The rows of a tile with whole rows: one, where only that can be read in groups, and is enough to do."""
        return 1 if self._reads_one_row(columns) else min(max(most, 1), 512, inner)

    def _reads_one_row(self, columns: int) -> bool:
        """Whether rows are best read in groups by tiles of one, which is enough to do."""
        skew = self._skew
        if skew is None or columns <= FEW_ELEMENTS or not skew.fits(columns) or not skew.pays(columns, rows=1):
            return False
        is_filled = self._whole_rows or next_power_of_2(columns) <= MOST_LANES * columns
        return skew.one_row or (skew.reads_columns and is_filled)

    @property
    def _may_loop(self) -> bool:
        """Whether a program may walk its rows in steps."""
        return self._whole_rows and not self._holds_rows and not self._is_block

    def _must_loop(self, extents: Extents) -> bool:
        """Whether rows are too long to be had at once."""
        if self._is_of_sequences:
            return True
        whole = next_power_of_2(extents.columns)
        resident = MAX_RESIDENT // next_power_of_2(self._live) >> self.is_double
        if self._is_of_pairs:
            resident = PAIRED
        elif not self.columns_adjacent:
            whole, resident = whole * min(next_power_of_2(extents.inner_rows), ROWS_ADJACENT), min(resident, 8192)
        elif self._is_read_once:
            resident = min(resident, READ_ONCE)
        resident = min(resident, MOST_THREADS * self._bearable(MOST_HELD))
        return self._may_loop and whole > resident

    def _rows_or_chunks(self, extents: Extents, looped: bool) -> Config:
        config = self._chunks(extents) if self.is_chunked and not looped else self._rows(extents, looped)
        return self._with_last_block(self._lightened(config), extents)

    def _chunks(self, extents: Extents) -> Config:
        whole, inner = next_power_of_2(extents.columns), next_power_of_2(extents.inner_rows)
        elements = 2048 >> self.is_double
        if self.columns_adjacent:
            cols = whole if self._whole_rows else min(whole, 256)
            rows = min(max(elements // cols, 1), 512, inner)
        else:
            cols = whole if self._whole_rows else min(whole, max(elements // ROWS_ADJACENT, 1))
            rows = min(max(elements * 2 // cols, 1), inner, elements)
        warps = min(max(rows * cols // 512, 4), 32) << self._heavy
        return Config((("ROWS", rows), ("COLS", cols)), min(warps, 32))

    def _sequences(self, extents: Extents) -> Config:
        """As many sequences for a program as are together about as long as its tile is wide."""
        length = next_power_of_2(extents.columns // max(extents.rows, 1))
        rows = min(max(LEAST // length, 1), MOST_SEQUENCES, next_power_of_2(extents.inner_rows))
        cols = min(max(rows * length, ADJACENT), LONGEST_STEP >> self.is_double, next_power_of_2(extents.columns))
        return Config((("ROWS", rows), ("COLS", cols)), min(max(rows * cols // 512, 1), 4), looped=True)

    def _rows(self, extents: Extents, looped: bool) -> Config:
        whole, inner = next_power_of_2(extents.columns), next_power_of_2(extents.inner_rows)
        # A sum that runs from thread to thread does so in shared memory.
        most = max((HELD >> self.is_double) // whole, 1) if self._holds_rows else ROWS_ADJACENT
        if self._is_of_sequences:
            return self._sequences(extents)
        if self._is_of_pairs:
            rows = min(inner, PAIRED >> self.is_double, most)
            cols = (PAIRED**2 >> self.is_double) // rows if looped else whole
        elif not looped and self.columns_adjacent and whole > SHORT and (self._may_stride or self._draws_none):
            return self._by_warps(extents, whole)
        elif self.columns_adjacent:
            cols = (4096 >> self.is_double) if looped else whole
            rows = 1 if looped else self._rows_at_once(2048 // cols, inner, extents.columns)
        else:
            rows = min(inner, ROWS_ADJACENT, most)
            cols = max(4096 // rows, 1) >> self.is_double if looped else whole
        is_light = self._is_of_halves and self.columns_adjacent and extents.rows >= MANY_ROWS
        warps = min(max(rows * cols // 512, 4), (4 if is_light else 8) if looped else 32)
        return Config((("ROWS", rows), ("COLS", cols)), warps, looped)
