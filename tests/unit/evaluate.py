"""Evaluate the IR in torch: the reference for passes, lowerings and plans.

Every node becomes a tensor with one dimension per axis of the graph (of size 1 where the node does not mention the
axis), so that broadcasting is torch's. Nothing here knows of strides, kernels or Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy
import torch

from autogen import ir
from autogen.ir import Axis, Node
from autogen.ir.ops import OPS
from autogen.ir.sizes import Evaluator
from autogen.lowering import Root

Sizes = Mapping[str, Any]
Tensors = Mapping[str, torch.Tensor]
Known = Mapping[sympy.Symbol, torch.Tensor]


def _product(body: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    return reduce(lambda found, dim: found.prod(dim, keepdim=keepdim), dims, body)


_REDUCED = {"sum": torch.sum, "prod": _product, "max": torch.amax, "min": torch.amin}
_SCANNED = {"sum": torch.cumsum, "prod": torch.cumprod, "logaddexp": torch.logcumsumexp}


def evaluate(nodes: Sequence[Node], tensors: Tensors, sizes: Sizes) -> list[torch.Tensor]:
    """The values of nodes; those without axes have one element, and all broadcast against each other."""
    return _Evaluation(_axes(nodes), tensors, sizes).values(nodes)


def stored(roots: Sequence[Root], tensors: Tensors, sizes: Sizes) -> dict[str, torch.Tensor]:
    """The tensors that roots write, by name; an element that nobody writes is an error."""
    axes = _axes([root.node for root in roots], [entry for root in roots for entry in root.index])
    evaluation = _Evaluation(axes, tensors, sizes)
    found: dict[str, torch.Tensor] = {}
    writes: dict[str, torch.Tensor] = {}
    for root, value in zip(roots, evaluation.values([root.node for root in roots]), strict=True):
        shape, name = [evaluation.number(size) for size in root.buffer.shape], root.buffer.name
        result = found.setdefault(name, torch.zeros(shape, dtype=value.dtype))  # of which others may store a part, too
        count = writes.setdefault(name, torch.zeros(shape, dtype=torch.int64))
        places = torch.broadcast_tensors(value, *(evaluation.places(entry) for entry in root.index))
        value, index = places[0].reshape(-1), tuple(place.reshape(-1) for place in places[1:])
        assert index or value.numel() == 1, f"{name} is one value, its node has {value.numel()}"
        result.index_put_(index, value) if index else result.copy_(value[0])
        count.index_put_(index, torch.ones_like(value, dtype=torch.int64), accumulate=True) if index else count.fill_(1)
    for name, count in writes.items():
        assert bool((count >= 1).all()), f"{name} is not written everywhere"
    return {root.buffer.name: found[root.buffer.name].to(root.buffer.dtype) for root in roots}


def _axes(nodes: Iterable[Node], expressions: Iterable[sympy.Expr] = ()) -> list[Axis]:
    """Every axis that a graph or an expression mentions, free or bound."""
    found = {s for expression in expressions for s in expression.free_symbols if isinstance(s, Axis)}
    for node in ir.topological(nodes):
        found |= node.axes
        if node.op == "reduce":
            found |= set(node.attrs[1])
    return sorted(found, key=lambda axis: (str(axis), str(axis.size)))


def integer(expression: sympy.Expr, known: Known, sizes: Sizes) -> torch.Tensor | int:
    """The values of an integer expression over `known` symbols and sizes."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return known[expression] if expression in known else sizes[str(expression)]
    args = [integer(arg, known, sizes) for arg in expression.args]
    match type(expression).__name__:
        case "Add":
            return reduce(lambda a, b: a + b, args)
        case "Mul":
            return reduce(lambda a, b: a * b, args)
        case "Pow":
            return args[0] ** args[1]
        case "FloorDiv" | "CleanDiv":
            return args[0] // args[1]
        case "Mod" | "PythonMod":
            return args[0] % args[1]
        case "Min":
            return min(args)  # type: ignore[type-var]
    raise NotImplementedError(f"the integer expression {expression}")


class _Evaluation:
    def __init__(self, axes: Sequence[Axis], tensors: Tensors, sizes: Sizes) -> None:
        self.axes, self.tensors, self.sizes = list(axes), tensors, sizes
        self.runs: dict[sympy.Symbol, torch.Tensor] = {}
        for dim, axis in enumerate(self.axes):
            shape = [1] * len(self.axes)
            shape[dim] = self.number(axis.size)
            self.runs[axis] = torch.arange(shape[dim]).reshape(shape)

    def number(self, size: sympy.Expr) -> int:
        """The value of a size expression."""
        return int(integer(size, {}, self.sizes))

    def places(self, entry: sympy.Expr, computed: Known | None = None) -> torch.Tensor:
        """The values of an index entry, with a dimension for every axis."""
        value = torch.as_tensor(integer(entry, {**self.runs, **(computed or {})}, self.sizes))
        return value if value.dim() else value.reshape([1] * len(self.axes))

    def values(self, nodes: Sequence[Node]) -> list[torch.Tensor]:
        known: dict[Node, torch.Tensor] = {}
        for node in ir.topological(nodes):
            known[node] = self._value(node, [known[arg] for arg in node.args])
            assert known[node].dtype == node.dtype, f"{known[node].dtype} for {node!r}"
        return [known[node] for node in nodes]

    def _value(self, node: Node, args: list[torch.Tensor]) -> torch.Tensor:
        match node.op:
            case "const":
                return torch.full([1] * len(self.axes), node.attrs[0], dtype=node.dtype)
            case "scalar":
                return torch.tensor(*Evaluator(node.attrs)(self.sizes), dtype=node.dtype)
            case "index":
                return self.places(node.attrs[0])
            case "load":
                return self._load(node, args)
            case "search":
                return self._search(node, args[0])
            case "cast":
                return args[0].to(node.dtype)
            case "reduce":
                return self._reduce(node, args[0])
            case "scan":
                return self._scan(node, args[0])
        return OPS[node.op].twin(*args)

    def _search(self, node: Node, value: torch.Tensor) -> torch.Tensor:
        (dim, size), (buffer, entries) = node.attrs, node.args[1].attrs
        at: list[Any] = [self.number(entry) for entry in entries]
        at[dim] = slice(at[dim], at[dim] + self.number(size))
        return torch.searchsorted(self.tensors[buffer.name][tuple(at)].contiguous(), value, right=True)

    def _load(self, node: Node, args: list[torch.Tensor]) -> torch.Tensor:
        buffer, entries = node.attrs
        tensor = self.tensors[buffer.name]
        assert list(tensor.shape) == [self.number(size) for size in buffer.shape], f"{buffer.name} has another shape"
        computed = {ir.hole(k): arg for k, arg in enumerate(args)}
        inside = torch.ones([1] * len(self.axes), dtype=torch.bool)
        index = []
        for entry, size in zip(entries, tensor.shape, strict=True):
            place = self.places(entry, computed)
            fits = (place >= 0) & (place < size)
            assert entry.free_symbols & computed.keys() or bool(fits.all()), f"{node!r} reads outside {buffer.name}"
            inside = inside & fits
            index.append(place.clamp(0, max(size - 1, 0)))
        outside = torch.full((), float("nan") if tensor.is_floating_point() else 0).to(node.dtype)
        if tensor.numel() == 0:
            return outside.expand(torch.broadcast_shapes(inside.shape, *(place.shape for place in index)))
        found = tensor[tuple(index)].to(node.dtype)
        return torch.where(inside, found.reshape(inside.shape) if not index else found, outside)

    def _scan(self, node: Node, body: torch.Tensor) -> torch.Tensor:
        kind, (axis,), is_reverse = node.attrs
        dim = self.axes.index(axis)
        along = _SCANNED[kind](body.flip(dim) if is_reverse else body, dim)
        return (along.flip(dim) if is_reverse else along).to(node.dtype)

    def _reduce(self, node: Node, body: torch.Tensor) -> torch.Tensor:
        kind, axes = node.attrs
        dims = [self.axes.index(axis) for axis in axes]
        shape = [len(self.runs[axis].flatten()) if dim in dims else -1 for dim, axis in enumerate(self.axes)]
        body = body.expand(shape)
        if kind in ir.EXTREMES and 0 in body.shape:
            raise NotImplementedError(f"{kind} of nothing")
        reduced = _REDUCED[kind](body, dims, keepdim=True)
        return reduced.to(node.dtype)  # torch sums integers in int64
