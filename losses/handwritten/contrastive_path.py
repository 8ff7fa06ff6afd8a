"""Choose whether a contrastive loss multiplies tiles itself or uses torch's products, and choose the tiles.

The model: torch multiplies as fast as tensor cores do, and writes a matrix of all pairs, which a softmax of ours reads,
and another in backward. That costs next to nothing while the second-level cache holds it, and five to ten times the
products where it goes to memory. Tiles keep no pairs, and are bound by the instructions that they issue for each. So

- in half precision torch multiplies while the pairs fit in two thirds of the cache, 4096 x 4096 on an H100 or H200, and
  tiles do beyond that;
- in single precision tiles multiply: halves of float16 are several times as fast as torch's products, which are on no
  tensor cores;
- of more than 128 dimensions torch multiplies: gradients and factors of a program fill its registers and shared memory,
  so that its tiles are narrow. But what a matrix of more than 2^28 pairs takes (1 GiB and more, up to four times over)
  is not asked of anybody's memory: there, tiles are slower, and run.
- before compute capability 8.0 torch multiplies: the tiles' copies and products are instructions of 8.0.

`bench/results/nvidia-h200.csv` (version 2429de29, of tiles that issued twice to five times as many instructions as
these; the first input's gradient alone), forward and backward, InfoNCE and SupCon, `torch.compile` over the tiles:
bfloat16 0.80 and 0.64 (512 x 128), 0.38 and 0.47 (4096 x 128), 0.24 and 0.32 (4096 x 256), 1.20 and 1.03
(16384 x 128); float32 0.79 and 0.76, 0.87 and 0.96, 0.52 and 0.73, 1.35 and 1.50. So tiles of single precision were as
fast or slower at 4096 x 128 and below: that they are faster now follows from what they issue, and is not measured.
"""

from __future__ import annotations

import torch
import triton

MOST_ROWS = 64  # of a tile
_LEAST = 16  # embeddings, and dimensions, of a product of tiles
_PROGRAMS = 128  # about as many as a large GPU has multiprocessors
_WARPS = 8  # that each of these has registers for

_MEASURED = (9, 0)  # the compute capability that stands for what is not known
_CACHE = {(8, 0): 40, (8, 6): 6, (8, 7): 4, (8, 9): 72, (9, 0): 50, (10, 0): 126, (10, 3): 126, (12, 0): 96}  # MiB
_MOST_DIMS, _MOST_PAIRS = 128, 2**28

# A program's tile, by the names of the kernels' parameters, and its warps.
Tile = tuple[dict[str, int], int]


def prefers_tiles(
    n_rows: int, n_cols: int, n_dims: int, dtype: torch.dtype, capability: tuple[int, int] | None
) -> bool:
    """Whether the kernels of `contrastive_forward` are to multiply embeddings, and not torch; see the module.

    dtype: that of the products, half precision under autocast
    capability: that of the GPU, None where there is none that is known: on the CPU, on the meta device
    """
    capability = _MEASURED if capability is None else capability
    pairs = n_rows * n_cols
    if capability < (8, 0):
        return False
    if n_dims > _MOST_DIMS or pairs > _MOST_PAIRS:
        return pairs > _MOST_PAIRS
    cache = _CACHE.get(capability, _CACHE[_MEASURED]) * 2**20
    return dtype == torch.float32 or pairs * dtype.itemsize > cache * 2 // 3


def tile_of(n_own: int, dims: int, dtype: torch.dtype, capability: tuple[int, int] | None, *, has_sums: bool) -> Tile:
    """ROWS embeddings of a program, of which there are `n_own` in all, and COLS others, of `dims` dimensions.

    The more embeddings a program has, the less often all others are read; the fewer, the more multiprocessors work.
    Four warps multiply 64 of them at once from 9.0 to 10.x, where factors stay in shared memory; a warp 16 of them
    elsewhere, with factors in registers. Sums of embeddings, if a program `has_sums`, take most of the registers; what
    is chosen does not spill (`tests/ptx`).

    dtype: that of the embeddings
    capability: see `prefers_tiles`
    """
    major, _ = _MEASURED if capability is None else capability
    is_single = dtype == torch.float32
    if dims > _MOST_DIMS:
        rows, cols = (64, 32) if major == 9 and not is_single else (_LEAST, 32)
    elif major in (9, 10):
        rows, cols = 64, 64
    else:
        rows, cols = (32, 64) if has_sums else (64, 32)
    rows = _most_rows(n_own, rows)
    is_full = rows == 64 and (dims > _MOST_DIMS or (major == 10 and is_single))
    return {"ROWS": rows, "COLS": cols, "DIMS": dims}, 8 if is_full else 4


def _most_rows(n_own: int, most: int) -> int:
    """How many of some embeddings a program has, if a large GPU is full of such programs."""
    return next((each for each in (64, 32) if each <= most and n_own >= _PROGRAMS * each), _LEAST)


def dims_of(n_dims: int) -> int:
    """Dimensions of a tile."""
    return max(triton.next_power_of_2(n_dims), _LEAST)


def parts_of_columns(blocks: int, tiles: int, num_warps: int) -> int:
    """How many programs share the `tiles` of columns of each of some blocks of rows: so many that a large GPU is full,
    and each has two tiles at least, so that one comes while it has another.
    """
    wanted = min(_PROGRAMS * _WARPS // num_warps // blocks, tiles // 2)
    return triton.cdiv(tiles, triton.cdiv(tiles, max(wanted, 1)))
