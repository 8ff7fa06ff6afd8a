"""Take `cat`, `stack` and `pad_sequence` of lists out of Dynamo's graph, so that torch runs them before the kernels.

`torch.cat`, `torch.stack` and `pad_sequence` of more than a few tensors are no choice between so many inputs in a
kernel, but a copy that torch makes, in one launch, of what the arguments of a call have. It is cut out of Dynamo's
graph, so that AOTAutograd and the compiler see one tensor, with sizes of its own, however many it is made of. Lengths
that only the copy depends on may be anything, 0 and 1 as well.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from autogen import compat
from autogen.capture import lists
from autogen.compat import pytree

MOST_PARTS = 8
"""Tensors that a kernel itself puts together,"""
MOST_LISTED = 2
"""and if they are elements of a list, or parts of one tensor, of which there are as many as there are images."""

_JOINS: dict[Any, Callable[..., Any]] = {
    torch.cat: torch.cat,
    torch.concat: torch.cat,
    torch.concatenate: torch.cat,
    torch.stack: torch.stack,
    compat.pad_sequence: lists.padded,
    compat.tensor_of_numbers: torch.tensor,  # of numbers that vary
}
_EMPTY = (0, 1)  # lengths that torch takes as they are


class Packing:
    """The part of Dynamo's graph that puts tensors together, and the rest.

    Args:
        whole: Dynamo's graph.
        joins: the nodes that put together what is given.
        given: the nodes that show, or compute numbers from, what the graph is given.
        shapes: the `ShapeEnv` of the capture.
    """

    def __init__(
        self, whole: torch.fx.GraphModule, joins: Sequence[torch.fx.Node], given: set[torch.fx.Node], shapes: Any
    ) -> None:
        self._shapes, self._joins = shapes, joins
        self._new: dict[sympy.Expr, Any] = {}  # other sizes for what is computed from lengths
        self._meant: dict[sympy.Symbol, sympy.Expr] = {}  # what their symbols are
        self._lengths: set[sympy.Symbol] = set()  # what parts do not have in common
        for node in joins:
            symbols = list(map(_symbols, _parts(node)))
            self._lengths |= set.union(*symbols) - set.intersection(*symbols)
        self._places = [node for node in whole.graph.nodes if node.op == "placeholder"]
        inside = self._inside(whole, given)
        self._arguments = [node for node in inside if node.op == "placeholder" or self._is_cut(node, given)]
        self._sizes: list[tuple[torch.fx.Node, int]] = []  # those that are new, by the node and dimension that has it
        self._values = {node: self._new_value(node) for node in self._arguments if node.op != "placeholder"}
        self.graph = self._rest(whole, inside)
        self._outer = self._before(whole)

    @property
    def steps(self) -> tuple[str, ...]:
        """What torch runs before the kernels, such as "cat of 3"."""
        return tuple(f"{node.target.__name__} of {len(_parts(node))}" for node in self._joins)  # type: ignore[union-attr]

    @property
    def reason(self) -> str:
        """The same in a sentence."""
        return f"torch puts tensors of lists together before the kernels: {', '.join(dict.fromkeys(self.steps))}"

    def given(self, example: Sequence[Any]) -> list[Any]:
        """The arguments of `graph` in the capture, by those of the whole graph."""
        own = self._values | dict(zip(self._places, example, strict=True))
        return [own[node] for node in self._arguments] + [self._values[node].shape[dim] for node, dim in self._sizes]

    def settle(self) -> None:
        """Have guards on sizes of what is put together be guards on the lengths that it is put together of."""
        compat.rewrite_guards(self._shapes, self._meant)

    def around(self, runner: Callable[..., Any]) -> Callable[..., Any]:
        """What puts the tensors of a call together, and runs the rest."""
        outer = self._outer.forward

        def run(*arguments: Any) -> Any:
            return runner(*outer(*arguments))

        return run

    def _is_cut(self, node: torch.fx.Node, given: set[torch.fx.Node]) -> bool:
        """Whether a node is computed before the rest: it puts tensors together, or counts what they have."""
        if node in self._joins:
            return True
        value = node.meta.get("example_value")
        if node not in given or node.op == "placeholder" or not isinstance(value, torch.SymInt):
            return False
        return not self._lengths.isdisjoint(value.node.expr.free_symbols)

    def _inside(self, whole: torch.fx.GraphModule, given: set[torch.fx.Node]) -> list[torch.fx.Node]:
        """The nodes that results depend on, up to those that are cut, in the order of the graph."""
        needed: set[torch.fx.Node] = set()
        todo = [whole.graph.output_node()]
        while todo:
            node = todo.pop()
            if node not in needed:
                needed.add(node)
                todo += () if self._is_cut(node, given) else node.all_input_nodes
        symbols = {symbol for node in needed if node.op == "placeholder" for symbol in _symbols(node)}
        cut = (node for node in needed if self._is_cut(node, given))
        symbols |= {symbol for node in cut for symbol in _symbols(node)} - self._lengths
        # Sizes that tensors among the arguments have, as AOTAutograd expects them.
        needed |= {node for node in self._places if not _is_tensor(node) and _symbols(node) & symbols}
        return [node for node in whole.graph.nodes if node in needed]

    def _rest(self, whole: torch.fx.GraphModule, inside: Sequence[torch.fx.Node]) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self._arguments:
            copies[node] = graph.placeholder(str(node.target) if node.op == "placeholder" else node.name)
            copies[node].meta = dict(node.meta)
            copies[node].meta["example_value"] = self._values.get(node, node.meta["example_value"])
        for node, dim in self._sizes:
            graph.placeholder(f"{node.name}_size{dim}").meta["example_value"] = self._values[node].shape[dim]
        for node in inside:
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return torch.fx.GraphModule(whole, graph)

    def _before(self, whole: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}

        def copied(node: torch.fx.Node) -> torch.fx.Node:
            if node not in copies:
                for each in node.all_input_nodes:
                    copied(each)
                copies[node] = graph.node_copy(node, copies.__getitem__)
            return copies[node]

        for node in self._places:
            copied(node)
        self._take(graph, copied, copies)
        for node in self._arguments:
            copy = copied(node)
            if node in self._joins:
                copy.target = _JOINS[node.target]
                if node.target is not compat.tensor_of_numbers and not node.meta["example_value"].requires_grad:
                    copies[node] = graph.call_method("detach", (copy,))
        sizes = [graph.call_method("size", (copies[node], dim)) for node, dim in self._sizes]
        graph.output((*(copies[node] for node in self._arguments), *sizes))
        return torch.fx.GraphModule(whole, graph)

    def _take(
        self,
        graph: torch.fx.Graph,
        copied: Callable[[torch.fx.Node], torch.fx.Node],
        copies: dict[torch.fx.Node, torch.fx.Node],
    ) -> None:
        """Take the parts that one tensor has, of which there is a gradient, in one step."""
        by_whole: dict[torch.fx.Node, dict[torch.fx.Node, list[Any]]] = {}
        for node in self._joins:
            for part in _parts(node):
                base, place = _place_of(part)
                if place and base.meta["example_value"].requires_grad:
                    by_whole.setdefault(base, {})[part] = place
        for base, parts in by_whole.items():
            for index in pytree.tree_leaves(list(parts.values())):
                for node in _nodes_of(index):
                    copied(node)
            places = torch.fx.node.map_arg(list(parts.values()), copies.__getitem__)
            all_parts = graph.call_function(lists.taken, (copied(base), places))
            for k, part in enumerate(parts):
                copies[part] = graph.call_function(operator.getitem, (all_parts, k))

    def _new_value(self, node: torch.fx.Node) -> Any:
        value = node.meta["example_value"]
        if not isinstance(value, torch.Tensor):
            return self._size(value, node.name, is_length=False)
        sizes = []
        for dim, size in enumerate(value.shape):
            count = len(self._new)
            sizes.append(self._size(size, f"{node.name}_size{dim}", is_length=True))
            if len(self._new) > count and isinstance(sizes[-1], torch.SymInt):
                self._sizes.append((node, dim))
        return compat.fake_like(value, sizes)

    def _size(self, size: Any, name: str, *, is_length: bool) -> Any:
        """A size of what is put together: another symbol for what is computed from lengths."""
        if not isinstance(size, torch.SymInt):
            return size
        expression = self._shapes.replace(size.node.expr)
        if self._lengths.isdisjoint(expression.free_symbols):
            return size
        if expression not in self._new:
            self._new[expression] = new = compat.new_size(self._shapes, size.node.hint, name, is_length=is_length)
            if isinstance(new, torch.SymInt):
                self._meant[new.node.expr] = expression
            if is_length:
                _settle(self._shapes, expression, size.node.hint)
        return self._new[expression]


def packing_of(whole: torch.fx.GraphModule, shapes: Any) -> Packing | None:
    """What of Dynamo's graph puts tensors together before the kernels; None if nothing does."""
    joins, given = _joins_of(whole)
    return Packing(whole, joins, given, shapes) if joins else None


def packs(whole: torch.fx.GraphModule) -> bool:
    """Whether torch is to put tensors together before the kernels of a graph."""
    return bool(_joins_of(whole)[0])


def _joins_of(whole: torch.fx.GraphModule) -> tuple[list[torch.fx.Node], set[torch.fx.Node]]:
    """The nodes that put together what a graph is given, but for where in-place operations and changes of torch's state
    might come before; and those that show what it is given, or compute numbers from numbers.
    """
    nodes = list(whole.graph.nodes)
    given: set[torch.fx.Node] = set()
    joins: list[torch.fx.Node] = []
    if any(map(_has_effect, nodes)):
        return joins, given
    edge = [node.meta["example_value"] for node in nodes if node.op == "placeholder" and _is_tensor(node)]
    memory = set(map(compat.storage_of, edge))
    for node in nodes:
        if not given.issuperset(node.all_input_nodes) or node.op in ("get_attr", "output"):
            continue
        if node.target in _JOINS:
            if _is_to_pack(node):
                joins.append(node)
        elif node.op == "placeholder" or _shows(node, memory):
            given.add(node)
    return joins, given


def settle_lengths(graph: torch.fx.GraphModule, shapes: Any) -> None:
    """Guard that sizes of tensors that kernels see are 0, 1, or more, as in this call, which torch does of others."""
    for node in graph.graph.nodes:
        if node.op == "placeholder" and _is_tensor(node):
            for size in node.meta["example_value"].shape:
                if isinstance(size, torch.SymInt) and size.node.has_hint():
                    expression = shapes.replace(size.node.expr)
                    if expression.is_Symbol and not expression.is_positive:
                        _settle(shapes, expression, size.node.hint)


def _settle(shapes: Any, size: sympy.Expr, hint: int) -> None:
    shapes.evaluate_expr(sympy.Eq(size, hint) if hint in _EMPTY else sympy.Ge(size, len(_EMPTY)))


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def _parts(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors, or numbers, that a node puts together."""
    parts: Any = node.args[0] if node.args else node.kwargs.get("tensors")
    return [each for each in parts if isinstance(each, torch.fx.Node)] if isinstance(parts, (list, tuple)) else []


def _is_to_pack(node: torch.fx.Node) -> bool:
    """Whether torch is to put some tensors together: there are many, or one has a length that would be fixed."""
    parts, value = _parts(node), node.meta.get("example_value")
    if value is None or any(isinstance(size, torch.SymInt) and not size.node.has_hint() for size in value.shape):
        return False  # values decide how large it is
    if len(parts) > (MOST_LISTED if all(map(_is_listed, parts)) else MOST_PARTS):
        return True
    return len(parts) > 1 and any(
        isinstance(size, torch.SymInt) and size.node.has_hint() and size.node.hint in _EMPTY
        for each in filter(_is_tensor, parts)
        for size in each.meta["example_value"].shape
    )


def _is_listed(part: torch.fx.Node) -> bool:
    """Whether a tensor is an element of a list that a call is given, or the part of a tensor."""
    base, place = _place_of(part)
    return bool(place) or (base.op == "placeholder" and re.search(r"\]\[\d+\]$", compat.source_of(base)) is not None)


def _shows(node: torch.fx.Node, memory: set[int]) -> bool:
    """Whether a node shows what is given in another way, picks from it, or computes a number from numbers."""
    value = node.meta.get("example_value")
    if node.target is operator.getitem or isinstance(value, (torch.SymInt, int)):
        return True
    parts = value if isinstance(value, (tuple, list)) else [value]
    return all(isinstance(part, torch.Tensor) and compat.storage_of(part) in memory for part in parts)


def _has_effect(node: torch.fx.Node) -> bool:
    """Whether a node may change a tensor, or torch's state."""
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    is_inplace = name.endswith("_") and not name.endswith("__")
    is_operator = getattr(node.target, "__module__", "") == "_operator" and name in _IN_PLACE
    return is_inplace or is_operator or "out" in node.kwargs or "enabled" in name or "autocast" in name


_IN_PLACE = {"setitem", "delitem", *(f"i{name}" for name in dir(operator) if hasattr(operator, f"i{name}"))}


def _place_of(node: torch.fx.Node) -> tuple[torch.fx.Node, list[Any]]:
    """What a node is a part of, and the indices, of numbers and slices, by which it is taken."""
    place: list[Any] = []
    while node.target is operator.getitem:
        whole, index = node.args
        if not isinstance(whole, torch.fx.Node) or not _is_tensor(whole) or any(map(_is_tensor, _nodes_of(index))):
            break
        place.insert(0, index)
        node = whole
    return node, place


def _nodes_of(index: Any) -> list[torch.fx.Node]:
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(index, found.append)
    return found


def _symbols(node: torch.fx.Node) -> set[sympy.Symbol]:
    value = node.meta.get("example_value")
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}
