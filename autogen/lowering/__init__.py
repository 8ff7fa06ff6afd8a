"""Lower the joint ATen graph to IR: each result and each gradient as one expression over the inputs.

Each result becomes a `Root`: an expression for its element at an index, and the buffer it is to be stored in.

To add a lowering: a function under `@lowers` in the module of its kind. It is called with a `Context` and the op's
arguments, tensors as `Value`s; `unsqueeze` in `views` and `polygamma` in `pointwise` are short ones.

A value is computed where it is used. What would be computed too often is stored first: sums of all rows that an index
needs for each row (`picks`), what is asked for more than `_MOST_ASKED` times as often as the graph has nodes (the steps
of a stencil), and a running sum that is read in another order than its own (`scans`).
"""

from __future__ import annotations

import functools
import re
from typing import Any

import sympy
import torch

from autogen import compat, ir
from autogen.capture.graph import EdgeTensor, JointGraph
from autogen.capture.masks import masked_read
from autogen.capture.source import is_torchs
from autogen.errors import UnsupportedOpError, ValueBranchError
from autogen.ir.program import Program, Root
from autogen.ir.provenance import Origin, Provenance
from autogen.ir.torch_step import ancestors, is_ordered
from autogen.lowering import (  # noqa: F401  (they register)
    indexing,
    losses,
    masks,
    pointwise,
    reductions,
    scans,
    segments,
    views,
)
from autogen.lowering.entries import unchecked
from autogen.lowering.picks import reduces_for_each
from autogen.lowering.registry import LOWERINGS, Context, Lowering
from autogen.lowering.sequences import sequence_of
from autogen.lowering.torch_parts import TorchParts, is_torchs_own, refuse_unknown_sizes
from autogen.lowering.values import Chosen, Index, Read, Value, fresh_index

_MOST_ASKED, _ALWAYS_ASKED = 16, 500  # times that values are computed, for each node; one is what most need

_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)\s*(?::[^=]+)?[-+*/]?=(?!=)")


def lowered_ops() -> set[Any]:
    """The ATen overloads that have a lowering."""
    found = set()
    for name in LOWERINGS:
        base, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is not None and overload in packet.overloads():
            found.add(getattr(packet, overload))
    return found


@functools.cache
def decompositions() -> dict[Any, Any]:
    """torch's formulas for the ops that have no lowering of their own."""
    table = compat.decomposition_table()
    lowered = lowered_ops()
    found = {
        op: formula for op, formula in table.items() if compat.is_op(op) and op not in lowered and not is_torchs_own(op)
    }
    aten = torch.ops.aten
    own = {
        aten.fmax.default: _fmax,
        aten.fmin.default: _fmin,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.rrelu_with_noise_functional.default: _rrelu,
        aten.segment_reduce.default: _of_lengths(aten.segment_reduce.default),
        aten._segment_reduce_backward.default: _of_lengths(aten._segment_reduce_backward.default),
        aten._upsample_bicubic2d_aa_backward.default: torch.ops.autogen.upsample_bicubic2d_aa_backward.default,
    }
    return found | own


def _fmax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The greater number; the other one if one is nan."""
    return torch.where((a >= b) | b.isnan(), a, b)


def _fmin(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The lesser number; the other one if one is nan."""
    return torch.where((a <= b) | b.isnan(), a, b)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: Any = None) -> Any:
    """Which of `repeats` each place of the result comes from, told from where each begins."""
    if output_size is None:
        return NotImplemented
    places = torch.arange(output_size, device=repeats.device)
    return torch.bucketize(places, repeats.cumsum(0), right=True).to(repeats.dtype)


def _of_lengths(reduction: Any) -> Any:
    """A reduction of segments that lengths tell, as one of segments that offsets tell."""

    def formula(*args: Any, lengths: torch.Tensor | None = None, unsafe: bool = False, **kwargs: Any) -> Any:
        if lengths is None or lengths.dim() != 1:
            return NotImplemented
        kwargs["offsets"] = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        return reduction(*args, **kwargs)

    return formula


def _rrelu(
    input: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """`rrelu_with_noise`, which draws its slopes in training alone."""
    if training:
        return NotImplemented
    return torch.ops.aten.leaky_relu(input, (lower + upper) / 2), noise


def lower(joint: JointGraph, name: str, *, stores_sums: bool = False, has_scans: bool = True) -> Program:
    """Lower the joint graph of the loss `name`; what has no lowering becomes a step of torch.

    If forward `stores_sums`, what adds numbers up is in memory for all else that reads it. Without `has_scans`, running
    sums of more than a few elements are steps of torch, too.
    """
    return _Lowerer(joint, name, stores_sums=stores_sums, has_scans=has_scans).run()


class _Lowerer:
    def __init__(self, joint: JointGraph, name: str, *, stores_sums: bool, has_scans: bool) -> None:
        self.joint, self._stores_sums, self._has_scans = joint, stores_sums, has_scans
        self.provenance = Provenance(name, tuple(each.name for each in joint.inputs))
        self.variables = _variables(joint.graph)
        self.values: dict[torch.fx.Node, Any] = {}
        for each in (*joint.inputs, *joint.constants):
            self.values[each.node] = _stored(_buffer(each, "input"))
        for upstream in joint.upstream:
            if upstream is not None:
                self.values[upstream.node] = _stored(_buffer(upstream, "upstream"))
        self._symbols: dict[sympy.Symbol, Chosen | Read] = {}
        self._asked = 0
        self.torch = TorchParts(joint, self.values, self.variables, _stored, self._size)

    def run(self) -> Program:
        needed = _needed(self.joint)
        for node in self.joint.graph.nodes:
            if node in needed and node not in self.values:
                self.values[node] = self._lower(node)
                if self._stores_sums and self._is_sum_for_others(node):
                    self.values[node] = self.torch.in_memory(node)
        gradients = {k: each for k, each in enumerate(self.joint.gradients) if each is not None}
        return Program(
            outputs=tuple(map(self._root, self.joint.outputs)),
            gradients=tuple(map(self._root, gradients.values())),
            gradient_of=tuple(gradients),
            provenance=self.provenance,
            operands=tuple(self.torch.operands),
            steps=tuple(self.torch.steps),
        )

    def _is_sum_for_others(self, node: torch.fx.Node) -> bool:
        """Whether a node of forward adds numbers up that other nodes read."""
        value = self.values[node]
        if not isinstance(value, Value) or not any(user.op == "call_function" for user in node.users):
            return False
        is_backward = node.meta.get("backward", False)
        return not is_backward and any(map(ir.is_inexact, ir.topological([value.at(fresh_index(value))])))

    def _root(self, tensor: EdgeTensor) -> Root:
        value = self.values[tensor.node]
        refuse_unknown_sizes(value, tensor.node)
        if tensor.dtype not in ir.STORED:
            raise UnsupportedOpError(f"a result of {tensor.dtype}", where=tensor.node.meta.get("origin"))
        index = fresh_index(value)
        return Root(_buffer(tensor, "output"), index, ir.to_store(value.at(index), tensor.dtype))

    def _lower(self, node: torch.fx.Node) -> Any:
        searched = self._searched(node)
        values = self.values if searched is None else {**self.values, searched: self.torch.in_memory(searched)}
        args, kwargs = compat.pytree.tree_map_only(
            torch.fx.Node, values.__getitem__, (tuple(node.args), dict(node.kwargs))
        )
        if "geometry" not in node.meta:  # part of a result
            return args[0][args[1]]
        where = node.meta["origin"]
        lowering = LOWERINGS.get(_op_name(node.target))
        try:
            result = None if lowering is None else self._lowered(node, lowering, args, kwargs)
        except NotImplementedError:
            result = None
        if result is None:
            return self.torch.run(node)
        # A kernel shows the text of the line: one without is none to it.
        origin = Origin(where if where is not None and where.code else None, node.meta["backward"])
        variable = self.variables.get(node)
        if isinstance(result, tuple):
            return tuple(self._located(each, origin, variable) for each in result)
        return self._located(result, origin, variable, node)

    def _searched(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The argument of a node that it searches, if that is to be stored first."""
        place, name = (
            segments.SORTED.get(_op_name(node.target), (None, "")) if node.op == "call_function" else (None, "")
        )
        found = node.kwargs.get(name, node.args[place] if place is not None and place < len(node.args) else None)
        if not isinstance(found, torch.fx.Node) or segments.is_in_memory(self.values[found]):
            return None
        return found

    def _lowered(self, node: torch.fx.Node, lowering: Lowering, args: Any, kwargs: dict[str, Any]) -> Any:
        geometry = node.meta["geometry"]
        if any(dtype not in ir.STORED for _, dtype in geometry):
            raise NotImplementedError(f"a result of {geometry[0][1]}")
        if node.target is masked_read:
            self._choose(geometry[0][0][args[2]], args[1])
        shapes = tuple(tuple(map(self._size, shape)) for shape, _ in geometry)
        dtypes = tuple(dtype for _, dtype in geometry)
        context = Context(shapes, dtypes, self._size, self.provenance, node.meta["of_formula"], self._has_scans)
        masks.refuse_order(_op_name(node.target), lowering, args, kwargs, shapes)
        kwargs = {key: value for key, value in kwargs.items() if key not in _PLACEMENT}
        result = lowering(context, *args, **kwargs)
        # Asking for the nodes now, not only when a root needs them, keeps the recursion shallow, and what is not
        # supported is found at the op that it belongs to.
        for each in result if isinstance(result, tuple) else (result,):
            each.at(fresh_index(each))
        return result

    def _size(self, size: Any) -> sympy.Expr:
        expression = self.joint.sizes.expression(size)
        for symbol in expression.free_symbols & self.joint.numbers.keys():
            self._symbols.setdefault(symbol, Read(str(symbol), self.values[self.joint.numbers[symbol]]))
        expression = expression.xreplace(self._symbols)
        known = self.joint.sizes.symbols
        if any(symbol not in known and not isinstance(symbol, (Chosen, Read)) for symbol in expression.free_symbols):
            raise ValueBranchError("a size that depends on values")
        return expression

    def _choose(self, size: torch.SymInt, mask: Value) -> None:
        """Note the size of what a mask chooses."""
        symbol = self.joint.sizes.expression(size)
        self._symbols.setdefault(symbol, masks.chosen(str(symbol), mask))

    def _located(self, value: Value, origin: Origin, variable: str | None, whole: torch.fx.Node | None = None) -> Value:
        """`value`, whose nodes tell where they come from.

        If it is the `whole` result of a node, it is stored first for an index that would have it reduce for each place,
        or in whose order it does not run.
        """

        def at(index: Index) -> ir.Node:
            if whole is not None and self._is_to_store(value, index):
                return self.torch.in_memory(whole).at(index)
            node = value.at(index)
            self.provenance.locate(node, origin)
            if variable:
                users = origin.line is not None and not is_torchs(origin.line.filename)
                self.provenance.name(node, variable, users=users)
            return node

        return Value(value.shape, value.dtype, at, value.factors)

    def _is_to_store(self, value: Value, index: Index) -> bool:
        """Whether a value is better read at an index than computed there."""
        if any(isinstance(entry, ir.Node) and sequence_of(entry) for entry in index):
            return False  # what is of sequences is known per sequence
        return reduces_for_each(value, index) or not scans.follows(value, index) or self._is_too_often(value, index)

    def _is_too_often(self, value: Value, index: Index) -> bool:
        """Whether a value is to be stored, as so much is computed at several places already.

        What each step of a stencil, a butterfly or a chain of gathers reads at several places of the step before would
        be computed again for each of them, and for each of theirs.
        """
        self._asked += 1
        if self._asked <= _MOST_ASKED * len(self.joint.graph.nodes) + _ALWAYS_ASKED:
            return False
        is_of_known_size = not any(size.has(Chosen, Read) or size == 0 for size in value.shape)
        return is_of_known_size and tuple(index) != fresh_index(value)


def _op_name(target: Any) -> str:
    """The name under which an op's lowering is registered."""
    return str(target).removeprefix("aten.") if compat.is_op(target) else target.__name__


_PLACEMENT = {"device", "layout", "pin_memory", "memory_format", "non_blocking", "dtype"}


def _stored(buffer: ir.Buffer) -> Value:
    """A tensor in memory. An empty one is never read, not even where a dimension of stride 0 hides that it is empty."""

    def at(index: Index) -> ir.Node:
        if buffer.dtype not in ir.STORED:
            raise NotImplementedError(f"a tensor of {buffer.dtype}")
        if any(size == 0 for size in buffer.shape):
            return ir.const(0, ir.compute_dtype(buffer.dtype))
        return ir.load(buffer, [unchecked(entry, size) for entry, size in zip(index, buffer.shape, strict=True)])

    return Value(buffer.shape, buffer.dtype, at)


def _buffer(tensor: EdgeTensor, role: str) -> ir.Buffer:
    return ir.Buffer(tensor.name, tensor.dtype, tensor.shape, tensor.strides, role, tensor.allocated)


def _needed(joint: JointGraph) -> set[torch.fx.Node]:
    """The nodes that some result depends on, and draws and collectives, which run in any case."""
    todo = [each.node for each in (*joint.outputs, *joint.gradients) if each is not None]
    todo += [node for node in joint.graph.nodes if node.op == "call_function" and is_ordered(node.target)]
    todo += joint.numbers.values()
    return ancestors(*todo)


def _variables(graph: torch.fx.Graph) -> dict[torch.fx.Node, str]:
    """The nodes that the user's code assigns to a variable: the last that each assignment made."""
    last: dict[Any, torch.fx.Node] = {}
    for node in graph.nodes:
        origin = node.meta.get("origin")
        if origin is not None and not node.meta["backward"]:
            last[origin] = node
    found = {}
    for origin, node in last.items():
        match = _ASSIGNMENT.match(origin.code)
        if match:
            found[node] = match.group(1)
    return found
