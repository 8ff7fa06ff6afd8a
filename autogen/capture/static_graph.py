"""Compare a capture with the first one, for losses with `static_graph=True`.

Compared are operations, arguments, wiring and constants, for each set of gradients; sizes may differ. A difference is a
`GraphChangedError`.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from autogen.compat import pytree

if TYPE_CHECKING:
    from autogen.capture.graph import JointGraph


@dataclass(frozen=True)
class Operation:
    """An operation of a graph: its name, its arguments, tensors as positions in the graph, and the user's line."""

    name: str
    arguments: str
    line: str


@dataclass(frozen=True)
class Constant:
    """A tensor that a loss makes of numbers. Its shape is a matter of sizes, and so are then its numbers, of which a
    digest is kept.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    numbers: str
    line: str

    @classmethod
    def of(cls, node: torch.fx.Node, value: torch.Tensor) -> Constant:
        """That of a node of a joint."""
        content = value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return cls(value.dtype, tuple(value.shape), hashlib.sha256(content).hexdigest(), _line(node))

    def is_like(self, later: Constant) -> bool:
        """Whether it does not differ from that of a later graph, but for sizes."""
        is_of_other_sizes = self.shape != later.shape
        return self.dtype == later.dtype and (is_of_other_sizes or self.numbers == later.numbers)


@dataclass(frozen=True)
class Graph:
    """The operations of a joint graph, forward and backward, in order.

    `inputs` are the dtypes and ranks of its tensors, `results` where what the loss returns, or keeps, is in the graph.
    """

    inputs: tuple[str, ...]
    operations: tuple[Operation, ...]
    constants: tuple[Constant, ...]
    results: str

    @classmethod
    def of(cls, joint: JointGraph) -> Graph:
        """The graph of a capture, in which sizes have names, so that those of another call make no other graph."""
        edge = {each.node for each in (*joint.inputs, *joint.constants, *joint.upstream) if each is not None}
        tensors = [node for node in joint.graph.nodes if node in edge or node.op == "call_function"]
        positions = {node: place for place, node in enumerate(tensors)}
        inputs = tuple(f"{each.name}: {_kind(each)}" for each in joint.inputs)
        pairs = zip(joint.constants, joint.constant_values, strict=True)
        constants = tuple(Constant.of(each.node, value) for each, value in pairs)
        results = _listed(positions[each.node] for each in joint.outputs)
        return cls(inputs, tuple(_operations(joint.graph.nodes, positions)), constants, results)

    def difference(self, later: Graph) -> str | None:
        """How a later graph differs, None if it does not: other tensors, fewer or more operations, another one, one
        with other arguments, or other results.
        """
        for wanted, found in zip(self.inputs, later.inputs, strict=False):
            if wanted != found:
                return f"other tensors: {found}, first {wanted}"
        if len(self.inputs) != len(later.inputs):
            return f"other tensors: {len(later.inputs)}, first {len(self.inputs)}"
        pairs = list(zip(self.operations, later.operations, strict=False))
        place = next((k for k, (first, now) in enumerate(pairs) if first.name != now.name), len(pairs))
        count = len(later.operations) - len(self.operations)
        if count:
            where = (later if count > 0 else self).operations[place]
            number = f"{abs(count)} {'more' if count > 0 else 'fewer'} operation{'s' if abs(count) > 1 else ''}"
            return f"{number}, from {where.name} on{where.line}"
        if place < len(pairs):
            first, now = pairs[place]
            return f"another operation: {now.name}, first {first.name}{now.line}"
        for first, now in pairs:
            if first.arguments != now.arguments:
                return f"other arguments of {now.name}: {now.arguments}, first {first.arguments}{now.line}"
        for made, other in zip(self.constants, later.constants, strict=False):
            if not made.is_like(other):
                return f"other tensors: another constant, {_kind(other)}{other.line}"
        if self.results != later.results:
            return f"other results: {later.results}, first {self.results}"
        return None


def _listed(positions: Iterable[int], *more: str) -> str:
    return f"({', '.join((*(f'%{place}' for place in positions), *more))})"


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype)[6:]} of {len(tensor.shape)} dimensions"


def _line(node: torch.fx.Node) -> str:
    origin = node.meta.get("origin")
    return f", at {origin}" if origin else ""


def _operations(nodes: Iterable[torch.fx.Node], positions: dict[torch.fx.Node, int]) -> Iterable[Operation]:
    for node in nodes:
        if node.op != "call_function" or ("geometry" not in node.meta and node.target is not operator.getitem):
            continue
        leaves = pytree.tree_leaves((node.args, node.kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        others = [_text(leaf) for leaf in leaves if not isinstance(leaf, torch.fx.Node)]
        arguments = _listed((positions[leaf] for leaf in given if leaf in positions), *others)
        yield Operation(str(node.target).removeprefix("aten."), arguments, _line(node))


def _text(value: Any) -> str:
    """A number, flag or name as text; a size that differs from call to call without its value and name."""
    from autogen.capture.sizes import Size

    if isinstance(value, Size):
        return "a size" if value.expression.free_symbols else str(value.expression)
    return str(value)
