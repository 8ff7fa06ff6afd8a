"""The copy of AOTAutograd's graph that capture rewrites into the compiler's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from autogen import compat
from autogen.capture.sizes import SYMBOLIC, Size
from autogen.compat import pytree
from autogen.errors import UnavailableError
from autogen.ir.names import of_input, unique

aten = torch.ops.aten

NUMBERS = (*SYMBOLIC, int, float, bool)
"""What a node stands for in a capture, if it is no tensor."""


class Draft:
    """A copy of AOTAutograd's graph, with what is known of its edge.

    Attributes:
        graph: the nodes.
        arguments: the placeholders of the segment's arguments, called `names`.
        tangents: the placeholders of the upstream gradients.
        results: what forward returns: nodes, and what is no node.
        gradients: what backward returns for each argument.
        tensors: the arguments that kernels are given; others are `numbers`, each with `meta["number"]`, or objects.
        beside: the upstream gradients that are no gradients, but come with one.
        sources: the nodes by which the loss reads a number from a tensor, by its symbol.
        device: where the kernels run.
        shapes: the `ShapeEnv` of the capture.
    """

    def __init__(self, module: torch.fx.GraphModule, names: Sequence[str], count: int, shapes: Any) -> None:
        self.module, self.shapes = module, shapes
        self.graph = torch.fx.Graph()
        copied: dict[torch.fx.Node, torch.fx.Node] = {}
        returned: Any = self.graph.graph_copy(module.graph, copied)
        self.results: list[Any] = list(returned[:count])
        self.gradients: list[Any] = list(returned[count:])
        self.arguments, self.tangents = compat.arguments_of(self.graph)
        if len(self.arguments) != len(names):
            names = [names[compat.place_of(node)] for node in self.arguments]
        # Tensors have the first choice of names: the sizes among the arguments are called after them.
        is_size = [not isinstance(node.meta["val"], torch.Tensor) for node in self.arguments]
        taken: dict[int, str] = {}
        for place in sorted(range(len(names)), key=is_size.__getitem__):
            taken[place] = unique(of_input(names[place]), taken.values())
        self.names = [taken[place] for place in range(len(names))]
        self.sources: dict[sympy.Symbol, torch.fx.Node] = {}
        self.device = self._device()
        self.tensors: list[torch.fx.Node] = []
        self.numbers: list[torch.fx.Node] = []
        self.beside = self._give_back_offsets()
        self._separate()

    def described(self) -> list[Any]:
        """What AOTAutograd says of each result of forward, and of each gradient."""
        (output,) = (node for node in self.module.graph.nodes if node.op == "output")
        return pytree.tree_leaves(output.meta.get("desc"), is_leaf=lambda each: hasattr(each, "expr"))

    def _give_back_offsets(self) -> dict[torch.fx.Node, torch.fx.Node]:
        """The upstream gradients that are none, but what a jagged one has beside its values, such as offsets; each with
        that of the result, which the gradients of jagged arguments then have.
        """
        parts = map(compat.part_of, self.described()[: len(self.results)])
        made = dict(zip(parts, self.results, strict=True)) if self.gradients else {}
        found = {node: made[compat.part_of(node.meta["desc"])] for node in self.tangents}
        found = {node: own for node, own in found.items() if own in self.arguments}
        self.gradients = [found.get(each, each) for each in self.gradients]
        return found

    def parts_of_gradients(self) -> list[tuple[Any, Any]]:
        """What backward returns, with the argument that it is a gradient of, or the part of one (`compat.part_of`)."""
        if not self.gradients:
            return []
        return list(zip(map(compat.part_of, self.described()[len(self.results) :]), self.gradients, strict=True))

    def gradient_of(self) -> dict[torch.fx.Node, Any]:
        """The gradient of each argument; an integer tensor, as offsets are, comes back as it is."""
        gradients = {part: each for part, each in self.parts_of_gradients() if each not in self.arguments}
        return {node: gradients.get(compat.part_of(node.meta["desc"])) for node in self.arguments} if gradients else {}

    def replace(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Have a node stand in the place of another, at the edge of the graph, too."""
        old.replace_all_uses_with(new)
        self.results = [new if each is old else each for each in self.results]
        self.gradients = [new if each is old else each for each in self.gradients]
        self.sources = {symbol: new if node is old else node for symbol, node in self.sources.items()}

    def are_equal(self, size: Any, other: Any) -> None:
        """Note that two sizes are the same, if values decide them."""
        if isinstance(size, torch.SymInt) and isinstance(other, torch.SymInt):
            one, same = (self.shapes.replace(each.node.expr) for each in (size, other))
            if one != same and self.shapes.is_unbacked_symint(one):
                compat.replace_symbol(self.shapes, one, same)

    def drop_symbols(self) -> None:
        """Write symbolic sizes into the arguments of the nodes that take them."""
        for node in self.graph.nodes:
            if node.op not in ("call_function", "placeholder") or not isinstance(node.meta.get("val"), NUMBERS):
                continue
            size = self._written(node.meta["val"])

            def put(leaf: Any, own: torch.fx.Node = node, new: Any = size) -> Any:
                return new if leaf is own else leaf

            for user in list(node.users):
                if not isinstance(user.meta.get("val"), NUMBERS):
                    user.args, user.kwargs = pytree.tree_map(put, (user.args, user.kwargs))

    def _written(self, value: Any) -> Any:
        """A number as an argument of a node."""
        if not isinstance(value, SYMBOLIC):
            return value
        expression = self.shapes.replace(value.node.expr)
        if expression.is_Integer and isinstance(value, torch.SymInt):
            return int(expression)
        return Size(expression)

    def _device(self) -> torch.device:
        fakes = [node.meta["val"] for node in self.arguments if isinstance(node.meta["val"], torch.Tensor)]
        if not fakes:
            raise UnavailableError("the loss was given no tensor", remedy="Pass a tensor as an argument.")
        on_gpu = next((each.device for each in fakes if each.device.type != "cpu"), None)
        return on_gpu or fakes[0].device

    def _separate(self) -> None:
        """Tell the tensors among the arguments from the numbers: a float comes as a tensor of one on the host."""
        gradients = self.gradient_of()
        for node in self.arguments:
            value = node.meta["val"]
            if compat.is_object(node):
                continue
            if not isinstance(value, torch.Tensor):
                node.meta["number"] = value
                self.numbers.append(node)
            elif value.dim() == 0 and self._is_number(value) and gradients.get(node) is None:
                node.meta["number"] = self._symbol_of(node, value)
                self.numbers.append(node)
            else:
                self.tensors.append(node)

    def _is_number(self, value: torch.Tensor) -> bool:
        """Whether a tensor of one is on the host, while the kernels run elsewhere, or is how Dynamo passes a float."""
        return value.device.type == "cpu" and (self.device.type != "cpu" or value.dtype == torch.float64)

    def _symbol_of(self, node: torch.fx.Node, value: torch.Tensor) -> Any:
        """A symbol for the number that a tensor of one holds: that of its `.item()` if it has one."""
        for user in node.users:
            if user.target is aten._local_scalar_dense.default and isinstance(user.meta["val"], SYMBOLIC):
                return user.meta["val"]
        is_float = value.is_floating_point()
        create = self.shapes.create_unbacked_symfloat if is_float else self.shapes.create_unbacked_symint
        with self.shapes.ignore_fresh_unbacked_symbols():
            return create()


def geometry_of(value: Any) -> dict[str, Any]:
    """What lowering asks of a node's result, for `meta`."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return {
        "geometry": [(tuple(p.shape), p.dtype) for p in parts if isinstance(p, torch.Tensor)],
        "strides": [p.stride() if isinstance(p, torch.Tensor) else None for p in parts],
        "is_tuple": not isinstance(value, torch.Tensor),
    }
