"""The data-dependent prologue: what torch computes before the kernels because sizes of tensors depend on it.

`nonzero`, `unique` and the like give as many elements as values tell. They, and all that they are computed from, are a
graph of their own, the prologue; to the kernels what it finds are further inputs, whose sizes are read in each call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from autogen import compat
from autogen.errors import ValueBranchError
from autogen.ir.torch_step import ancestors, is_random, is_view

aten = torch.ops.aten


class UnequalSizesError(Exception):
    """What is found in a call is of sizes that kernels are not made for."""


class Prologue:
    """A graph that torch runs on the inputs of each call; it returns the tensors and the numbers that it finds.

    Args:
        found: the nodes whose value is found, of the joint graph.
        inputs: the placeholders of the joint graph.
        numbers: those among the found nodes that are numbers.
        shapes: the `ShapeEnv` of the capture.

    Raises:
        ValueBranchError: something is found only in backward.
    """

    def __init__(
        self,
        found: Sequence[torch.fx.Node],
        inputs: Sequence[torch.fx.Node],
        numbers: Collection[torch.fx.Node],
        shapes: Any,
    ) -> None:
        needed = ancestors(*found)
        late = next((node for node in needed if node.op == "placeholder" and node not in set(inputs)), None)
        if late is not None or any(node.meta.get("backward") for node in needed):
            raise ValueBranchError("a size or number that only backward computes", where=found[0].meta.get("origin"))
        self.tensors = [node for node in found if node not in numbers]
        self.numbers = [node for node in found if node in numbers]
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
        self.nodes = [node for node in found[0].graph.nodes if node in needed and node not in copies]
        for node in self.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(([copies[node] for node in self.tensors], [copies[node] for node in self.numbers]))
        root = torch.nn.Module()
        for node in self.nodes:
            if node.op == "get_attr":
                setattr(root, str(node.target), node.meta["value"])
        self._module = torch.fx.GraphModule(root, graph)
        self._alike = self._places_of_one_size(shapes)

    @property
    def steps(self) -> list[torch.fx.Node]:
        """The ops that torch runs, without what costs nothing."""
        return [node for node in self.nodes if "geometry" in node.meta and not is_view(node.target)]

    @property
    def is_random(self) -> bool:
        """Whether it draws from torch's random stream."""
        return any(map(is_random, (node.target for node in self.nodes)))

    def _places_of_one_size(self, shapes: Any) -> list[list[tuple[int, int]]]:
        """The dimensions of found tensors that have to be equal, as the loss computes with them."""
        places: dict[Any, list[tuple[int, int]]] = {}
        for k, node in enumerate(self.tensors):
            for dim, size in enumerate(node.meta["val"].shape):
                if isinstance(size, torch.SymInt):
                    places.setdefault(shapes.replace(size.node.expr), []).append((k, dim))
        return [each for each in places.values() if len(each) > 1]

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any]]:
        """The tensors, each contiguous, and the numbers that are found for the arguments of a call.

        Raises:
            UnequalSizesError: tensors that have to be of one size are not: torch's operations refuse or broadcast them.
        """
        with torch.no_grad(), compat.WithoutAutocast():  # the casts of autocast are nodes of the graph
            tensors, numbers = self._module(*arguments)
        if any(len({tensors[k].shape[dim] for k, dim in places}) > 1 for places in self._alike):
            raise UnequalSizesError
        return [tensor.contiguous() for tensor in tensors], numbers
