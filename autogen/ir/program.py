"""The result of lowering: IR over tensors in memory, and the steps that torch runs between kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from autogen import ir
from autogen.ir.provenance import Provenance
from autogen.ir.torch_step import TorchStep


@dataclass(frozen=True)
class Root:
    """A result: `node` is its element at `index`, to be stored in `buffer` at the same index."""

    buffer: ir.Buffer
    index: tuple[sympy.Expr, ...]
    node: ir.Node

    @property
    def index_axes(self) -> frozenset[ir.Axis]:
        """The axes of the index: there is one result per value of these."""
        symbols = frozenset().union(*(entry.free_symbols for entry in self.index))
        return frozenset(symbol for symbol in symbols if isinstance(symbol, ir.Axis))

    def read(self) -> ir.Node:
        """The node, read from where it is stored: of what is the same all along an axis, the first."""
        repeated = dict.fromkeys(self.index_axes - self.node.axes, sympy.S.Zero)
        return ir.load(self.buffer, [entry.xreplace(repeated) for entry in self.index])

    def reads(self) -> set[ir.Buffer]:
        """The buffers that it is computed from."""
        return {load.attrs[0] for load in ir.loads([self.node])}


def stored(node: ir.Node, name: str, role: str, axes: Sequence[ir.Axis]) -> Root:
    """A value that is kept in memory, with one element per value of its axes."""
    shape = tuple(axis.size for axis in axes)
    return Root(ir.Buffer(name, node.dtype, shape, ir.contiguous_strides(shape), role), tuple(axes), node)


@dataclass(frozen=True)
class Program:
    """A loss as IR: what it returns, and the gradient of each input that has one.

    `steps` are the ops that torch runs, in the order of the trace; `operands` the tensors that they read and that
    kernels have to compute for them.
    """

    outputs: tuple[Root, ...]
    gradients: tuple[Root, ...]
    gradient_of: tuple[int, ...]
    provenance: Provenance
    operands: tuple[Root, ...] = ()
    steps: tuple[TorchStep, ...] = ()
