"""A plan: a loss as launches and steps of torch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from autogen import ir
from autogen.ir import Node
from autogen.program import Root
from autogen.provenance import Provenance
from autogen.scheduling.launches.kernel import Granted, Kernel
from autogen.torch_step import TorchStep

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

    def needed(self, drawn: Iterable[str] = (), done: Container[str] = ()) -> Direction:
        """The same without the operands and steps that neither its results nor what is `drawn` are made of, nor those
        that another direction has `done`.
        """
        operands = {root.buffer.name: root for root in self.operands}
        makers = {name: step for step in self.steps for name in step.writes}
        found: set[str] = set()
        todo = [*names_of(root.node for root in self.results), *drawn]
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
    """Forward's kernel with the gradients, or `refused`: why there is none."""

    steps: tuple[Step, ...] = ()
    gradients: tuple[Root, ...] = ()
    granted: tuple[Granted, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Plan:
    """A loss as launches: forward, backward, and what the first keeps for the second.

    `saved` are statistics that forward stores beside its outputs, and tensors of torch's steps; `gradients` are what
    backward computes from them, `gradient_of[i]` the input that the i-th belongs to. `aliases` are results that a step
    of torch has made already, by name. `early` are the gradients that forward computes where that was asked for, or why
    it does not. Backward is scheduled from its `direction`, for each layout of upstream gradients; `kept` are the
    reductions that it reads, by their loads. All is made for
    calls with the `fixed` sizes only.
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
