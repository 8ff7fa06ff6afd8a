"""Leave ops without a lowering to torch as extern steps, and find which tensors they need in memory.

An op whose lowering raises `NotImplementedError` is a step, too, and so are the ops of `_OWN_KERNELS`, though torch has
decompositions for them. What a step reads must be in memory: inputs, results of other steps, and views of these are;
any other value is an *operand*, which a kernel stores. A transpose of an operand is a view of it: of the gradient of
`q @ k.t()`, one matrix is stored. Random draws are steps in the order of the loss, so that the stream is eager's.
Collectives (`torch_step.is_ordered`) run once in each call, whether their result is read or not, and two that look
alike stay two, as other processes wait for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from autogen import compat, ir
from autogen.capture.graph import JointGraph
from autogen.capture.sizes import Size
from autogen.compat import pytree
from autogen.errors import UnsupportedOpError, ValueBranchError
from autogen.ir.names import unique
from autogen.ir.program import Root
from autogen.ir.torch_step import Operand, SizeArgument, TorchStep, is_random, is_view
from autogen.lowering.values import Chosen, Read, Value, fresh_index

aten = torch.ops.aten

# Kept whole although torch has a formula for them: as simple ops they would be many, and slow. That of `complex` and
# `polar` writes to the parts of a complex tensor, and that of the last is another loss.
_OWN_KERNELS = frozenset(
    {
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "convolution",
        "convolution_backward",
        "avg_pool2d",
        "avg_pool2d_backward",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "grid_sampler_2d",
        "grid_sampler_2d_backward",
        "im2col",
        "col2im",
        "embedding",
        "embedding_dense_backward",
        "_euclidean_dist",
        "complex",
        "polar",
        "multilabel_margin_loss_forward",
    }
)

# torch's op, which fake tensors of symbolic sizes do not know.
torch.library.define(
    "autogen::upsample_bicubic2d_aa_backward",
    str(compat.schema_of(aten._upsample_bicubic2d_aa_backward.default)).partition("backward")[2],
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.impl("autogen::upsample_bicubic2d_aa_backward", "default", aten._upsample_bicubic2d_aa_backward.default)
torch.library.register_fake(
    "autogen::upsample_bicubic2d_aa_backward", lambda grad, made, given, *scales: grad.new_empty(given)
)

# Draws that look at the geometry of their first argument alone.
_IGNORE_VALUES = frozenset(
    {
        aten.bernoulli.p,
        aten.cauchy.default,
        aten.exponential.default,
        aten.geometric.default,
        aten.log_normal.default,
        aten.normal_functional.default,
        aten.uniform.default,
    }
)


def is_torchs_own(target: Any) -> bool:
    """Whether an op is torch's to run, whatever formula there is for it."""
    return compat.schema_of(target).name.removeprefix("aten::").rstrip("_") in _OWN_KERNELS or is_random(target)


def is_draw(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers."""
    return "geometry" in node.meta and is_random(node.target)


def refuse_unknown_sizes(value: Value, node: torch.fx.Node) -> None:
    """Raise if a tensor that has to be in memory has a size that only values know."""
    if any(size.has(Chosen, Read) for size in value.shape):
        raise ValueBranchError("a size that depends on values", where=node.meta.get("origin"))


class TorchParts:
    """The steps of one program, while it is lowered.

    Args:
        joint: the graph.
        values: what has been lowered so far, by node.
        variables: nodes that the user's code gives a name.
        stored: a tensor in memory as a `Value`.
        size_of: a torch size as an expression.
    """

    def __init__(
        self,
        joint: JointGraph,
        values: Mapping[torch.fx.Node, Any],
        variables: Mapping[torch.fx.Node, str],
        stored: Callable[[ir.Buffer], Value],
        size_of: Callable[[Any], sympy.Expr],
    ) -> None:
        self.steps: list[TorchStep] = []
        self.operands: list[Root] = []
        self._joint, self._values, self._variables = joint, values, variables
        self._stored = stored
        self._size_of = size_of
        edge = [each for each in (*joint.inputs, *joint.constants, *joint.upstream) if each is not None]
        self._in_memory = {(each.node, 0): each.name for each in edge}
        results = [each for each in (*joint.outputs, *joint.gradients) if each is not None]
        self._taken = {each.name for each in (*edge, *results)}
        self._read_again: dict[str, Value] = {}  # what `in_memory` has made, by the name of its buffer

    def run(self, node: torch.fx.Node) -> Any:
        """Let torch run a node; returns its results as values.

        Raises:
            UnsupportedOpError: that is on another device, such as random numbers that the loss then moves.
            ValueBranchError: a size depends on values.
        """
        if "elsewhere" in node.meta:
            name = TorchStep.name_of(node.target)
            raise UnsupportedOpError(f"{name} on the device {node.meta['elsewhere']}", where=node.meta["origin"])
        if any(size.has(Read, Chosen) for shape, _ in node.meta["geometry"] for size in self._sizes(shape)):
            raise ValueBranchError(TorchStep.name_of(node.target), where=node.meta["origin"])
        buffers: list[ir.Buffer | None] = []
        geometry = iter(node.meta["geometry"])
        for strides in node.meta["strides"]:
            if strides is None:
                buffers.append(None)
                continue
            shape, dtype = next(geometry)
            name = self._variables.get(node) or TorchStep.name_of(node.target)
            name = name if len(node.meta["strides"]) == 1 else f"{name}_{len(buffers)}"
            role = "view" if is_view(node.target) else "torch"
            buffers.append(self._buffer(name, role, dtype, self._sizes(shape), self._sizes(strides)))
        argument = functools.partial(self._argument, is_draw=is_draw(node))
        args: tuple[Any, ...] = tuple(node.args)
        kwargs = dict(node.kwargs)
        if node.target in _IGNORE_VALUES and _place(args[0]) not in self._in_memory:
            args = (Operand(self._blank(args[0], self._strides_of(args[0]))), *args[1:])
        args, kwargs = pytree.tree_map(argument, (args, kwargs))
        step = TorchStep(node.target, (args, kwargs), buffers, node.meta["origin"], backward=node.meta["backward"])
        self.steps.append(step)
        for position, buffer in enumerate(buffers):
            if buffer is not None:
                self._in_memory[node, position] = buffer.name
        values = tuple(None if buffer is None else self._stored(buffer) for buffer in buffers)
        return values if node.meta["is_tuple"] else values[0]

    def _sizes(self, sizes: Sequence[Any]) -> tuple[sympy.Expr, ...]:
        return tuple(map(self._size_of, sizes))

    def _buffer(
        self,
        name: str,
        role: str,
        dtype: torch.dtype,
        shape: tuple[sympy.Expr, ...],
        strides: tuple[sympy.Expr, ...] | None = None,
    ) -> ir.Buffer:
        name = unique(name, self._taken)
        self._taken.add(name)
        strides = strides or ir.contiguous_strides(shape)
        strides = tuple(sympy.S.Zero if n == 1 else step for n, step in zip(shape, strides, strict=True))
        return ir.Buffer(name, dtype, shape, strides, role)

    def _argument(self, leaf: Any, *, is_draw: bool = False) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return Operand(self._name_in_memory(leaf, is_draw=is_draw))
        if not isinstance(leaf, Size):
            return leaf
        expression = self._size_of(leaf)
        if expression.has(Read, Chosen):
            raise ValueBranchError("a number that a step of torch takes")
        return SizeArgument(expression)

    def _name_in_memory(self, node: torch.fx.Node, *, is_draw: bool = False) -> str:
        """The buffer that holds a node's value when torch reads it: one is made if there is none.

        Torch draws for one element after the other as they lie in memory.
        """
        place = _place(node)
        if place not in self._in_memory:
            if self._is_view_of_memory(node) or self._is_turned(node):
                self.run(node)
            else:
                self._in_memory[place] = self._operand(node, is_dense=not is_draw)
        return self._in_memory[place]

    def in_memory(self, node: torch.fx.Node) -> Value:
        """A node's value, stored before what reads it is computed."""
        place = _place(node)
        if place not in self._in_memory:
            self._in_memory[place] = self._operand(node, is_dense=True)
        name = self._in_memory[place]
        if name not in self._read_again:
            self._read_again[name] = self._stored(next(r.buffer for r in self.operands if r.buffer.name == name))
        return self._read_again[name]

    def _is_view_of_memory(self, node: torch.fx.Node) -> bool:
        while _place(node) not in self._in_memory:
            if "geometry" not in node.meta or not is_view(node.target):
                return False
            node = node.args[0]  # type: ignore[assignment]
        return True

    def _is_turned(self, node: torch.fx.Node) -> bool:
        """Whether a node permutes the dimensions of what would be stored as it is: stored once, and in the order in
        which it is computed, it does for both.
        """
        if "geometry" not in node.meta or node.target is not aten.permute.default:
            return False
        (base,) = node.all_input_nodes
        if "geometry" not in base.meta or base.meta["is_tuple"]:
            return False
        ((shape, _),), (strides,) = base.meta["geometry"], base.meta["strides"]
        return self._sizes(strides) == ir.contiguous_strides(self._sizes(shape))

    def _operand(self, node: torch.fx.Node, *, is_dense: bool) -> str:
        value = self._values[node]
        refuse_unknown_sizes(value, node)
        strides = None if is_dense else self._strides_of(node)
        if 0 in value.shape:  # no kernel writes to it
            return self._blank(node, strides)
        index = fresh_index(value)
        stored = ir.cast(value.at(index), value.dtype)  # first, as it may be asked for again (`Value.at`)
        buffer = self._buffer(self._name(node), "scratch", value.dtype, value.shape, strides)
        self.operands.append(Root(buffer, index, stored))
        return buffer.name

    def _blank(self, node: torch.fx.Node, strides: tuple[sympy.Expr, ...] | None) -> str:
        """A buffer like that of a node, with nothing in it."""
        value = self._values[node]
        refuse_unknown_sizes(value, node)
        buffer = self._buffer(self._name(node), "torch", value.dtype, value.shape, strides)
        like, sizes = Operand(self._joint.inputs[0].name), [SizeArgument(size) for size in value.shape]
        steps = [SizeArgument(size) for size in strides or ir.contiguous_strides(value.shape)]
        made = ((like, sizes, steps), {"dtype": value.dtype})
        where, is_backward = node.meta.get("origin"), node.meta.get("backward", False)
        self.steps.append(TorchStep(aten.new_empty_strided.default, made, (buffer,), where, backward=is_backward))
        return buffer.name

    def _strides_of(self, node: torch.fx.Node) -> tuple[sympy.Expr, ...] | None:
        """How the elements of a node lie in memory, if they all have a place of their own."""
        strides = self._sizes(node.meta["strides"][0]) if "geometry" in node.meta else None
        return None if strides and 0 in strides else strides

    def _name(self, node: torch.fx.Node) -> str:
        return self._variables.get(node) or (TorchStep.name_of(node.target) if "geometry" in node.meta else "part")


def _place(node: torch.fx.Node) -> tuple[torch.fx.Node, int]:
    """A node's value as the result of an op, by position."""
    if node.op == "call_function" and "geometry" not in node.meta:
        source, position = node.args
        return source, position  # type: ignore[return-value]
    return node, 0
