"""The result of emission: a module as text, and what its kernel is called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch

from autogen import ir


@dataclass(frozen=True)
class Partial:
    """What programs store for the last block: `count` values, in terms of sizes, `PROGRAMS` and `CHUNKS`."""

    pointer: str
    dtype: torch.dtype
    count: sympy.Expr


@dataclass(frozen=True)
class Function:
    """A generated function by itself, and what it is called with: see `KernelSource`."""

    name: str
    text: str
    parameters: tuple[str, ...]
    sizes: Mapping[str, sympy.Expr]
    tiles: tuple[str, ...]
    helpers: frozenset[str]
    loads: tuple[tuple[ir.Node, int], ...]
    partials: tuple[Partial, ...] = ()
    doubles: frozenset[str] = frozenset()


@dataclass(frozen=True)
class KernelSource:
    """A generated kernel.

    The kernel is called with the `buffers`, then the `partials` and the counter if there are any, then the values of
    `sizes`, then the tile sizes named in `tiles`. `loads` counts, for each load, how often a whole tensor is read, and
    names the function that reads it: 0 for the kernel itself, else the place among those that it calls, from 1.
    `doubles` are the names of those numbers among `sizes` that are given in double precision.
    """

    name: str
    text: str
    buffers: tuple[ir.Buffer, ...]
    partials: tuple[Partial, ...]
    sizes: tuple[tuple[str, sympy.Expr], ...]
    tiles: tuple[str, ...]
    loads: tuple[tuple[ir.Node, int, int], ...]
    doubles: frozenset[str] = frozenset()
