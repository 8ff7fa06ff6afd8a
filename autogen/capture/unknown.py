"""Handle data-dependent sizes: by masks inside the kernels, or by a prologue that torch runs before them."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch

from autogen.capture import masks
from autogen.capture.draft import Draft
from autogen.capture.prologue import Prologue
from autogen.capture.sizes import SYMBOLIC, Size
from autogen.compat import pytree
from autogen.ir.torch_step import TorchStep, ancestors, is_ordered

aten = torch.ops.aten


def choose_by_masks(draft: Draft) -> set[sympy.Symbol]:
    """Write reads and writes at masks as such; returns the sizes of what these choose.

    Of two sizes that are equal, elements go together by their order: the masks have to be one.
    """
    by_size: dict[sympy.Expr, set[torch.fx.Node]] = {}
    by_mask: dict[torch.fx.Node, torch.SymInt] = {}
    reads: list[tuple[torch.fx.Node, torch.fx.Node, int, sympy.Expr]] = []
    for node in draft.graph.nodes:
        if node.target is aten.masked_select.default:
            _as_index(node)
        if node.target in masks.READS and (chosen := masks.mask_of(node)) is not None:
            size = node.meta["val"].shape[chosen[1]]
            if isinstance(size, torch.SymInt):
                draft.are_equal(size, by_mask.setdefault(chosen[0], size))
                expression = draft.shapes.replace(size.node.expr)
                by_size.setdefault(expression, set()).add(chosen[0])
                reads.append((node, *chosen, expression))
    sizes = set()
    for node, mask, before, size in reads:
        if size.is_Symbol and len(by_size[size]) == 1 and draft.shapes.is_unbacked_symint(size):
            node.target, node.args = masks.masked_read, (node.args[0], mask, before)
            sizes.add(size)
    for node in draft.graph.nodes:
        if node.target is aten.masked_scatter.default:
            _as_write(draft, node, by_size)
        if node.target in masks.WRITES and (chosen := masks.mask_of(node)) is not None:
            values, accumulate = node.args[2], len(node.args) > 3 and bool(node.args[3])
            node.target, node.args = masks.masked_write, (node.args[0], *chosen, values, accumulate)
    return sizes


def _as_index(node: torch.fx.Node) -> None:
    """`masked_select` of a tensor of the mask's shape as an index."""
    tensor, mask = node.all_input_nodes
    if tuple(tensor.meta["val"].shape) == tuple(mask.meta["val"].shape):
        node.target, node.args = aten.index.Tensor, (tensor, [mask])


def _as_write(draft: Draft, node: torch.fx.Node, by_size: dict[sympy.Expr, set[torch.fx.Node]]) -> None:
    """`masked_scatter` of what the mask has chosen, as in the gradient of that, as a write at an index."""
    if len(node.all_input_nodes) < 3:
        return
    tensor, mask, source = node.all_input_nodes
    whole, where, values = (each.meta["val"] for each in (tensor, mask, source))
    if values.dim() != 1 or not isinstance(values.shape[0], torch.SymInt) or tuple(whole.shape) != tuple(where.shape):
        return
    if by_size.get(draft.shapes.replace(values.shape[0].node.expr)) == {mask}:
        node.target, node.args = aten.index_put.default, (tensor, [mask], source)


def found_by_torch(draft: Draft, chosen: set[sympy.Symbol], *, knows_numbers: bool) -> list[torch.fx.Node]:
    """The nodes that torch has to compute before the kernels, in the order of the graph: those that have sizes which
    nothing else has, but for those `chosen` by masks; and numbers that are read, if these are to be known.
    """
    known = set(chosen)
    found: list[torch.fx.Node] = []
    for node in draft.graph.nodes:
        value = node.meta.get("val")
        if node.target is aten._local_scalar_dense.default:
            is_given = node.all_input_nodes[0] in draft.numbers
            if knows_numbers and isinstance(value, SYMBOLIC) and not is_given:
                found.append(node)
            known |= _symbols(value)
        elif "geometry" in node.meta and _new_sizes(draft, node) - known:
            found.append(node)
    parts: list[torch.fx.Node] = []
    for node in found:
        is_tuple = isinstance(node.meta["val"], (tuple, list))
        parts += [user for user in node.users if user.target is operator.getitem] if is_tuple else [node]
    needed = ancestors(*parts)
    # What is drawn there is not drawn again, and collectives are not repeated.
    once = (node for node in needed if node.op == "call_function" and is_ordered(node.target) and node not in parts)
    parts += [node for node in once if any(user not in needed for user in node.users)]
    return [node for node in draft.graph.nodes if node in set(parts)]


def _new_sizes(draft: Draft, node: torch.fx.Node) -> set[sympy.Symbol]:
    """The sizes in a node's result that only values know, and that are not in what it is computed from."""
    given = {symbol for each in node.all_input_nodes for symbol in _symbols(each.meta.get("val"))}
    given |= {symbol for each in pytree.tree_leaves((node.args, node.kwargs)) for symbol in _symbols(each)}
    own = {symbol for symbol in _symbols(node.meta["val"]) - given if draft.shapes.is_unbacked_symint(symbol)}
    replaced = (draft.shapes.replace(symbol) for symbol in own)
    return {symbol for symbol in replaced if symbol.is_Symbol}


def put_found(draft: Draft, found: list[torch.fx.Node]) -> tuple[Prologue, list[torch.fx.Node]]:
    """The prologue that finds some nodes, and the inputs that stand in their place."""
    numbers = {node for node in found if not isinstance(node.meta["val"], torch.Tensor)}
    prologue = Prologue(found, draft.arguments, numbers, draft.shapes)
    inputs = []
    last = [*draft.arguments, *draft.tangents][-1]
    for node in prologue.tensors:
        made_by: Any = node.args[0] if node.target is operator.getitem else node
        with draft.graph.inserting_after(last):
            last = draft.graph.placeholder(TorchStep.name_of(made_by.target))
        last.meta["val"] = node.meta["val"].contiguous()
        draft.replace(node, last)
        inputs.append(last)
    for node in prologue.numbers:
        for symbol in _symbols(node.meta["val"]):
            draft.sources.pop(symbol, None)
    return prologue, inputs


def _symbols(value: Any) -> set[sympy.Symbol]:
    """The symbols in the sizes of a result, or in a number."""
    found: set[sympy.Symbol] = set()
    for leaf in pytree.tree_leaves(value):
        for size in leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,):
            if isinstance(size, torch.fx.Node):
                size = size.meta.get("val")
            if isinstance(size, SYMBOLIC):
                found |= size.node.expr.free_symbols
            elif isinstance(size, Size):
                found |= size.expression.free_symbols
    return found
