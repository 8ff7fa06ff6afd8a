"""What torch computes before the kernels: tensors and numbers that decide how large other tensors are.

`nonzero`, `unique` and the like give as many elements as values tell. They, and all that they are computed from, are a
graph of their own, the prologue; to the kernels what it finds are further inputs, whose sizes are read in each call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from autogen import compat
from autogen.capture.graph import ancestors
from autogen.errors import ValueBranchError
from autogen.torch_step import is_random, is_view

aten = torch.ops.aten


class Prologue:
    """A graph that torch runs on the inputs of each call; it returns the tensors and the numbers that it finds.

    Args:
        found: the nodes whose value is found, of the joint graph.
        inputs: the placeholders of the joint graph.
        numbers: those among the found nodes that are numbers.

    Raises:
        ValueBranchError: something is found only in backward.
    """

    def __init__(
        self, found: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node], numbers: Collection[torch.fx.Node]
    ) -> None:
        needed = ancestors(*found)
        late = next((node for node in needed if node.op == "placeholder" and node not in set(inputs)), None)
        if late is not None or any(node.meta.get("backward") for node in needed):
            raise ValueBranchError("a value that is found in backward", where=found[0].meta.get("origin"))
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

    @property
    def steps(self) -> list[torch.fx.Node]:
        """The ops that torch runs, without what costs nothing."""
        return [node for node in self.nodes if "geometry" in node.meta and not is_view(node.target)]

    @property
    def is_random(self) -> bool:
        """Whether it draws from torch's random stream."""
        return any(map(is_random, (node.target for node in self.nodes)))

    def __call__(self, arguments: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any]]:
        """The tensors, each contiguous, and the numbers that are found for the arguments of a call."""
        with torch.no_grad(), compat.WithoutAutocast():  # the casts of autocast are nodes of the graph
            tensors, numbers = self._module(*arguments)
        return [tensor.contiguous() for tensor in tensors], numbers
