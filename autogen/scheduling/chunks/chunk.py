"""A chunk of rows: what is computed of it, and the step that loops over all chunks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import sympy

from autogen import ir
from autogen.errors import SourceLine
from autogen.ir.torch_step import Operand, SizeArgument, TorchStep
from autogen.scheduling.chunks.body import ROWS, Slice
from autogen.scheduling.chunks.matrices import Sliced
from autogen.scheduling.chunks.size import ChunkSize
from autogen.scheduling.plan import Direction


@dataclass(frozen=True, eq=False)
class Chunk:
    """What is computed of one chunk of rows.

    Args:
        direction: kernels and products of a chunk.
        size: how many rows a chunk has.
        slices: tensors that kernels read by rows.
        sliced: tensors that torch reads by rows.
        whole: tensors that are read as they are, by name.
        rows: results of which each chunk makes its rows; in a chunk they have the name of the buffer.
        totals: results that all chunks add to.
    """

    direction: Direction
    size: ChunkSize
    slices: tuple[Slice, ...]
    sliced: tuple[Sliced, ...]
    whole: tuple[str, ...]
    rows: tuple[ir.Buffer, ...]
    totals: tuple[ir.Buffer, ...]

    __name__ = "mm"  # what reports say that torch runs

    @functools.cached_property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """The sizes, and the numbers, that it depends on, but for how many rows it has."""
        return tuple(_symbols_of(self))


def step_of(chunk: Chunk, line: SourceLine | None, *, backward: bool) -> TorchStep:
    """The step that goes through all chunks."""
    names = [*(each.whole for each in chunk.slices), *(each.whole for each in chunk.sliced), *chunk.whole]
    arguments = (*map(Operand, names), *map(SizeArgument, chunk.symbols))
    return TorchStep(chunk, (arguments, {}), (*chunk.rows, *chunk.totals), line, backward=backward)


def _symbols_of(chunk: Chunk) -> list[sympy.Symbol]:
    nodes = ir.topological(root.node for root in chunk.direction.roots)
    buffers = [root.buffer for root in chunk.direction.roots] + [node.attrs[0] for node in nodes if node.op == "load"]
    buffers += [each for step in chunk.direction.steps for each in step.results if each is not None]
    buffers += [*chunk.rows, *chunk.totals, *(each.buffer for each in chunk.slices)]
    expressions = [chunk.size.rows, chunk.size.row_bytes]
    for buffer in buffers:
        expressions += (*buffer.shape, *buffer.strides)
    for node in nodes:
        if node.op in ("index", "scalar"):
            expressions.append(node.attrs[0])
        elif node.op == "load":
            expressions += node.attrs[1]
        elif node.op in ir.ALONG_AXES:
            expressions += (axis.size for axis in node.attrs[1])
    symbols = {symbol for each in expressions for symbol in sympy.sympify(each).free_symbols}
    sizes = {axis.size for axis in symbols if isinstance(axis, ir.Axis)}
    symbols |= {symbol for size in sizes for symbol in size.free_symbols}
    known = (each for each in symbols if not isinstance(each, ir.Axis) and not ir.is_hole(each) and each != ROWS)
    return sorted(known, key=str)
