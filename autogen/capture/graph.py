"""The joint graph of one segment: forward and backward as one fx graph, with the tensors at its edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

if TYPE_CHECKING:
    from autogen.capture.prologue import Prologue
    from autogen.capture.sizes import Sizes


@dataclass(frozen=True)
class EdgeTensor:
    """A tensor at the edge of the graph; shape and strides are sympy expressions over the graph's sizes.

    `allocated` are the strides of a result, also where its `strides` are 0, as its size is 1.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    node: torch.fx.Node
    allocated: tuple[sympy.Expr, ...] | None = None


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward of one segment.

    Attributes:
        graph: ATen ops in functional form. Nodes carry in `meta`: `geometry` (shape and dtype of each tensor in the
            result), `strides` (of each part, None for what is no tensor), `is_tuple`, `origin` (the user's line) and
            `backward` (whether autograd made the node).
        sizes: names of the symbolic sizes, and where a call reads them.
        inputs: what kernels are given; last those that the prologue finds.
        constants: tensors that the loss builds from numbers, with their values in `constant_values`.
        outputs: what forward returns.
        upstream: `upstream[i]` is the gradient that backward is given for `outputs[i]`, or None.
        reached: the inputs that `outputs[i]` hands a gradient to.
        gradients: `gradients[k]` is what backward returns for `inputs[k]`, or None.
        numbers: the nodes whose value the loss reads as a number (`tensor.item()`), by the number's symbol.
        prologue: what torch computes before the kernels, None if that is nothing.
    """

    graph: torch.fx.Graph
    sizes: Sizes
    inputs: list[EdgeTensor]
    constants: list[EdgeTensor]
    constant_values: list[torch.Tensor]
    outputs: list[EdgeTensor]
    upstream: list[EdgeTensor | None]
    reached: list[frozenset[int]]
    gradients: list[EdgeTensor | None]
    numbers: dict[sympy.Symbol, torch.fx.Node]
    prologue: Prologue | None = None
