"""A trace: the joint graph of a loss and its gradients, and the calls that it holds for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from autogen.calls.changes import Computed, Input, Output, State
from autogen.frozen import frozen
from autogen.tracing.domain.domain import Domain
from autogen.tracing.domain.entries import Reads


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

    def result(self, outputs: Sequence[torch.Tensor], sizes: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
        """The loss's own return value around its outputs, but for those of the state, and the tensors of the call."""
        known: dict[str, Any] = {}
        if any(isinstance(leaf, Computed) for leaf in self.others):
            last = len(outputs) - self.state.outputs
            numbers = zip(self.numbers, outputs[last - len(self.numbers) : last], strict=True)
            known = {**{str(number): tensor.item() for number, tensor in numbers}, **sizes}

        def of_call(leaf: Any) -> Any:
            if isinstance(leaf, Computed):
                return leaf.value(known)
            if isinstance(leaf, Output):
                return outputs[leaf.position]
            return tensors[leaf.position] if isinstance(leaf, Input) else leaf

        return pytree.tree_unflatten(map(of_call, self.others), self.structure)
