"""A trace: the joint graph of a loss and its gradients, and the calls that it holds for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from autogen.calls.changes import Computed, State
from autogen.frozen import frozen
from autogen.tracing.domain.domain import Domain
from autogen.tracing.domain.entries import Reads
from autogen.tracing.results import TensorLeaf


@frozen
class TracedTensor:
    """A tensor at the edge of the graph; shape and strides are sympy expressions over the trace's sizes.

    `allocated` are the strides of a result, also where its `strides` are 0, as its size is 1.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    node: torch.fx.Node
    allocated: tuple[sympy.Expr, ...] | None = None


@frozen
class Trace:
    """The joint graph of one loss, for one class of inputs.

    `upstream[i]` is the gradient that backward is given for `outputs[i]`, `gradients[i]` the one that it returns for
    `inputs[i]`; each is None where there is none. `reached[i]` are the inputs that autograd comes to from `outputs[i]`,
    and `unread` those whose values the loss does not look at. Last among the inputs are the tensors that are found
    ahead. `constants` are tensors that the loss builds from numbers; `unknown` tells of values that have stayed
    symbols. Last among the outputs are those that are made for the `state` that the loss changes.
    """

    graph: torch.fx.Graph
    domain: Domain
    inputs: list[TracedTensor]
    constants: list[TracedTensor]
    outputs: list[TracedTensor]
    upstream: list[TracedTensor | None]
    reached: list[frozenset[int]]
    gradients: list[TracedTensor | None]
    unread: tuple[int, ...]
    structure: pytree.TreeSpec
    others: list[Any]
    numbers: dict[sympy.Symbol, torch.fx.Node]
    unknown: Reads
    state: State

    def result(self, tensors: Sequence[torch.Tensor], sizes: Mapping[str, Any]) -> Any:
        """The loss's own return value around the given outputs, but for those of the state."""
        rest = iter(tensors[: len(tensors) - self.state.outputs])
        leaves = [next(rest) if leaf is TensorLeaf else leaf for leaf in self.others]
        if any(isinstance(leaf, Computed) for leaf in leaves):
            read = {str(number): tensor.item() for number, tensor in zip(self.numbers, rest, strict=True)}
            known = {**read, **sizes}
            leaves = [leaf.value(known) if isinstance(leaf, Computed) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, self.structure)
