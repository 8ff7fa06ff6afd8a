"""Rewrite nodes of AOTAutograd's graph into what lowering reads."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_scalar

from autogen import compat
from autogen.capture.draft import NUMBERS, Draft, geometry_of
from autogen.capture.sizes import SYMBOLIC, Size
from autogen.capture.source import line_of_trace
from autogen.compat import pytree
from autogen.errors import UnsupportedOpError
from autogen.ir.torch_step import TorchStep, is_ordered

aten, prims = torch.ops.aten, torch.ops.prims

# Checks, which compute nothing.
_CHECKS = frozenset(
    {
        *(aten._assert_scalar.default, aten._assert_tensor_metadata.default, aten._assert_async.msg),
        *(aten._functional_assert_async.msg, aten._assert_async.default, aten.sym_constrain_range_for_size.default),
    }
)
_SAME = frozenset({aten.lift_fresh_copy.default, aten.lift_fresh.default, aten.alias.default, aten.detach.default})

# Where a dimension of the first argument, and a place in it, are among the arguments.
_STARTS: dict[Any, tuple[int, int]] = {aten.slice.Tensor: (1, 2), aten.slice_scatter.default: (2, 3)}
_PLACED = _STARTS | {aten.select.int: (1, 2), aten.select_scatter.default: (2, 3)}
_EXTREMES = frozenset({aten.max.default, aten.max.dim, aten.min.default, aten.min.dim})
_OF_ROWS = frozenset(
    {
        *(aten.gather.default, aten.scatter_add.default, aten.scatter.src, aten.scatter.value),
        *(aten.scatter_reduce.two, aten.scatter.reduce, aten.scatter.value_reduce),
    }
)


def prepare(draft: Draft) -> None:
    """Replace what only AOTAutograd writes by ATen, and note of each node what lowering asks for.

    Raises:
        UnsupportedOpError: an operation that is no op.
    """
    later = set(draft.tangents)
    for node in list(draft.graph.nodes):
        if node.op in ("placeholder", "output"):
            continue
        if any(each in later for each in node.all_input_nodes):
            later.add(node)
        is_backward = node.meta.get("partitioner_tag") == "is_backward" or node in later
        origin, whole = line_of_trace(node.meta.get("stack_trace")), node.meta.get("original_aten")
        # Of torch's formula for another op. By names, as AOTAutograd copies whole graphs, and these ops with them.
        is_part = whole is not None and str(whole) not in (str(node.target), str(aten._to_copy.default))
        node.meta.update(origin=origin, backward=is_backward, of_formula=is_part)
        if node.op == "get_attr":
            _write_constant(draft, node)
        elif node.target in _CHECKS and not node.users:
            draft.graph.erase_node(node)
        elif node.target is aten._local_scalar_dense.default:
            _note_number(draft, node)
        elif node.target is not operator.getitem and not isinstance(node.meta.get("val"), NUMBERS):
            _prepare_operation(draft, node)


def _write_constant(draft: Draft, node: torch.fx.Node) -> None:
    """Note a tensor that the loss has built from numbers; one number is written out."""
    value = getattr(draft.module, str(node.target))
    if not isinstance(value, torch.Tensor):
        raise UnsupportedOpError(str(node.target), where=node.meta["origin"])
    value = value.detach()
    node.meta.update(geometry_of(value), value=value, val=value)
    if value.numel() == 1 and not value.is_complex():
        number = value.reshape(()).item()
        with draft.graph.inserting_before(node):
            full = draft.graph.call_function(aten.full.default, ([1] * value.dim(), number), {"dtype": value.dtype})
        full.meta.update(node.meta)
        draft.replace(node, full)
        draft.graph.erase_node(node)


def _note_number(draft: Draft, node: torch.fx.Node) -> None:
    """Note a number that the loss reads from a tensor."""
    value = node.meta["val"]
    (tensor,) = node.all_input_nodes
    if isinstance(value, SYMBOLIC) and value.node.expr.is_Symbol and tensor not in draft.numbers:
        draft.sources[value.node.expr] = node


def _prepare_operation(draft: Draft, node: torch.fx.Node) -> None:
    if node.target is prims.convert_element_type.default:
        tensor, dtype = node.args
        node.target, node.args, node.kwargs = aten._to_copy.default, (tensor,), {"dtype": dtype}
    if node.target is aten._neg_view.default:  # no kernel reads the memory of a view with the other sign
        node.target = aten.neg.default
    if node.target in _SAME and len(node.all_input_nodes) == 1:
        draft.replace(node, node.all_input_nodes[0])
        draft.graph.erase_node(node)
        return
    if node.target in _EXTREMES and _reduces_nothing(node):
        raise UnsupportedOpError(f"{TorchStep.name_of(node.target)} of no elements", where=node.meta["origin"])
    if node.target in _OF_ROWS:
        _settle_rows(node)
    if node.target is aten.linalg_vector_norm.default and len(node.args) > 1:  # each order is a formula of its own
        node.update_arg(1, guard_scalar(_value(node.args[1])))
    if not compat.is_op(node.target):
        raise UnsupportedOpError(str(getattr(node.target, "__name__", node.target)), where=node.meta["origin"])
    value = node.meta.get("val")
    node.meta.update(geometry_of(value))
    parts = value if isinstance(value, (tuple, list)) else (value,)
    elsewhere = [p.device for p in parts if isinstance(p, torch.Tensor) and p.device != draft.device]
    if elsewhere:
        node.meta["elsewhere"] = elsewhere[0]


def write_numbers(draft: Draft) -> None:
    """Write numbers that came as tensors out where tensors are computed from them."""
    for node in draft.numbers:
        users = [user for user in node.users if user.target is not aten._local_scalar_dense.default]
        if isinstance(node.meta["val"], torch.Tensor) and users:
            _write_number(draft, node, users)


def _write_number(draft: Draft, node: torch.fx.Node, users: list[torch.fx.Node]) -> None:
    value = node.meta["val"]
    size: Any = Size(node.meta["number"].node.expr)
    with draft.graph.inserting_before(next(each for each in draft.graph.nodes if each in users)):
        full = draft.graph.call_function(aten.scalar_tensor.default, (size,), {"dtype": value.dtype})
    full.meta.update(geometry_of(value), val=value, origin=None, backward=False, of_formula=False)
    for user in users:
        user.replace_input_with(node, full)


def merge_alike(draft: Draft) -> None:
    """Have nodes that compute the same be one: masks are told apart by their node."""
    seen: dict[Hashable, torch.fx.Node] = {}
    for node in list(draft.graph.nodes):
        if node.op != "call_function" or is_ordered(node.target) or _is_effect(node):
            continue
        leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
        key = (node.target, node.meta.get("backward"), structure, tuple((type(x), _key(x)) for x in leaves))
        try:
            other = seen.setdefault(key, node)
        except TypeError:  # an argument that has no hash
            continue
        if other is not node:
            _equate(draft, node, other)
            draft.replace(node, other)
            draft.graph.erase_node(node)


def _equate(draft: Draft, node: torch.fx.Node, other: torch.fx.Node) -> None:
    """Note that what values decide of the sizes of two nodes that compute the same is the same."""
    one, two = node.meta.get("val"), other.meta.get("val")
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        for size, same in zip(one.shape, two.shape, strict=True):
            draft.are_equal(size, same)


def count_from_the_beginning(draft: Draft) -> None:
    """Have places that are counted from the end of a dimension, or lie beyond it, be counted from its beginning."""
    for node in draft.graph.nodes:
        if node.target in _PLACED:
            node.args = _from_the_beginning(node)


def _from_the_beginning(node: torch.fx.Node) -> tuple[Any, ...]:
    args: tuple[Any, ...] = tuple(node.args)
    dim, at = _PLACED[node.target]
    if len(args) <= at or args[at] is None:
        return args
    place, size = _value(args[at]), _value(args[0]).shape[args[dim]]
    if guard_or_false(place < 0):
        place = place + size
    elif isinstance(place, torch.SymInt) and not place.node.has_hint() and not guard_or_false(place >= 0):
        raise UnsupportedOpError(f"{node.target} at a place that may count from the end", where=node.meta["origin"])
    if node.target in _STARTS:
        if guard_or_false(place < 0):
            place = 0
        elif guard_or_false(place > size):
            place = size
    elif place is _value(args[at]):
        return args
    written = Size(place.node.expr) if isinstance(place, SYMBOLIC) else place
    return (*args[:at], written, *args[at + 1 :])


def _settle_rows(node: torch.fx.Node) -> None:
    """Guard that a gather, or a scatter, has places for all rows, if in this call it has: torch takes fewer, too."""
    whole, dim, places = map(_value, node.args[:3])
    for k, (count, size) in enumerate(zip(places.shape, whole.shape, strict=False)):
        if k != dim % len(whole.shape):
            guard_or_false(count == size)


def _reduces_nothing(node: torch.fx.Node) -> bool:
    """Whether a reduction has no elements, all or along its one dimension."""
    shape, dims = _value(node.args[0]).shape, node.args[1:2]
    return 0 in shape if not dims else bool(shape) and shape[dims[0]] == 0


def _value(argument: Any) -> Any:
    """What a node, or a number, is in the capture."""
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _is_effect(node: torch.fx.Node) -> bool:
    """Whether a node does more than to compute its result."""
    schema = compat.schema_of(node.target)
    return schema is not None and bool(schema.is_mutable)


def _key(leaf: Any) -> Hashable:
    return repr(leaf) if isinstance(leaf, float) else leaf
