"""What torch computes ahead of the kernels: values that decide which way a loss goes, and how large its tensors are.

A boolean that the code asks for is a *predicate* of the trace. What has as many elements as values tell (`nonzero`,
`unique`), and numbers by which the code makes sizes or branches, are computed from the tensors of each call before
anything else happens: to the trace they are further inputs, whose sizes are symbols like all others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from autogen.errors import SourceLine, ValueBranchError
from autogen.names import unique
from autogen.torch_step import TorchStep, is_random
from autogen.tracing.domain.entries import Entry, Found, Number, Predicate, Size, Values
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


class _Numbered:
    """Numbers for what nodes compute, the same for nodes that compute the same; `text` tells what arguments are."""

    def __init__(self, text: Callable[[Any], str]) -> None:
        self._keys: dict[torch.fx.Node, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._text = text

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
        keys = [self._keys[leaf] if isinstance(leaf, torch.fx.Node) else self._text(leaf) for leaf in leaves]
        return node.target, tuple(keys), str(structure)


def _but_for_size(leaf: Any) -> str:
    return f"size of {leaf.hint}" if isinstance(leaf, Size) and isinstance(leaf.hint, int) else repr(leaf)


class Keys:
    """Which nodes compute the same, by numbers: in all calls, or while some sizes are equal that now are."""

    def __init__(self) -> None:
        self._always, self._now = _Numbered(repr), _Numbered(_but_for_size)

    def of(self, node: torch.fx.Node) -> int:
        """The key of a node."""
        return self._always.of(node)

    def of_now(self, node: torch.fx.Node) -> int:
        """The key of a node, which others have that differ from it by `differences` alone."""
        return self._now.of(node)

    def differences(self, one: torch.fx.Node, other: torch.fx.Node) -> list[tuple[Size, Size]]:
        """The sizes in which two nodes differ that are one now."""
        found: list[tuple[Size, Size]] = []
        todo, seen = [(one, other)], set[tuple[torch.fx.Node, torch.fx.Node]]()
        while todo:
            pair = todo.pop()
            if pair in seen or self.of(pair[0]) == self.of(pair[1]):
                continue
            seen.add(pair)
            for own, their in zip(*(pytree.tree_leaves((node.args, node.kwargs)) for node in pair), strict=True):
                if isinstance(own, torch.fx.Node):
                    todo.append((own, their))
                elif isinstance(own, Size) and own.expression != their.expression:
                    found.append((own, their))
        return found


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
                raise ValueBranchError(f"masks, nonzero or the like at more than {MOST_SIZES} places", where=where)
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
            if is_random(current.target):
                raise ValueBranchError("a value that random draws decide", where=where)
            if current.op != "call_function" or any(each.hint is None for each in sizes):
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
