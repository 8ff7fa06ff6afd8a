"""What torch computes ahead of the kernels: values that decide which way a loss goes, and how large its tensors are.

A boolean that the code asks for is a *predicate* of the trace. What has as many elements as values tell (`nonzero`,
`unique`), and numbers by which the code makes sizes or branches, are computed from the tensors of each call before
anything else happens: to the trace they are further inputs, whose sizes are symbols like all others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from autogen.errors import SourceLine, ValueBranchError
from autogen.names import unique
from autogen.torch_step import TorchStep, is_random, is_view
from autogen.tracing.symbols import Symbols

aten = torch.ops.aten

MOST_SIZES = 16  # that values decide: each of them may be 0, 1 or more, and is another trace then

# Ops whose results have as many elements as values tell, and no gradient.
OF_UNKNOWN_SIZE = frozenset(
    {
        aten.nonzero.default,
        aten._unique2.default,
        aten.unique_dim.default,
        aten.unique_consecutive.default,
        aten.unique_dim_consecutive.default,
        aten.bincount.default,
        aten.repeat_interleave.Tensor,
    }
)


@dataclass(frozen=True)
class Size:
    """A symbolic size among the arguments of a recorded op, with its value in the traced call."""

    expression: sympy.Expr
    hint: int | float | None

    @classmethod
    def of(cls, symbolic: Any) -> Size:
        """From a `SymInt`, `SymFloat` or `SymBool`."""
        return cls(symbolic.node.expr, symbolic.node.hint)


def ancestors(*nodes: torch.fx.Node) -> set[torch.fx.Node]:
    """Some nodes and all that they are computed from."""
    found: set[torch.fx.Node] = set()
    todo = list(nodes)
    while todo:
        current = todo.pop()
        if current not in found:
            found.add(current)
            todo += current.all_input_nodes
    return found


def varies(node: torch.fx.Node) -> bool:
    """Whether a node may have another value in another call."""
    sizes = pytree.tree_leaves((node.args, node.kwargs))
    return node.op == "placeholder" or is_random(node.target) or any(isinstance(size, Size) for size in sizes)


@dataclass(frozen=True)
class Entry:
    """A value to be known ahead: that of `node`, for which the nodes of `order` are computed in turn."""

    node: torch.fx.Node
    order: tuple[torch.fx.Node, ...]


@dataclass(frozen=True)
class Predicate(Entry):
    """A number that has to be the same again."""

    value: bool | int | float

    def holds(self, value: bool | int | float) -> bool:
        """Whether it is."""
        return value == self.value or (value != value and self.value != self.value)


@dataclass(frozen=True)
class Number(Entry):
    """A number that kernels and guards are given; read on `line`."""

    name: str
    symbolic: torch.SymInt | torch.SymFloat
    line: SourceLine | None


@dataclass(frozen=True)
class Found(Entry):
    """Tensors that kernels are given, in the places of placeholders: one per tensor that `node` returns.

    `fakes` stand for them in the trace. Their sizes are `fresh` symbols, or known from what they are computed from.
    """

    names: tuple[str, ...]
    placeholders: tuple[torch.fx.Node, ...]
    fakes: tuple[torch.Tensor, ...]
    fresh: bool

    @property
    def steps(self) -> Iterator[torch.fx.Node]:
        """The ops that torch computes for them, without what costs nothing."""
        return (node for node in self.order if "geometry" in node.meta and not is_view(node.target))


class Keys:
    """Numbers for what nodes compute, the same for nodes that compute the same."""

    def __init__(self) -> None:
        self._keys: dict[torch.fx.Node, int] = {}
        self._numbers: dict[Hashable, int] = {}

    def of(self, node: torch.fx.Node) -> int:
        """The key of a node."""
        todo = [node]
        while todo:
            missing = [each for each in todo[-1].all_input_nodes if each not in self._keys]
            if not missing:
                current = todo.pop()
                self._keys.setdefault(current, self._numbers.setdefault(self._meaning(current), len(self._numbers)))
            todo += missing
        return self._keys[node]

    def _meaning(self, node: torch.fx.Node) -> Hashable:
        if node.op != "call_function" or is_random(node.target):  # two draws are two
            return node
        leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
        keys = [self._keys[leaf] if isinstance(leaf, torch.fx.Node) else repr(leaf) for leaf in leaves]
        return node.target, tuple(keys), str(structure)


class Values:
    """The values of a graph's nodes in one call, as far as they have been computed; `size` tells those of sizes."""

    def __init__(self, size: Callable[[Size], Any]) -> None:
        self._values: dict[torch.fx.Node, Any] = {}
        self._size = size

    def put(self, nodes: Sequence[torch.fx.Node], tensors: Sequence[torch.Tensor]) -> None:
        """Note the values of some nodes."""
        self._values |= {node: tensor.detach() for node, tensor in zip(nodes, tensors, strict=True)}

    def compute(self, node: torch.fx.Node, order: Sequence[torch.fx.Node]) -> Any:
        """The value of a node, by way of those of `order` in turn."""
        # The casts of autocast are part of the graph already.
        with torch.no_grad(), torch._C._DisableAutocast():
            for each in order:
                args, kwargs = pytree.tree_map(self._argument, (tuple(each.args), dict(each.kwargs)))
                function: Any = each.target
                self._values[each] = function(*args, **kwargs)
        return self._values[node]

    def number(self, node: torch.fx.Node, order: Sequence[torch.fx.Node]) -> bool | int | float:
        """The value of a node as a number."""
        number: bool | int | float = self.compute(node, order).item()
        return number

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return self._values[leaf]
        return self._size(leaf) if isinstance(leaf, Size) else leaf

    def tensors(self, node: torch.fx.Node, order: Sequence[torch.fx.Node]) -> list[torch.Tensor]:
        """The value of a node as tensors, laid out as kernels expect them."""
        value = self.compute(node, order)
        return [part.contiguous() for part in (value if isinstance(value, (tuple, list)) else (value,))]


class Ahead:
    """The entries of one trace, in the order in which it asked for them; `values` are those of the traced call.

    Args:
        graph: the trace.
        symbols: makes what stands for tensors and numbers in it.
    """

    def __init__(self, graph: torch.fx.Graph, symbols: Symbols) -> None:
        self.entries: list[Entry] = []
        self.values = Values(_hint)
        self.keys = Keys()
        self._graph, self._symbols = graph, symbols
        self._numbers: dict[int, Any] = {}
        self._found: dict[int, Found] = {}
        self._names: set[str] = set()
        self._known: set[torch.fx.Node] = set()

    @property
    def numbers(self) -> list[Number]:
        """The numbers among the entries."""
        return [entry for entry in self.entries if isinstance(entry, Number)]

    def know(self, node: torch.fx.Node, value: torch.Tensor) -> None:
        """Note the value that a node of the trace has in this call."""
        with _in_torch():
            self.values.put([node], [value])
        self._known.add(node)
        self._names.add(node.name)

    def predicate(self, node: torch.fx.Node, where: SourceLine | None) -> Any:
        """The number that a node is; it has to be that whenever the trace is used."""
        order = self._order(node, where)
        with _in_torch():
            value = self.values.number(node, order)
        if any(map(varies, ancestors(node))):
            self._add(Predicate(node, order, value))
        return value

    def number(self, node: torch.fx.Node, where: SourceLine | None) -> Any:
        """The number that a node is, as a symbol; integers below 2, as such sizes, and infinities are predicates."""
        key = self.keys.of(node)
        if key not in self._numbers:
            order = self._order(node, where)
            with _in_torch():
                value = self.values.number(node, order)
                is_double = self.values.compute(node, ()).dtype == torch.float64
            is_size = isinstance(value, int) and value >= 2 and not self._symbols.static
            if not is_size and (isinstance(value, int) or not math.isfinite(value)):
                self._numbers[key] = self.predicate(node, where)
            elif is_double:  # kernels take floats in single precision
                raise ValueBranchError("a number that kernels cannot be given", where=where)
            else:
                name = self._name("number")
                self._numbers[key] = self._symbols.number(name, value)
                self._add(Number(node, order, name, self._numbers[key], where))
        return self._numbers[key]

    def tensors(self, node: torch.fx.Node, where: SourceLine | None, fakes: Sequence[torch.Tensor] = ()) -> Found:
        """The tensors that a node returns, as inputs of the trace; of known sizes if there are `fakes` for them."""
        key = self.keys.of(node)
        if key not in self._found:
            if sum(each.fresh for each in self._found.values()) >= MOST_SIZES:
                raise ValueBranchError(f"more than {MOST_SIZES} sizes", where=where)
            order = self._order(node, where)
            with _in_torch():
                real = self.values.tensors(node, order)
                names = tuple(self._name(TorchStep.name_of(node.target)) for _ in real)
                made = tuple(fakes) or tuple(map(self._symbols.tensor, real, names))
            places = tuple(map(self._graph.placeholder, names))
            self._found[key] = Found(node, order, names, places, made, fresh=not fakes)
            self._add(self._found[key])
            for place, tensor in zip(places, real, strict=True):
                self.know(place, tensor)
        return self._found[key]

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._known.update(entry.order)

    def _name(self, name: str) -> str:
        name = unique(name, self._names)
        self._names.add(name)
        return name

    def _order(self, node: torch.fx.Node, where: SourceLine | None) -> tuple[torch.fx.Node, ...]:
        """The nodes that have to be computed for a node, after all entries so far.

        Raises:
            ValueBranchError: it depends on random draws, on gradients, or on a size that is not known.
        """
        needed: set[torch.fx.Node] = set()
        todo = [node]
        while todo:
            current = todo.pop()
            if current in needed or current in self._known:
                continue
            sizes = [each for each in pytree.tree_leaves((current.args, current.kwargs)) if isinstance(each, Size)]
            if current.op != "call_function" or is_random(current.target) or any(each.hint is None for each in sizes):
                raise ValueBranchError("a value that is not known before the loss runs", where=where)
            needed.add(current)
            todo += current.all_input_nodes
        return tuple(each for each in self._graph.nodes if each in needed)


def _in_torch() -> contextlib.AbstractContextManager[Any]:
    """Outside of the trace."""
    return torch.utils._python_dispatch._disable_current_modes()


def _hint(size: Size) -> int | float:
    assert size.hint is not None
    return size.hint
