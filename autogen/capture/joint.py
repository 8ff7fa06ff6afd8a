"""AOTAutograd's graph of a segment → a `JointGraph`, as lowering reads it."""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils import _pytree as pytree

from autogen import compat
from autogen.capture import masks
from autogen.capture.graph import EdgeTensor, JointGraph, ancestors
from autogen.capture.prologue import Prologue
from autogen.capture.sizes import SYMBOLIC, Size, Sizes, settle_factors, settle_rows
from autogen.capture.source import line_of_trace
from autogen.errors import TooLargeError, UnavailableError, UnsupportedOpError
from autogen.names import of_input, unique
from autogen.torch_step import TorchStep, is_random

aten, prims = torch.ops.aten, torch.ops.prims

MOST_OPERATIONS = 2500  # of 303 losses of public packages the largest has 1278

# Checks, which compute nothing.
_CHECKS = frozenset(
    {
        *(aten._assert_scalar.default, aten._assert_tensor_metadata.default, aten._assert_async.msg),
        *(aten._functional_assert_async.msg, aten._assert_async.default, aten.sym_constrain_range_for_size.default),
    }
)
_NUMBERS = (*SYMBOLIC, int, float, bool)
_INDEXED_ROWS = frozenset(
    {aten.gather.default, aten.scatter.value, aten.scatter.src, aten.scatter_add.default, aten.scatter_reduce.two}
)
_EXTREMES = frozenset({aten.max.default, aten.max.dim, aten.min.default, aten.min.dim})
_SAME = frozenset({aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.alias.default, aten.detach.default})


# Where the shape that a place is in, the dimension and the place are among the arguments.
_STARTS = {aten.slice.Tensor: (0, 1, 2), aten.slice_backward.default: (1, 2, 3), aten.slice_scatter.default: (0, 2, 3)}
_SELECTED = {
    aten.select.int: (0, 1, 2),
    aten.select_backward.default: (1, 2, 3),
    aten.select_scatter.default: (0, 2, 3),
}
_PLACED = {**_STARTS, **_SELECTED}


@dataclass(frozen=True)
class Returned:
    """One result of a segment: the output of this number, the argument of this number, or a number that Python
    computes from sizes and from what the loss reads of tensors, as a tensor of `dtype` if that is not None.

    Of an argument it may be a view: its shape, its strides, and how much further in memory it begins. What is `moved`
    is copied to another device, with these options.
    """

    output: int | None = None
    argument: int | None = None
    view: tuple[tuple[sympy.Expr, ...], tuple[sympy.Expr, ...], sympy.Expr] | None = None
    number: sympy.Expr | None = None
    dtype: torch.dtype | None = None
    moved: dict[str, Any] | None = None


@dataclass(frozen=True)
class Segment:
    """A joint graph, and how a call of the segment meets it.

    `tensors` are the arguments that kernels are given, `numbers` those that are numbers (also as tensors of one), by
    position; `returned` tells what a call returns, and `reads` which outputs are read as numbers, by symbol.
    """

    graph: JointGraph
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    returned: tuple[Returned, ...]
    reads: dict[sympy.Symbol, int]
    device: torch.device
    chooses: bool  # whether kernels go through all that masks choose from
    are_tensors: tuple[bool, ...]  # which arguments are tensors


def segment_of(
    module: torch.fx.GraphModule,
    names: Sequence[str],
    count: int,
    shapes: Any,
    *,
    knows_numbers: bool = False,
    knows_masks: bool = False,
) -> Segment:
    """The segment of a graph of AOTAutograd's.

    Args:
        module: the joint graph, or the forward graph alone.
        names: what the user calls each argument of the segment.
        count: the number of results of forward; gradients come after them.
        shapes: the `ShapeEnv` of the capture.
        knows_numbers: whether numbers that the loss reads are computed before the kernels.
        knows_masks: the same of what masks choose.

    Raises:
        UnavailableError: no kernel can run on these tensors.
        UnsupportedOpError: an op, or a device, for which there is no kernel.
        ValueBranchError: a size that is known only in backward.
    """
    return _Builder(module, names, count, shapes, knows_numbers, knows_masks).build()


class _Builder:
    def __init__(
        self, module: torch.fx.GraphModule, names: Sequence[str], count: int, shapes: Any, numbers: bool, masks: bool
    ) -> None:
        self.graph = torch.fx.Graph()
        copied: dict[torch.fx.Node, torch.fx.Node] = {}
        returned = self.graph.graph_copy(module.graph, copied)
        results = pytree.tree_leaves(returned, is_leaf=lambda each: each is None)
        self.results, self.gradients = results[:count], results[count:]
        self.module, self.shapes = module, shapes
        self.knows_numbers, self.knows_masks = numbers, masks
        placeholders = [node for node in self.graph.nodes if node.op == "placeholder"]
        self.arguments, self.tangents = placeholders[: len(names)], placeholders[len(names) :]
        # Tensors have the first choice of names: the sizes among the arguments are called after them.
        taken: dict[int, str] = {}
        is_size = [not isinstance(node.meta["val"], torch.Tensor) for node in self.arguments]
        for place in sorted(range(len(names)), key=is_size.__getitem__):
            taken[place] = unique(of_input(names[place]), taken.values())
        self.names = [taken[place] for place in range(len(names))]
        (before,) = (node for node in module.graph.nodes if node.op == "output")
        self._described = before.meta.get("desc")
        self.sources: dict[sympy.Symbol, torch.fx.Node] = {}

    def build(self) -> Segment:
        device = self._device()
        self._separate_numbers(device)
        self._prepare(device)
        self._merge_alike()
        self._choose_by_masks()
        found = self._found()
        inputs = [node for node in self.arguments if node in self.tensors]
        prologue, extra = None, []
        if found:
            numbers = {node for node in found if not isinstance(node.meta["val"], (torch.Tensor, tuple, list))}
            prologue = Prologue(found, self.arguments, numbers)
            extra = self._replace_found(prologue)
        names = dict(zip(self.arguments, self.names, strict=True)) | {node: node.name for node in extra}
        fakes = [(names[node], node.meta["val"]) for node in (*inputs, *extra)]
        settle_factors(self.shapes, [fake for _, fake in fakes])
        given = [(names[node], node.meta["number"]) for node in self.numbers]
        given += [(node.name.strip("_"), node.meta["val"]) for node in (prologue.numbers if prologue else ())]
        self.sizes = Sizes(self.shapes, fakes, given)
        self._drop_symbols()
        joint, returned, reads = self._edges(inputs, extra, names, prologue)
        places = {node: place for place, node in enumerate(self.arguments)}
        return Segment(
            joint,
            tuple(places[node] for node in inputs),
            tuple(places[node] for node in self.numbers),
            returned,
            reads,
            device,
            bool(self._masked),
            tuple(isinstance(node.meta["val"], torch.Tensor) for node in self.arguments),
        )

    def _device(self) -> torch.device:
        """Where the kernels run."""
        fakes = [node.meta["val"] for node in self.arguments if isinstance(node.meta["val"], torch.Tensor)]
        on_gpu = next((each.device for each in fakes if each.device.type != "cpu"), None)
        if not fakes:
            raise UnavailableError("the loss was given no tensor", remedy="Pass its input as a tensor.")
        return on_gpu or fakes[0].device

    def _separate_numbers(self, device: torch.device) -> None:
        """Tell the tensors among the arguments from the numbers: a float comes as a tensor of one on the host."""
        self.tensors: set[torch.fx.Node] = set()
        self.numbers: list[torch.fx.Node] = []
        wanted = dict(zip(self.arguments, self.gradients, strict=False))
        for node in self.arguments:
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                node.meta["number"] = value
                self.numbers.append(node)
            elif value.dim() == 0 and self._is_on_host(value, device) and wanted.get(node) is None:
                node.meta["number"] = self._symbol_of(node, value)
                self.numbers.append(node)
            else:
                self.tensors.add(node)

    def _is_on_host(self, value: torch.Tensor, device: torch.device) -> bool:
        return value.device.type == "cpu" and (device.type != "cpu" or value.dtype == torch.float64)

    def _symbol_of(self, node: torch.fx.Node, value: torch.Tensor) -> Any:
        """A symbol for the number that a tensor of one on the host holds: that of its `.item()` if it has one."""
        for user in node.users:
            if user.target is aten._local_scalar_dense.default and isinstance(user.meta["val"], SYMBOLIC):
                return user.meta["val"]
        create = (
            self.shapes.create_unbacked_symfloat if value.is_floating_point() else self.shapes.create_unbacked_symint
        )
        with self.shapes.ignore_fresh_unbacked_symbols():
            return create()

    def _prepare(self, device: torch.device) -> None:
        """Replace what only AOTAutograd writes by ATen, and note of each node what lowering asks for."""
        later = set(self.tangents)
        operations = 0
        for node in list(self.graph.nodes):
            if node.op == "placeholder" or node.op == "output":
                continue
            later |= {node} if any(each in later for each in node.all_input_nodes) else set()
            is_backward = node.meta.get("partitioner_tag") == "is_backward" or node in later
            node.meta.update(origin=line_of_trace(node.meta.get("stack_trace")), backward=is_backward)
            whole = node.meta.get("original_aten")
            node.meta["of_formula"] = whole not in (None, node.target, aten._to_copy.default)
            if node.op == "get_attr":
                self._constant(node)
            elif node.target in _CHECKS and not node.users:
                self.graph.erase_node(node)
            elif node.target is aten._local_scalar_dense.default:
                self._read(node)
            elif node.target is operator.getitem or isinstance(node.meta.get("val"), _NUMBERS):
                continue
            else:
                operations += 1
                self._operation(node, device)
        if operations > MOST_OPERATIONS:
            raise TooLargeError(MOST_OPERATIONS)
        for node in self.numbers:
            self._spread(node)

    def _constant(self, node: torch.fx.Node) -> None:
        """A tensor that the loss has built from numbers; one number is written out."""
        value = getattr(self.module, str(node.target))
        if not isinstance(value, torch.Tensor):
            raise UnsupportedOpError(str(node.target), where=node.meta["origin"])
        value = value.detach()
        node.meta.update(_geometry(value), value=value, val=value)
        if value.numel() == 1 and not value.is_complex():
            with torch.utils._python_dispatch._disable_current_modes(), self.graph.inserting_before(node):
                number = value.reshape(()).item()
                full = self.graph.call_function(aten.full.default, ([1] * value.dim(), number), {"dtype": value.dtype})
            full.meta.update(node.meta)
            node.replace_all_uses_with(full)
            self.graph.erase_node(node)

    def _read(self, node: torch.fx.Node) -> None:
        """A number that the loss reads from a tensor."""
        symbol = node.meta["val"].node.expr if isinstance(node.meta["val"], SYMBOLIC) else None
        (tensor,) = node.all_input_nodes
        if symbol is not None and symbol.is_Symbol and tensor not in self.numbers:
            self.sources[symbol] = node

    def _operation(self, node: torch.fx.Node, device: torch.device) -> None:
        if node.target is prims.convert_element_type.default:
            node.target, (tensor, dtype) = aten._to_copy.default, node.args  # type: ignore[misc]
            node.args, node.kwargs = (tensor,), {"dtype": dtype}
        if node.target is aten._neg_view.default:  # no kernel reads the memory of a view with the other sign
            node.target = aten.neg.default
        if node.target in _SAME and len(node.all_input_nodes) == 1:
            node.replace_all_uses_with(node.all_input_nodes[0])
            self.results = [node.all_input_nodes[0] if each is node else each for each in self.results]
            self.gradients = [node.all_input_nodes[0] if each is node else each for each in self.gradients]
            return
        if node.target in _EXTREMES and _reduces_nothing(node):
            raise UnsupportedOpError(f"{TorchStep.name_of(node.target)} of no elements", where=node.meta["origin"])
        if node.target in _INDEXED_ROWS:
            settle_rows(_value(node.args[0]), node.args[1], _value(node.args[2]))
        if node.target in _PLACED:
            node.args = _from_the_beginning(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedOpError(str(getattr(node.target, "__name__", node.target)), where=node.meta["origin"])
        value = node.meta.get("val")
        node.meta.update(_geometry(value))
        parts = value if isinstance(value, (tuple, list)) else (value,)
        tensors = [each for each in parts if isinstance(each, torch.Tensor)]
        if any(each.device != device for each in tensors):
            node.meta["elsewhere"] = tensors[0].device

    def _spread(self, node: torch.fx.Node) -> None:
        """Have a number that came as a tensor be written out where tensors are computed from it."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return
        users = [user for user in node.users if user.target is not aten._local_scalar_dense.default]
        if users:
            first = next(each for each in self.graph.nodes if each in users)
            with self.graph.inserting_before(first):
                full = self.graph.call_function(
                    aten.scalar_tensor.default, (Size(node.meta["number"].node.expr),), {"dtype": value.dtype}
                )
            full.meta.update(_geometry(value), val=value, origin=None, backward=False, of_formula=False)
            for user in users:
                user.replace_input_with(node, full)
        self.results = [full if each is node and users else each for each in self.results]

    def _merge_alike(self) -> None:
        """Have nodes that compute the same be one: masks are told apart by their node."""
        seen: dict[Hashable, torch.fx.Node] = {}
        merged: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in list(self.graph.nodes):
            if node.op != "call_function" or is_random(node.target) or _is_effect(node):
                continue
            leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
            key = (node.target, node.meta.get("backward"), structure, tuple((type(x), _key(x)) for x in leaves))
            try:
                other = seen.setdefault(key, node)
            except TypeError:  # an argument that has no hash
                continue
            if other is not node:
                self._equate(node, other)
                node.replace_all_uses_with(other)
                merged[node] = other
                self.graph.erase_node(node)
        self.results = [merged.get(each, each) for each in self.results]
        self.gradients = [merged.get(each, each) for each in self.gradients]
        self.sources = {symbol: merged.get(node, node) for symbol, node in self.sources.items()}

    def _equate(self, node: torch.fx.Node, other: torch.fx.Node) -> None:
        """Note that what values decide of the sizes of two nodes that compute the same is the same."""
        pair = (node.meta.get("val"), other.meta.get("val"))
        if all(isinstance(each, torch.Tensor) for each in pair):
            for size, same in zip(*(each.shape for each in pair), strict=True):
                self._are_equal(size, same)

    def _are_equal(self, size: Any, other: Any) -> None:
        if not (isinstance(size, torch.SymInt) and isinstance(other, torch.SymInt)):
            return
        one, same = (self.shapes.replace(each.node.expr) for each in (size, other))
        if one != same and self.shapes.is_unbacked_symint(one):
            compat.replace_symbol(self.shapes, one, same)

    def _choose_by_masks(self) -> None:
        """Write reads and writes at masks as such, where equal masks alone have sizes that are equal."""
        by_size: dict[sympy.Expr, set[torch.fx.Node]] = {}
        by_mask: dict[torch.fx.Node, Any] = {}
        reads: list[tuple[torch.fx.Node, torch.fx.Node, int]] = []
        for node in list(self.graph.nodes):
            if node.target is aten.masked_select.default:
                self._select(node)
            if node.target in masks.READS and (chosen := masks.mask_of(node)) is not None:
                size = node.meta["val"].shape[chosen[1]]
                if isinstance(size, torch.SymInt):
                    self._are_equal(size, by_mask.setdefault(chosen[0], size))
                    by_size.setdefault(self.shapes.replace(size.node.expr), set()).add(chosen[0])
                    reads.append((node, *chosen))
        self._masked = set()
        if self.knows_masks:
            return
        for node, mask, before in reads:
            size = self.shapes.replace(node.meta["val"].shape[before].node.expr)
            if size.is_Symbol and len(by_size[size]) == 1 and _is_of_values(size, node):
                node.target, node.args = masks.masked_read, (node.args[0], mask, before)
                self._masked.add(size)
        for node in self.graph.nodes:
            if node.target is aten.masked_scatter.default:
                self._scatter(node, by_mask)
            if node.target in masks.WRITES and (chosen := masks.mask_of(node)) is not None:
                values, accumulate = node.args[2], len(node.args) > 3 and bool(node.args[3])
                node.target, node.args = masks.masked_write, (node.args[0], *chosen, values, accumulate)

    def _select(self, node: torch.fx.Node) -> None:
        """`masked_select` as an index."""
        tensor, mask = node.args
        shape, other = tensor.meta["val"].shape, mask.meta["val"].shape  # type: ignore[union-attr]
        if tuple(shape) == tuple(other):
            node.target, node.args = aten.index.Tensor, (tensor, [mask])

    def _scatter(self, node: torch.fx.Node, by_mask: dict[torch.fx.Node, Any]) -> None:
        """`masked_scatter` of as many elements as the mask chooses, as the gradient of `masked_select` has it."""
        tensor, mask, source = (_value(each) for each in node.args)
        if source.dim() != 1 or tuple(tensor.shape) != tuple(mask.shape) or node.args[1] not in by_mask:
            return
        if self._is_same(source.shape[0], by_mask[node.args[1]]):  # type: ignore[index]
            node.target = masks.masked_write
            node.args = (node.args[0], node.args[1], 0, node.args[2], False)

    def _is_same(self, size: Any, other: Any) -> bool:
        one, same = (each.node.expr if isinstance(each, torch.SymInt) else each for each in (size, other))
        return bool(self.shapes.replace(sympy.sympify(one)) == self.shapes.replace(sympy.sympify(same)))

    def _found(self) -> list[torch.fx.Node]:
        """The nodes that torch has to compute before the kernels, in the order of the graph."""
        known = {symbol for symbol in self._masked}
        for node in self.graph.nodes:
            if node.target is aten._local_scalar_dense.default and not self.knows_numbers:
                known |= _symbols(node.meta["val"])
        found: list[torch.fx.Node] = []
        for node in self.graph.nodes:
            if node.op != "call_function" or node.target is operator.getitem:
                continue
            value = node.meta.get("val")
            if node.target is aten._local_scalar_dense.default:
                if self.knows_numbers and isinstance(value, SYMBOLIC) and node.all_input_nodes[0] not in self.numbers:
                    found.append(node)
            elif "geometry" in node.meta:
                inner = {s for each in node.all_input_nodes for s in _symbols(each.meta.get("val"))}
                own = {s for s in _symbols(value) if self.shapes.is_unbacked_symint(s)}
                arguments = {s for each in pytree.tree_leaves((node.args, node.kwargs)) for s in _symbols(each)}
                if (
                    {self.shapes.replace(s) for s in own - inner - arguments}
                    - known
                    - {s for s in own if not self.shapes.replace(s).is_Symbol}
                ):
                    found.append(node)
        parts: list[torch.fx.Node] = []
        for node in found:
            if isinstance(node.meta["val"], (tuple, list)):
                parts += [user for user in node.users if user.target is operator.getitem]
            else:
                parts.append(node)
        if parts:
            needed = ancestors(*parts)
            drawn = [n for n in needed if n.op == "call_function" and is_random(n.target) and n not in parts]
            parts += [n for n in drawn if any(user not in needed for user in n.users)]
        order = {node: place for place, node in enumerate(self.graph.nodes)}
        return sorted(set(parts), key=order.__getitem__)

    def _replace_found(self, prologue: Prologue) -> list[torch.fx.Node]:
        """Have the tensors that the prologue finds be inputs of the graph."""
        extra = []
        last = [*self.arguments, *self.tangents][-1]
        for node in prologue.tensors:
            name = node.args[0] if node.target is operator.getitem else node  # type: ignore[assignment]
            with self.graph.inserting_after(last):
                new = self.graph.placeholder(TorchStep.name_of(name.target))  # type: ignore[union-attr]
            new.meta["val"] = node.meta["val"].contiguous() if isinstance(node.meta["val"], torch.Tensor) else None
            node.replace_all_uses_with(new)
            self.results = [new if each is node else each for each in self.results]
            extra.append(new)
            last = new
        for node in prologue.numbers:
            for symbol in _symbols(node.meta["val"]):
                self.sources.pop(symbol, None)
        return extra

    def _drop_symbols(self) -> None:
        """Write symbolic sizes into the arguments of the nodes that take them."""
        for node in self.graph.nodes:
            if node.op not in ("call_function", "placeholder") or not isinstance(node.meta.get("val"), _NUMBERS):
                continue
            size = self._written(node.meta["val"])

            def put(leaf: Any, own: torch.fx.Node = node, new: Any = size) -> Any:
                return new if leaf is own else leaf

            for user in list(node.users):
                if not isinstance(user.meta.get("val"), _NUMBERS):
                    user.args, user.kwargs = pytree.tree_map(put, (user.args, user.kwargs))

    def _written(self, value: Any) -> Any:
        """A number as an argument of a node."""
        if not isinstance(value, SYMBOLIC):
            return value
        expression = self.shapes.replace(value.node.expr)
        if expression.is_Integer and isinstance(value, torch.SymInt):
            return int(expression)
        return Size(expression)

    def _edges(
        self,
        inputs: Sequence[torch.fx.Node],
        extra: Sequence[torch.fx.Node],
        names: dict[torch.fx.Node, str],
        prologue: Prologue | None,
    ) -> tuple[JointGraph, tuple[Returned, ...], dict[sympy.Symbol, int]]:
        outputs: list[torch.fx.Node] = []
        returned: list[Returned] = []
        tangents = self._tangents()
        upstream: list[torch.fx.Node | None] = []
        needed: set[sympy.Symbol] = set()
        for place, node in enumerate(self.results):
            moved = _is_copy_elsewhere(node) and place not in tangents
            options, node = (node.kwargs, node.args[0]) if moved else (None, node)
            if not isinstance(node, torch.fx.Node):
                returned.append(Returned(number=None if node is None else sympy.sympify(node)))
            elif node in self.arguments:
                returned.append(Returned(argument=self.arguments.index(node)))
            elif place not in tangents and (view := self._view_of_argument(node)) is not None:
                returned.append(view)
            elif (number := self._number(node)) is not None:
                is_tensor = isinstance(node.meta["val"], torch.Tensor)
                returned.append(Returned(number=number, dtype=node.meta["val"].dtype if is_tensor else None))
                needed |= {symbol for symbol in number.free_symbols if symbol in self.sources}
            elif node in outputs and place not in tangents:
                returned.append(Returned(output=outputs.index(node)))
            else:
                returned.append(Returned(output=len(outputs)))
                outputs.append(node)
                upstream.append(tangents.get(place))
            returned[-1] = replace(returned[-1], moved=options)
        reads: dict[sympy.Symbol, int] = {}
        for symbol in sorted(needed, key=str):
            (tensor,) = self.sources[symbol].all_input_nodes
            if tensor not in outputs:
                outputs.append(tensor)
                upstream.append(None)
            reads[symbol] = outputs.index(tensor)
        self._refuse_elsewhere([*outputs, *(each for each in self.gradients if isinstance(each, torch.fx.Node))])
        titles = ["loss"] if len(outputs) == 1 else [f"loss_{k}" for k in range(len(outputs))]
        wanted = dict(zip(self.arguments, self.gradients, strict=False))
        gradients = [wanted.get(node) for node in inputs] + [None] * len(extra)
        reached = _reached(upstream, gradients)
        edge = [*inputs, *extra]
        constants = [node for node in self.graph.nodes if node.op == "get_attr"]
        joint = JointGraph(
            graph=self.graph,
            sizes=self.sizes,
            inputs=[self._edge(names[node], node, is_input=True) for node in edge],
            constants=[self._edge(str(node.target), node, is_input=True) for node in constants],
            constant_values=[node.meta["value"] for node in constants],
            outputs=[self._edge(*each) for each in zip(titles, outputs, strict=True)],
            upstream=[
                None if node is None else self._edge(f"grad_{title}", node)
                for title, node in zip(titles, upstream, strict=True)
            ],
            reached=reached,
            gradients=[
                None if each is None else self._edge(f"grad_{names[node]}", each)
                for node, each in zip(edge, gradients, strict=True)
            ],
            numbers={
                self.sizes.expression(Size(symbol)): node.all_input_nodes[0] for symbol, node in self.sources.items()
            },
            prologue=prologue,
        )
        return joint, tuple(returned), {self.sizes.expression(Size(s)): place for s, place in reads.items()}

    def _tangents(self) -> dict[int, torch.fx.Node]:
        """The gradient that backward is given for a result, by the result's position."""
        described = pytree.tree_leaves(self._described, is_leaf=lambda each: each is None or hasattr(each, "expr"))
        places = {each: place for place, each in enumerate(described[: len(self.results)])}
        return {places[node.meta["desc"].output]: node for node in self.tangents}

    def _view_of_argument(self, node: torch.fx.Node) -> Returned | None:
        """A result that shows the memory of an argument, which torch finds out by where it begins."""
        whole = node
        while whole.target is operator.getitem or _shows_its_first(whole.target):
            whole = whole.all_input_nodes[0]
        if whole not in self.tensors:
            return None
        value, own = node.meta["val"], whole.meta["val"]
        places = (*value.shape, *value.stride(), value.storage_offset() - own.storage_offset())
        found = tuple(map(self.sizes.expression, places))
        if any(not each.free_symbols <= self.sizes.symbols.keys() for each in found):
            return None
        rank = value.dim()
        return Returned(argument=self.arguments.index(whole), view=(found[:rank], found[rank:-1], found[-1]))

    def _number(self, node: torch.fx.Node) -> sympy.Expr | None:
        """The expression of a result that is a number, or a tensor of one on the host."""
        value = node.meta["val"]
        if isinstance(value, SYMBOLIC):
            return self.sizes.expression(value)
        is_host = value.dim() == 0 and value.device.type == "cpu"
        if node.target is aten.scalar_tensor.default and is_host and isinstance(node.args[0], Size):
            return self.sizes.expression(node.args[0])
        return None

    def _refuse_elsewhere(self, results: Sequence[torch.fx.Node]) -> None:
        """Raise if kernels would read or return a tensor on another device than theirs."""
        for node in ancestors(*results):
            if "elsewhere" in node.meta and (node in results or any(e.op == "placeholder" for e in ancestors(node))):
                name = TorchStep.name_of(node.target)
                raise UnsupportedOpError(f"{name} on the device {node.meta['elsewhere']}", where=node.meta["origin"])

    def _edge(self, name: str, node: torch.fx.Node, *, is_input: bool = False) -> EdgeTensor:
        value = node.meta["val"]
        shape = tuple(map(self.sizes.expression, value.shape))
        laid = tuple(map(self.sizes.expression, value.stride()))
        if not is_input and any(stride == 0 for size, stride in zip(shape, laid, strict=True) if size != 1):
            laid = _dense_strides(shape)
        strides = tuple(sympy.S.Zero if size == 1 else each for size, each in zip(shape, laid, strict=True))
        is_known = all(each.free_symbols <= self.sizes.symbols.keys() for each in laid)
        return EdgeTensor(name, value.dtype, shape, strides, node, laid if is_known and not is_input else None)


def _value(argument: Any) -> Any:
    """What a node, or a number, is in the capture."""
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _from_the_beginning(node: torch.fx.Node) -> tuple[Any, ...]:
    """The arguments of a slice or a selection, whose place is counted from the beginning of the dimension."""
    of, dim, at = _PLACED[node.target]
    if len(node.args) <= at or node.args[at] is None:
        return tuple(node.args)
    whole = _value(node.args[of])
    shape = whole.shape if isinstance(whole, torch.Tensor) else [_value(size) for size in whole]
    place, size = _value(node.args[at]), shape[node.args[dim]]
    if guard_or_false(place < 0):
        place = place + size
    elif isinstance(place, torch.SymInt) and not place.node.has_hint() and not guard_or_false(place >= 0):
        raise UnsupportedOpError(f"{node.target} at a place that may count from the end", where=node.meta["origin"])
    if node.target in _STARTS:
        if guard_or_false(place < 0):
            place = 0
        elif guard_or_false(place > size):
            place = size
    elif place is _value(node.args[at]):
        return tuple(node.args)
    written = Size(place.node.expr) if isinstance(place, SYMBOLIC) else place
    return (*node.args[:at], written, *node.args[at + 1 :])


def _reduces_nothing(node: torch.fx.Node) -> bool:
    """Whether a reduction has no elements, all or along its one dimension."""
    shape, dims = _value(node.args[0]).shape, node.args[1:2]
    return 0 in shape if not dims else bool(shape) and shape[dims[0]] == 0  # type: ignore[index]


def _is_copy_elsewhere(node: Any) -> bool:
    """Whether a result is a copy on another device, such as one for a log."""
    return isinstance(node, torch.fx.Node) and "elsewhere" in node.meta and node.target is aten._to_copy.default


def _shows_its_first(target: Any) -> bool:
    """Whether an op's results are views of its first argument."""
    arguments = getattr(getattr(target, "_schema", None), "arguments", None)
    first = arguments[0].alias_info if arguments else None
    return first is not None and not first.is_write


def _reached(
    upstream: Sequence[torch.fx.Node | None], gradients: Sequence[torch.fx.Node | None]
) -> list[frozenset[int]]:
    """The inputs whose gradient each upstream gradient is a part of."""
    below = [set() if each is None else ancestors(each) for each in gradients]
    tangents = {each for each in upstream if each is not None}
    return [
        frozenset(
            k
            for k, nodes in enumerate(below)
            if gradients[k] is not None and tangent is not None and (tangent in nodes or nodes.isdisjoint(tangents))
        )
        for tangent in upstream
    ]


def _dense_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    strides, step = [], sympy.S.One
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def _geometry(value: Any) -> dict[str, Any]:
    """What lowering asks of a node's result."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return {
        "geometry": [(tuple(p.shape), p.dtype) for p in parts if isinstance(p, torch.Tensor)],
        "strides": [p.stride() if isinstance(p, torch.Tensor) else None for p in parts],
        "is_tuple": not isinstance(value, torch.Tensor),
    }


def _symbols(value: Any) -> set[sympy.Symbol]:
    """The symbols in the sizes of a result."""
    found: set[sympy.Symbol] = set()
    for leaf in pytree.tree_leaves(value):
        sizes = leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,)
        for size in sizes:
            if isinstance(size, SYMBOLIC):
                found |= size.node.expr.free_symbols
            elif isinstance(size, Size):
                found |= size.expression.free_symbols
            elif isinstance(size, torch.fx.Node) and isinstance(size.meta.get("val"), SYMBOLIC):
                found |= size.meta["val"].node.expr.free_symbols
    return found


def _is_of_values(size: sympy.Symbol, node: torch.fx.Node) -> bool:
    return bool(re.match(r"u\d+$", str(size)))


def _is_effect(node: torch.fx.Node) -> bool:
    """Whether a node does more than to compute its result."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _key(leaf: Any) -> Hashable:
    return repr(leaf) if isinstance(leaf, float) else leaf
