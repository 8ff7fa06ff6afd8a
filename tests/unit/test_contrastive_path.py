"""Which contrastive calls multiply tiles of their own, and in which tiles; see the model of `contrastive_path`."""

from __future__ import annotations

import pytest
import torch

from autogen.losses.handwritten.contrastive_path import MOST_ROWS, prefers_tiles, tile_of

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
H200, A100, A10, B200, L4, V100, NEWER = (9, 0), (8, 0), (8, 6), (10, 0), (8, 9), (7, 0), (14, 0)


@pytest.mark.parametrize(
    ("rows", "columns", "dims", "dtype", "capability", "expected"),
    [
        # What was measured, and beyond it.
        (512, 512, 128, BF16, H200, False),
        (4096, 4096, 128, BF16, H200, False),
        (4096, 4096, 256, BF16, H200, False),
        (16384, 16384, 128, BF16, H200, True),
        (512, 512, 128, F32, H200, True),
        (4096, 4096, 128, F32, H200, True),
        (4096, 4096, 256, F32, H200, False),
        (16384, 16384, 128, F32, H200, True),
        # Pairs count, not rows; both kinds of half precision alike.
        (64, 262144, 128, F16, H200, False),
        (256, 262144, 128, F16, H200, True),
        # The cache decides.
        (3600, 3600, 64, BF16, A100, False),
        (4096, 4096, 64, BF16, A100, True),
        (1024, 1024, 64, BF16, A10, False),
        (2048, 2048, 64, BF16, A10, True),
        (4096, 4096, 64, BF16, L4, False),
        (6400, 6400, 64, BF16, B200, False),
        (8192, 8192, 64, BF16, B200, True),
        # Dimensions, but not with a matrix that takes gigabytes.
        (1, 1, 129, F32, H200, False),
        (16384, 16384, 129, F32, H200, False),
        (16385, 16384, 256, F32, H200, True),
        (32768, 16384, 256, BF16, B200, True),
        # What tiles are not made of.
        (16385, 16384, 128, F32, V100, False),
        (1024, 1024, 64, F32, (7, 5), False),
        # What is not known, or not listed, is as what was measured.
        (4096, 4096, 128, BF16, None, False),
        (4200, 4200, 128, BF16, None, True),
        (1024, 1024, 128, F32, None, True),
        (4096, 4096, 128, BF16, NEWER, False),
        (4200, 4200, 128, BF16, NEWER, True),
    ],
)
def test_who_multiplies(
    rows: int, columns: int, dims: int, dtype: torch.dtype, capability: tuple[int, int] | None, expected: bool
) -> None:
    assert prefers_tiles(rows, columns, dims, dtype, capability) is expected


@pytest.mark.parametrize(
    ("n", "dims", "dtype", "capability", "has_sums", "expected"),
    [
        (16384, 128, F32, H200, True, (64, 64, 4)),
        (16384, 128, F32, None, True, (64, 64, 4)),
        (16384, 128, BF16, H200, False, (64, 64, 4)),
        (16384, 128, F32, B200, True, (64, 64, 8)),
        (16384, 128, BF16, B200, True, (64, 64, 4)),
        (16384, 64, F32, A100, True, (32, 64, 4)),
        (16384, 64, F32, A100, False, (64, 32, 4)),
        (16384, 256, F32, H200, True, (16, 32, 4)),
        (16384, 256, BF16, H200, True, (64, 32, 8)),
        (16384, 256, BF16, A100, True, (16, 32, 4)),
        # Few embeddings: so many programs as there are multiprocessors, or 16 of them each.
        (4096, 128, F32, H200, True, (32, 64, 4)),
        (4096, 256, BF16, H200, True, (32, 32, 4)),
        (100, 128, BF16, H200, True, (16, 64, 4)),
    ],
)
def test_tiles(
    n: int, dims: int, dtype: torch.dtype, capability: tuple[int, int] | None, has_sums: bool, expected: tuple[int, ...]
) -> None:
    tile, num_warps = tile_of(n, dims, dtype, capability, has_sums=has_sums)
    assert (tile["ROWS"], tile["COLS"], num_warps) == expected
    assert tile["DIMS"] == dims and tile["ROWS"] <= MOST_ROWS and MOST_ROWS % tile["COLS"] == 0
