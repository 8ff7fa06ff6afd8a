"""What emission hands on: the text of a module, and what to call its kernel with."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch

from autogen import ir


@dataclass(frozen=True)
class Partial:
    """One value per program: `kind` reduces them to the whole loss's."""

    name: str
    dtype: torch.dtype
    kind: str


@dataclass(frozen=True)
class KernelSource:
    """A generated kernel.

    The kernel is called with the `buffers`, then the `partials` and the counter if there are any, then the values of
    `sizes`, then the tile sizes named in `tiles`. `passes` counts, for each load, how often a whole tensor is read.
    """

    name: str
    text: str
    buffers: tuple[ir.Buffer, ...]
    partials: tuple[Partial, ...]
    sizes: tuple[tuple[str, sympy.Expr], ...]
    tiles: tuple[str, ...]
    loads: tuple[tuple[ir.Node, int], ...]
