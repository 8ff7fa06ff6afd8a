"""Express that an item belongs to a given sequence by where that sequence begins and ends.

The sequence of an item is a search in offsets (`ir.search`). Where that is to be a given one, the item lies between two
of the offsets, and what is read of its sequence is read of the given one.
"""

from __future__ import annotations

import sympy
import torch

from autogen import ir
from autogen.ir import Node
from autogen.ir.substitution import replace_nodes, substitute
from autogen.lowering.entries import (
    Condition,
    as_index,
    checked,
    choose,
    is_below,
    is_within,
    plain,
    plus,
    position,
    spelled_out,
)
from autogen.lowering.values import Entry

_BEYOND = 2**62  # where the last sequence ends, if no offset says so


def sequence_of(node: Node) -> tuple[Node, sympy.Expr] | None:
    """The search, and the number added to it, that a computed place is: the sequence that an item belongs to.

    What a place is that is negative, or is read outside of a tensor, does not matter: no sequence is.
    """
    while node.op == "where" and len(own := [arg for arg in node.args[1:] if _is_compared(arg, node.args[0])]) == 1:
        (node,) = own
    added: sympy.Expr = sympy.S.Zero
    if node.op in ("add", "sub") and node.args[1].op == "const":
        added = sympy.Integer(node.args[1].attrs[0]) * (1 if node.op == "add" else -1)
        node = node.args[0]
    return (node, added) if node.op == "search" else None


def _is_compared(node: Node, condition: Node) -> bool:
    """Whether a condition is about where a node lies."""
    if condition.op == "logical_and":
        return any(_is_compared(node, part) for part in condition.args)
    return condition.op in ("lt", "ge") and condition.args[0] is node


def settled_place(entry: Entry) -> Entry:
    """An entry that says which sequence an item belongs to, in the one form that all such have."""
    found = sequence_of(entry) if isinstance(entry, Node) else None
    return plus(*found) if found else plain(entry)


def within(place: Node, entry: Entry) -> Node | None:
    """Whether the sequence that an item belongs to is an entry, told from where it begins and ends; None of others."""
    found = sequence_of(place)
    if found is None:
        return None
    search, added = found
    value, (_, size) = search.args[0], search.attrs
    above = plus(settled_place(entry), -added)
    below = plus(above, sympy.S.NegativeOne)
    start = _either(is_within(above, sympy.S.One), ir.const(0, torch.int64), _element(search, below))
    end = _either(is_below(above, size), _element(search, above), ir.const(_BEYOND, torch.int64))
    if value.op == "add" and value.args[0].op == "index":  # of items that are counted from the first offset on
        value, before = value.args
        start, end = ir.apply("sub", start, before), ir.apply("sub", end, before)
    return ir.apply("logical_and", ir.apply("ge", value, start), ir.apply("lt", value, end))


def _either(condition: Condition, one: Node, other: Node) -> Node:
    return choose(condition, lambda: one, lambda: other, torch.int64)


def _element(search: Node, place: Entry) -> Node:
    """An element of the sorted vector of a search."""
    (dim, _), (buffer, entries) = search.attrs, search.args[1].attrs
    at: list[Entry] = list(entries)
    entry, whole = plain(plus(place, entries[dim])), buffer.shape[dim]
    at[dim] = entry if isinstance(entry, Node) else checked(entry, is_within(entry, whole))
    return as_index(ir.load(buffer, at))


def at_sequence(node: Node, place: Node, entry: Entry) -> Node:
    """`node` where the sequence of an item is an entry: what it reads of the sequence is read there."""
    found = sequence_of(place)
    assert found is not None
    here = settled_place(entry)
    found_at = {place: position(here), found[0]: position(plus(here, -found[1]))}
    return ir.transform([replace_nodes(node, found_at)], _settled)[0]


def _settled(node: Node) -> Node:
    """A load at places that are as plain as they can be."""
    if node.op in ("add", "sub") and all(arg.op in ("index", "const") for arg in node.args):
        other = plain(node.args[1])
        return position(plus(plain(node.args[0]), other if node.op == "add" else -other))  # type: ignore[operator]
    return spelled_out(node)


def in_sequence(hit: Node, new: Node) -> tuple[Node, Node] | None:
    """The condition that an item belongs to a sequence, by where that begins and ends, and what it then brings, if
    `hit` is that condition.
    """
    for entry, place in (hit.args, hit.args[::-1]) if hit.op == "eq" else ():
        inside = within(place, entry)
        if inside is not None:
            return inside, at_sequence(new, place, entry)
    return None


def item_at(own: Node, place: Node, sequence: Entry, entry: Entry) -> tuple[ir.Axis, Node, Node] | None:
    """The item that is at an entry of a sequence, if `own` is the sequence of an item, and `place` where in it the item
    is: the axis of items, which of them, and whether there is one.
    """
    inside = within(own, sequence)
    if inside is None or place.op != "sub" or place.args[0].op != "index":
        return None
    axis, start = place.args[0].attrs[0], at_sequence(place.args[1], own, sequence)
    if not isinstance(axis, ir.Axis) or axis in start.axes:
        return None
    item = ir.apply("add", position(entry), start)
    first = ir.apply("ge", position(entry), ir.const(0, torch.int64))
    return axis, item, ir.apply("logical_and", first, substitute(inside, {axis: item}))
