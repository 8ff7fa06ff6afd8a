"""What has to be known ahead of the kernels in each call of a trace, and how it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from autogen.errors import SourceLine
from autogen.frozen import frozen
from autogen.torch_step import is_view


@frozen
class Reads:
    """Which values are known ahead: the `numbers` that the code reads, and how many elements `masks` choose.

    What is not is kept a symbol, which kernels can often do with; predicates, and what `nonzero` and the like find,
    always are.
    """

    numbers: bool = False
    masks: bool = False


@frozen
class Size:
    """A symbolic size among the arguments of a recorded op, with its value in the traced call."""

    expression: sympy.Expr
    hint: int | float | None

    @classmethod
    def of(cls, symbolic: Any) -> Size:
        """From a `SymInt`, `SymFloat` or `SymBool`."""
        expression = symbolic.node.expr
        is_whole = expression.is_integer and not expression.is_Float  # torch says the first of every remainder
        if isinstance(symbolic, torch.SymFloat) and is_whole:
            from torch.utils._sympy.functions import ToFloat  # not for what is found on disk

            expression = ToFloat(expression)
        return cls(expression, symbolic.node.hint)


@frozen
class Entry:
    """A value to be known ahead: that of `node`, for which the nodes of `order` are computed in turn."""

    node: torch.fx.Node
    order: tuple[torch.fx.Node, ...]


@frozen
class Predicate(Entry):
    """A number that has to be the same again."""

    value: bool | int | float

    def holds(self, value: bool | int | float) -> bool:
        """Whether it is."""
        return value == self.value or (value != value and self.value != self.value)


@frozen
class Number(Entry):
    """A number that kernels and guards are given; read on `line`."""

    name: str
    symbolic: torch.SymInt | torch.SymFloat
    line: SourceLine | None


@frozen
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
        return tensors_of(self.compute(node, order))


def tensors_of(value: Any) -> list[torch.Tensor]:
    """What an op has returned as tensors, laid out as kernels expect them."""
    return [part.contiguous() for part in (value if isinstance(value, (tuple, list)) else (value,))]
