"""Choose how many rows a chunk has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from autogen.ir.sizes import evaluator_of

WORKSPACE = 2**28  # bytes that a chunk may take: its products, and their gradients
LEAST_ROWS = 1024  # with fewer, matrix products are bound by memory
_STEP = 64  # so that kernels are the same for all chunks but the last


def rows_per_chunk(rows: int, row_bytes: int) -> int:
    """How many rows a chunk has, of `rows` that take `row_bytes` each: as few chunks as fit into 256 MiB, though of at
    least 1024 rows, and all alike, in multiples of 64.

    >>> rows_per_chunk(8192, 2 * 2 * 128_256)
    1024
    >>> rows_per_chunk(8192, 2 * 2 * 32_000)
    2048
    >>> rows_per_chunk(100, 2 * 2 * 128_256)
    100
    """
    chunks = -(-rows // max(WORKSPACE // max(row_bytes, 1), LEAST_ROWS))
    return min(-(-rows // (max(chunks, 1) * _STEP)) * _STEP, rows)


@dataclass(frozen=True)
class ChunkSize:
    """The chunks of `rows` rows that take `row_bytes` each; `chosen` is how many rows the user wants in one."""

    rows: sympy.Expr
    row_bytes: sympy.Expr
    chosen: int | None

    def of(self, sizes: Mapping[str, Any]) -> int:
        """How many rows a chunk has."""
        rows, row_bytes = evaluator_of(self.rows, self.row_bytes)(sizes)
        return max(rows_per_chunk(rows, row_bytes) if self.chosen is None else min(self.chosen, rows), 1)

    def is_less_than_all(self, sizes: Mapping[str, Any]) -> bool:
        """Whether there is more than one chunk."""
        (rows,) = evaluator_of(self.rows)(sizes)
        return self.of(sizes) < int(rows)
