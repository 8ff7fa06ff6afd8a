"""A plan: a loss as launches and steps of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from autogen import ir
from autogen.ir import Node
from autogen.program import Root
from autogen.provenance import Provenance
from autogen.scheduling.kernel import Granted, Kernel
from autogen.torch_step import TorchStep

Step = Kernel | TorchStep


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
    it does not. Backward is scheduled from its `direction`, for each layout of upstream gradients. All is made for
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
    early: Early = field(default_factory=Early)
    fixed: Mapping[sympy.Expr, int] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        """What backward is scheduled from, and all nodes that have names or lines."""
        named = self.provenance
        return [*(root.node for root in self.direction.roots), *named.names, *named.origins]
