"""Arithmetic on the entries of an index, and conditions on them.

What is known of an entry while lowering stays an expression. What is computed, or may lie outside the tensor that it is
for, becomes a node: a load at a node is checked, one at an expression is not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import sympy
import torch

from autogen import ir
from autogen.lowering.values import Entry, Index, Shape, Value, broadcast_shape

# What sizes decide, or else a node.
Condition: TypeAlias = "bool | ir.Node"


def as_index(node: ir.Node) -> ir.Node:
    """A node as a computed index."""
    return ir.cast(node, torch.int64)


def position(entry: Entry) -> ir.Node:
    """An entry as a node."""
    return entry if isinstance(entry, ir.Node) else ir.index(entry)


def _written(node: ir.Node) -> sympy.Expr | None:
    """The expression that a node only spells out, if it does."""
    if node.op == "index":
        return node.attrs[0]
    return sympy.Integer(node.attrs[0]) if node.op == "const" else None


def _combined(op: str, formula: Callable[[sympy.Expr, sympy.Expr], sympy.Expr], a: Entry, b: Entry) -> Entry:
    """Two entries under a scalar op: a node if one of them is, which need not compute what is an expression."""
    if not isinstance(a, ir.Node) and not isinstance(b, ir.Node):
        return sympy.expand(formula(a, b))
    known = [plain(each) for each in (a, b)]
    if not any(isinstance(each, ir.Node) for each in known):
        return ir.index(sympy.expand(formula(*known)))
    return ir.apply(op, position(a), position(b))


def plus(a: Entry, b: Entry) -> Entry:
    """`a + b`."""
    if isinstance(a, ir.Node) and not isinstance(b, ir.Node) and b.is_Integer and _is_sum_with_number(a):
        return plus(a.args[0], b + a.args[1].attrs[0])
    return a if not isinstance(b, ir.Node) and b == 0 else _combined("add", operator.add, a, b)


def _is_sum_with_number(node: ir.Node) -> bool:
    return node.op == "add" and node.args[1].op == "const"


def times(a: Entry, b: Entry) -> Entry:
    """`a * b`."""
    return a if not isinstance(b, ir.Node) and b == 1 else _combined("mul", operator.mul, a, b)


def mirrored(entry: Entry, size: sympy.Expr) -> Entry:
    """The same distance from the other end: `size - 1 - entry`."""
    return _combined("sub", operator.sub, size - 1, entry)


def divided(entry: Entry, size: sympy.Expr) -> tuple[Entry, ir.Node | None]:
    """`entry // size`, and the condition that nothing is left over, if that is not certain."""
    if size == 1:
        return entry, None
    node = position(entry)
    rest = ir.apply("remainder", node, ir.index(size))
    return ir.apply("floor_divide", node, ir.index(size)), ir.apply("eq", rest, ir.const(0, torch.int64))


def is_below(entry: Entry, bound: sympy.Expr) -> Condition:
    """Whether an entry is less than `bound`: True or False where sizes decide it, else a condition."""
    if not isinstance(entry, ir.Node):
        limits = _limits(entry)
        if limits is not None:
            least, greatest = limits
            if is_nonnegative(bound - 1 - greatest):
                return True
            if is_nonnegative(least - bound):
                return False
    return ir.apply("lt", position(entry), ir.index(bound))


def is_within(entry: Entry, size: sympy.Expr) -> Condition:
    """Whether `0 <= entry < size`: True or False where sizes decide it, else a condition."""
    negative = is_below(entry, sympy.S.Zero)
    above = negative if isinstance(negative, bool) else ir.apply("ge", position(entry), ir.const(0, torch.int64))
    if isinstance(negative, bool):
        above = not negative
    return both(above, is_below(entry, size))


def surely_within(entry: sympy.Expr, size: sympy.Expr) -> bool:
    """Whether sizes decide that `0 <= entry < size`."""
    limits = _limits(entry)
    return limits is not None and is_nonnegative(limits[0]) and is_nonnegative(size - 1 - limits[1])


def both(a: Condition, b: Condition) -> Condition:
    """`a and b`."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return ir.apply("logical_and", a, b)


def wrapped(node: ir.Node, size: Any) -> ir.Node:
    """A computed index that counts from the end where it is negative."""
    node = as_index(node)
    from_end = ir.apply("add", node, ir.cast(ir.index(size), torch.int64))
    return ir.apply("where", ir.apply("lt", node, ir.const(0, torch.int64)), from_end, node)


def is_at(entry: Entry, place: ir.Node) -> ir.Node:
    """Whether an entry of an index is a computed place: one column of a one-hot row."""
    return ir.apply("eq", position(entry), as_index(place))


def choose(
    condition: Condition, chosen: Callable[[], ir.Node], other: Callable[[], ir.Node], dtype: torch.dtype
) -> ir.Node:
    """`chosen()` where a condition holds, else `other()`, in `dtype`; what can never be chosen is not asked for."""
    if isinstance(condition, bool):
        return ir.cast(chosen() if condition else other(), dtype)
    return ir.apply("where", condition, ir.cast(chosen(), dtype), ir.cast(other(), dtype))


def checked(entry: Entry, inside: Condition) -> Entry:
    """An entry for a tensor: a computed one, which loads check, where it may lie outside."""
    return entry if inside is True else position(entry)


def unchecked(entry: Entry, size: sympy.Expr) -> Entry:
    """An entry for a dimension of `size`: the expression that a node spells out, if it surely lies inside."""
    known = plain(entry)
    return entry if isinstance(known, ir.Node) or not surely_within(known, size) else known


def spelled_out(node: ir.Node) -> ir.Node:
    """A load at expressions where a computed index spells one out that surely lies inside; another node as it is."""
    if node.op != "load" or not node.args:
        return node
    args, (buffer, entries) = iter(node.args), node.attrs
    given: list[Entry] = [next(args) if ir.is_hole(entry) else entry for entry in entries]
    return ir.load(buffer, [unchecked(entry, size) for entry, size in zip(given, buffer.shape, strict=True)])


def bounded(value: Value, *dims: int) -> Value:
    """A view that is nan at computed indices outside of it, where there is something to be read along `dims`.

    What a node only spells out is no index that the loss computes: whoever made it has checked it.
    """

    def at(index: Index) -> ir.Node:
        computed = [dim for dim in dims if isinstance(plain(index[dim]), ir.Node)]
        return _inside(value, index, computed)

    return Value(value.shape, value.dtype, at, value.factors)


def looked_up(value: Value, index: Index) -> ir.Node:
    """The element at an index that the loss gives: nan outside, also where it only spells out a place."""
    spelled = [d for d, entry in enumerate(index) if isinstance(entry, ir.Node) and plain(entry) is not entry]
    return _inside(value, index, spelled)


def _inside(value: Value, index: Index, dims: Sequence[int]) -> ir.Node:
    """The element at an index, nan if the entries of some dimensions are outside."""
    node = value.at(index)
    for dim in dims:
        entry, size = index[dim], value.shape[dim]
        inside = _checks(node, entry, size) or is_within(plain(entry), size)
        if inside is not True:
            outside = ir.nothing(node.dtype)
            node = ir.apply("where", inside, node, outside) if inside else outside
    return node


def _checks(node: ir.Node, entry: Entry, size: sympy.Expr) -> bool:
    """Whether a node is a load along a dimension that has just this size in memory."""
    if node.op != "load" or entry not in node.args:
        return False
    buffer, entries = node.attrs
    return size == buffer.shape[entries.index(ir.hole(node.args.index(entry)))]


def plain(entry: Entry) -> Entry:
    """The expression that an entry is, if it is one."""
    known = _written(entry) if isinstance(entry, ir.Node) else None
    return entry if known is None else known


def chosen_dims(indices: Sequence[Value | None]) -> tuple[list[int], Shape, int]:
    """Of `x[indices]`: the indexed dimensions, the shape that the indices broadcast to, and where in the result it is:
    in the place of the dimensions if they are adjacent, else in front.
    """
    dims = [dim for dim, each in enumerate(indices) if each is not None]
    places = broadcast_shape([each for each in indices if each is not None])
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return dims, places, dims[0] if adjacent else 0


def _limits(entry: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The least and greatest value of an expression that is linear in its axes; None of another."""
    entry = sympy.expand(entry)
    least = greatest = entry
    axes = [symbol for symbol in entry.free_symbols if isinstance(symbol, ir.Axis)]
    for axis in axes:
        step = entry.coeff(axis, 1)
        if step.free_symbols & set(axes) or sympy.expand(entry - step * axis).has(axis):
            return None
        if step.is_nonnegative:
            low, high = sympy.S.Zero, axis.size - 1
        elif step.is_nonpositive:
            low, high = axis.size - 1, sympy.S.Zero
        else:
            return None
        least, greatest = least.subs(axis, low), greatest.subs(axis, high)
    return least, greatest


def is_nonnegative(expression: sympy.Expr) -> bool:
    """Whether an expression over sizes, which are at least 1, is known to be 0 or more."""
    expression = sympy.expand(expression)
    sizes = {symbol: 1 + sympy.Symbol(f"{symbol}_more", integer=True, nonnegative=True)
             for symbol in expression.free_symbols if symbol.is_positive}  # fmt: skip
    return bool(sympy.expand(expression.subs(sizes)).is_nonnegative)
