"""Convert AOTAutograd's graph into a `JointGraph`, and record how a call's arguments and results map to it."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from autogen import compat
from autogen.capture import nodes, unknown
from autogen.capture.draft import Draft
from autogen.capture.graph import EdgeTensor, JointGraph
from autogen.capture.prologue import Prologue
from autogen.capture.sizes import SYMBOLIC, Size, Sizes, settle_factors
from autogen.errors import UnsupportedOpError
from autogen.ir.torch_step import TorchStep, ancestors

aten = torch.ops.aten


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

    Attributes:
        graph: the joint graph.
        tensors: the arguments that kernels are given, by position.
        numbers: the arguments that are numbers, also as tensors of one.
        are_tensors: of each argument, whether it is a tensor.
        objects: the arguments that are neither.
        returned: what a call returns.
        gradients: what backward returns: the gradient of the argument of this number, None, or what is no gradient.
        upstream: of each upstream gradient, whether it is a tensor.
        reads: the outputs that are read as numbers, by symbol.
        device: where the kernels run.
        chooses: whether kernels go through all that masks choose from.
    """

    graph: JointGraph
    tensors: tuple[int, ...]
    numbers: tuple[int, ...]
    are_tensors: tuple[bool, ...]
    objects: tuple[int, ...]
    returned: tuple[Returned, ...]
    gradients: tuple[Returned | int | None, ...]
    upstream: tuple[bool, ...]
    reads: dict[sympy.Symbol, int]
    device: torch.device
    chooses: bool


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
        UnavailableError: the segment is given no tensor.
        UnsupportedOpError: an op, or a device, for which there is no kernel.
        ValueBranchError: a size that is known only in backward.
    """
    draft = Draft(module, names, count, shapes)
    nodes.prepare(draft)
    nodes.merge_alike(draft)
    chosen = set() if knows_masks else unknown.choose_by_masks(draft)
    found = unknown.found_by_torch(draft, chosen, knows_numbers=knows_numbers)
    prologue, extra = unknown.put_found(draft, found) if found else (None, [])
    called = dict(zip(draft.arguments, draft.names, strict=True)) | {node: node.name for node in extra}
    inputs = [(called[node], node.meta["val"]) for node in (*draft.tensors, *extra)]
    settle_factors(shapes, [fake for _, fake in inputs])
    numbers = [(called[node], node.meta["number"]) for node in draft.numbers]
    numbers += [(node.name.strip("_"), node.meta["val"]) for node in (prologue.numbers if prologue else ())]
    sizes = Sizes(shapes, inputs, numbers)
    nodes.write_numbers(draft)
    nodes.count_from_the_beginning(draft)
    draft.drop_symbols()
    edge = _Edge(draft, sizes, called, extra)
    places = {node: place for place, node in enumerate(draft.arguments)}
    return Segment(
        graph=edge.joint(prologue),
        tensors=tuple(places[node] for node in draft.tensors),
        numbers=tuple(places[node] for node in draft.numbers),
        are_tensors=_are_tensors(draft.arguments),
        objects=tuple(places[node] for node in draft.arguments if compat.is_object(node)),
        returned=tuple(edge.returned),
        gradients=tuple(edge.given_back(places)),
        upstream=tuple(
            is_tensor and node not in draft.beside
            for node, is_tensor in zip(draft.tangents, _are_tensors(draft.tangents), strict=True)
        ),
        reads={sizes.expression(Size(symbol)): place for symbol, place in edge.reads.items()},
        device=draft.device,
        chooses=bool(chosen),
    )


class _Edge:
    """What goes into a graph and comes out of it."""

    def __init__(
        self, draft: Draft, sizes: Sizes, called: dict[torch.fx.Node, str], extra: Sequence[torch.fx.Node]
    ) -> None:
        self._draft, self._sizes, self._called = draft, sizes, called
        self._inputs = [*draft.tensors, *extra]
        self._outputs: list[torch.fx.Node] = []
        self._upstream: list[torch.fx.Node | None] = []
        self.returned: list[Returned] = []
        self.reads: dict[sympy.Symbol, int] = {}
        tangents = _tangents(draft)
        needed: set[sympy.Symbol] = set()
        for place, node in enumerate(draft.results):
            self.returned.append(self._returned(node, tangents.get(place)))
            number = self.returned[-1].number
            needed |= set() if number is None else number.free_symbols & draft.sources.keys()
        for symbol in sorted(needed, key=str):
            (tensor,) = draft.sources[symbol].all_input_nodes
            self.reads[symbol] = self._output(tensor, None)
        gradients = draft.gradient_of()
        self._gradients: list[torch.fx.Node | None] = [gradients.get(node) for node in self._inputs]
        self._refuse_elsewhere()

    def given_back(self, places: dict[torch.fx.Node, int]) -> Iterator[Returned | int | None]:
        """What backward returns: gradients, by the `places` of the arguments that they are of, and what wraps them."""
        by_part = {compat.part_of(node.meta["desc"]): place for node, place in places.items()}
        for part, each in self._draft.parts_of_gradients():
            is_tensor = isinstance(each, torch.fx.Node) and isinstance(each.meta["val"], torch.Tensor)
            if is_tensor and each not in self._draft.arguments:
                yield by_part[part]
            else:
                yield None if each is None else self._returned(each, None)

    def joint(self, prologue: Prologue | None) -> JointGraph:
        """The joint graph."""
        sizes, graph = self._sizes, self._draft.graph
        titles = ["loss"] if len(self._outputs) == 1 else [f"loss_{k}" for k in range(len(self._outputs))]
        upstream = zip(titles, self._upstream, strict=True)
        gradients = zip(self._inputs, self._gradients, strict=True)
        constants = [node for node in graph.nodes if node.op == "get_attr"]
        return JointGraph(
            graph=graph,
            sizes=sizes,
            inputs=[self._tensor(self._called[node], node, is_input=True) for node in self._inputs],
            constants=[self._tensor(str(node.target), node, is_input=True) for node in constants],
            constant_values=[node.meta["value"] for node in constants],
            outputs=[self._tensor(*each) for each in zip(titles, self._outputs, strict=True)],
            upstream=[None if node is None else self._tensor(f"grad_{title}", node) for title, node in upstream],
            reached=self._reached(),
            gradients=[
                None if node is None else self._tensor(f"grad_{self._called[own]}", node) for own, node in gradients
            ],
            numbers={
                sizes.expression(Size(symbol)): node.all_input_nodes[0] for symbol, node in self._draft.sources.items()
            },
            prologue=prologue,
        )

    def _returned(self, node: Any, tangent: torch.fx.Node | None) -> Returned:
        if not isinstance(node, torch.fx.Node):
            return Returned(number=None if node is None else sympy.sympify(node))
        if tangent is None and "elsewhere" in node.meta and node.target is aten._to_copy.default:
            return replace(self._returned(node.args[0], None), moved=dict(node.kwargs))
        if node in self._draft.arguments:
            return Returned(argument=self._draft.arguments.index(node))
        view = self._view_of_argument(node) if tangent is None else None
        if view is not None:
            return view
        number = self._number(node)
        if number is not None:
            value = node.meta["val"]
            return Returned(number=number, dtype=value.dtype if isinstance(value, torch.Tensor) else None)
        return Returned(output=self._output(node, tangent))

    def _view_of_argument(self, node: torch.fx.Node) -> Returned | None:
        """A result that shows the memory of an argument, which torch finds out by where it begins."""
        whole = node
        while whole.target is operator.getitem or compat.shows_its_first(whole.target):
            whole = whole.all_input_nodes[0]
        if whole not in self._draft.tensors:
            return None
        value, own = node.meta["val"], whole.meta["val"]
        places = (*value.shape, *value.stride(), value.storage_offset() - own.storage_offset())
        found = tuple(map(self._sizes.expression, places))
        if any(not each.free_symbols <= self._sizes.symbols.keys() for each in found):
            return None
        rank = value.dim()
        argument = self._draft.arguments.index(whole)
        return Returned(argument=argument, view=(found[:rank], found[rank:-1], found[-1]))

    def _output(self, node: torch.fx.Node, tangent: torch.fx.Node | None) -> int:
        """The number of an output; a new one if it has an upstream gradient of its own."""
        if node not in self._outputs or tangent is not None:
            self._outputs.append(node)
            self._upstream.append(tangent)
            return len(self._outputs) - 1
        return self._outputs.index(node)

    def _number(self, node: torch.fx.Node) -> sympy.Expr | None:
        """The expression of a result that is a number, or a tensor of one on the host."""
        value = node.meta["val"]
        if isinstance(value, SYMBOLIC):
            return self._sizes.expression(value)
        is_on_host = value.dim() == 0 and value.device.type == "cpu"
        if node.target is aten.scalar_tensor.default and is_on_host and isinstance(node.args[0], Size):
            return self._sizes.expression(node.args[0])
        return None

    def _refuse_elsewhere(self) -> None:
        """Raise if kernels would read or return a tensor on another device than theirs."""
        results = [node for node in (*self._outputs, *self._gradients) if node is not None]
        for node in ancestors(*results):
            if "elsewhere" in node.meta and (node in results or any(e.op == "placeholder" for e in ancestors(node))):
                name = TorchStep.name_of(node.target)
                raise UnsupportedOpError(f"{name} on the device {node.meta['elsewhere']}", where=node.meta["origin"])

    def _tensor(self, name: str, node: torch.fx.Node, *, is_input: bool = False) -> EdgeTensor:
        value = node.meta["val"]
        shape = tuple(map(self._sizes.expression, value.shape))
        laid = tuple(map(self._sizes.expression, value.stride()))
        if not is_input and any(stride == 0 for size, stride in zip(shape, laid, strict=True) if size != 1):
            laid = _dense_strides(shape)
        strides = tuple(sympy.S.Zero if size == 1 else each for size, each in zip(shape, laid, strict=True))
        is_known = all(each.free_symbols <= self._sizes.symbols.keys() for each in laid)
        return EdgeTensor(name, value.dtype, shape, strides, node, laid if is_known and not is_input else None)

    def _reached(self) -> list[frozenset[int]]:
        """For each output, the inputs whose gradient its upstream gradient is a part of."""
        below = [set() if each is None else ancestors(each) for each in self._gradients]
        tangents = {each for each in self._upstream if each is not None}

        def has_part(k: int, tangent: torch.fx.Node) -> bool:
            return self._gradients[k] is not None and (tangent in below[k] or below[k].isdisjoint(tangents))

        count = range(len(below))
        return [
            frozenset() if each is None else frozenset(k for k in count if has_part(k, each)) for each in self._upstream
        ]


def _are_tensors(nodes: Sequence[torch.fx.Node]) -> tuple[bool, ...]:
    return tuple(isinstance(node.meta["val"], torch.Tensor) for node in nodes)


def _tangents(draft: Draft) -> dict[int, torch.fx.Node]:
    """The gradient that backward is given for a result, by the result's position."""
    places = {compat.part_of(each): place for place, each in enumerate(draft.described()[: len(draft.results)])}
    return {places[compat.part_of(node.meta["desc"])]: node for node in draft.tangents}


def _dense_strides(shape: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    strides, step = [], sympy.S.One
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))
