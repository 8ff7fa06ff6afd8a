"""The plan of a loss: kernels and extern steps of both directions, and what is saved between them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from autogen import ir
from autogen.ir import Node
from autogen.ir.program import Root
from autogen.ir.provenance import Provenance
from autogen.ir.torch_step import TorchStep
from autogen.scheduling.chunks.size import ChunkSize
from autogen.scheduling.launches.kernel import Granted, Kernel
from autogen.settings.options import Sums

Step = Kernel | TorchStep


def names_of(nodes: Iterable[Node]) -> list[str]:
    """The buffers that are read below some nodes."""
    return [load.attrs[0].name for load in ir.loads(nodes)]


@dataclass(frozen=True)
class Direction:
    """What forward or backward has to do: `results`, by way of torch's `steps`, which read `operands` from kernels."""

    name: str
    results: tuple[Root, ...]
    operands: tuple[Root, ...] = ()
    steps: tuple[TorchStep, ...] = ()

    @property
    def roots(self) -> tuple[Root, ...]:
        """All that kernels store."""
        return (*self.operands, *self.results)

    def on(self, nodes: Sequence[Node]) -> Direction:
        """The same with other expressions for its roots."""
        return self.of([replace(root, node=node) for root, node in zip(self.roots, nodes, strict=True)])

    def of(self, roots: Sequence[Root]) -> Direction:
        """The same with other roots in the place of its own."""
        return replace(self, operands=tuple(roots[: len(self.operands)]), results=tuple(roots[len(self.operands) :]))

    def needed(self, also: Iterable[str] = (), done: Container[str] = ()) -> Direction:
        """The same without the operands and steps that neither its results nor what is `also` asked for are made of,
        nor those that another direction has `done`.
        """
        operands = {root.buffer.name: root for root in self.operands}
        makers = {name: step for step in self.steps for name in step.writes}
        found: set[str] = set()
        todo = [*names_of(root.node for root in self.results), *also]
        while todo:
            name = todo.pop()
            if name in found or name in done:
                continue
            if name in operands:
                found.add(name)
                todo += names_of([operands[name].node])
            elif name in makers:
                found.update(makers[name].writes)
                todo += makers[name].reads
        return replace(
            self,
            operands=tuple(root for root in self.operands if root.buffer.name in found),
            steps=tuple(step for step in self.steps if not found.isdisjoint(step.writes)),
        )

    def made(self) -> set[str]:
        """The buffers that its operands and steps are."""
        return {*(root.buffer.name for root in self.operands), *(name for step in self.steps for name in step.writes)}


@dataclass(frozen=True)
class Early:
    """The gradients that forward computes, or `refused`: why it does not.

    `steps` are forward with them, and `kept` what it then gives backward besides: the gradients themselves, of which
    backward's kernels look whether all that was `granted` has come true, or what the `direction` makes them of.
    """

    steps: tuple[Step, ...] = ()
    kept: tuple[ir.Buffer, ...] = ()
    granted: tuple[Granted, ...] = ()
    direction: Direction | None = None
    refused: str = ""


@dataclass(frozen=True)
class RowProducts:
    """Matrix products, by the names of what they make, that exist in chunks of rows only; each with its own size.

    The gradients of their weights are added up by `sums`.
    """

    names: tuple[str, ...]
    size: ChunkSize
    sizes: tuple[ChunkSize, ...]
    sums: Sums

    @staticmethod
    def of(buffers: Sequence[ir.Buffer], chunk: int | None, sums: Sums, *, gradients: bool) -> RowProducts:
        """Products of the same rows, and their gradients; of `chunk` rows if that is given."""
        row_bytes = [each.shape[1] * each.dtype.itemsize * (1 + gradients) for each in buffers]
        sizes = [ChunkSize(buffers[0].shape[0], each, chunk) for each in row_bytes]
        size = replace(sizes[0], row_bytes=sum(row_bytes))
        return RowProducts(tuple(each.name for each in buffers), size, tuple(sizes), sums)

    def alone(self, hints: Mapping[str, int]) -> list[RowProducts]:
        """Each of several products, if it alone is too large to exist at once."""
        if len(self.names) == 1:
            return []
        pairs = zip(self.names, self.sizes, strict=True)
        each = [RowProducts((name,), size, (size,), self.sums) for name, size in pairs]
        return [product for product in reversed(each) if product.size.is_less_than_all(hints)]


@dataclass(frozen=True)
class Plan:
    """A loss as launches: forward, backward, and what the first keeps for the second.

    `saved` are statistics that forward stores beside its outputs, and tensors of torch's steps; `gradients` are what
    backward computes from them, `gradient_of[i]` the input that the i-th belongs to. `aliases` are results that a step
    of torch has made already, by name. `early` are the gradients that forward computes where that was asked for, or why
    it does not. Backward is scheduled from its `direction`, for each layout of upstream gradients; `kept` are the
    reductions that it reads, by their loads. All is made for calls with the `fixed` sizes only, and for such as make
    one chunk of the rows of all `undivided` products. Those `in_chunks` are divided; `whole` says why others are not.
    """

    name: str
    forward: tuple[Step, ...]
    outputs: tuple[ir.Buffer, ...]
    saved: tuple[ir.Buffer, ...]
    gradients: tuple[Root, ...]
    gradient_of: tuple[int, ...]
    aliases: Mapping[str, str]
    hints: Mapping[str, int]
    provenance: Provenance
    direction: Direction = field(repr=False)
    kept: Mapping[Node, Node] = field(default_factory=dict, repr=False)
    early: Early = field(default_factory=Early)
    fixed: Mapping[sympy.Expr, int] = field(default_factory=dict)
    in_chunks: tuple[RowProducts, ...] = ()
    undivided: tuple[ChunkSize, ...] = ()
    whole: str = ""
