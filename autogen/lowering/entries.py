"""Arithmetic on the entries of an index: what is known of one while lowering stays an expression, and what is computed,
or may lie outside the tensor that it is for, becomes a node. A load at a node is checked; one at an expression is not.
"""

from __future__ import annotations

import sympy
import torch

from autogen import ir
from autogen.lowering.values import Entry


def as_index(node: ir.Node) -> ir.Node:
    """A node as a computed index."""
    return ir.cast(node, torch.int64)


def position(entry: Entry) -> ir.Node:
    """An entry as a node."""
    return entry if isinstance(entry, ir.Node) else ir.index(entry)


def plus(entry: Entry, offset: sympy.Expr) -> Entry:
    """`entry + offset`."""
    if isinstance(entry, ir.Node):
        return entry if offset == 0 else ir.apply("add", entry, ir.index(offset))
    return sympy.expand(entry + offset)


def sum_of(a: Entry, b: Entry) -> Entry:
    """`a + b`."""
    if isinstance(a, ir.Node) or isinstance(b, ir.Node):
        return ir.apply("add", position(a), position(b))
    return sympy.expand(a + b)


def times(entry: Entry, factor: sympy.Expr) -> Entry:
    """`entry * factor`."""
    if isinstance(entry, ir.Node):
        return entry if factor == 1 else ir.apply("mul", entry, ir.index(factor))
    return sympy.expand(entry * factor)


def mirrored(entry: Entry, size: sympy.Expr) -> Entry:
    """The same distance from the other end: `size - 1 - entry`."""
    if isinstance(entry, ir.Node):
        return ir.apply("sub", ir.index(size - 1), entry)
    return sympy.expand(size - 1 - entry)


def divided(entry: Entry, size: sympy.Expr) -> tuple[Entry, ir.Node | None]:
    """`entry // size`, and the condition that nothing is left over, if that is not certain."""
    if size == 1:
        return entry, None
    node = position(entry)
    rest = ir.apply("remainder", node, ir.index(size))
    return ir.apply("floor_divide", node, ir.index(size)), ir.apply("eq", rest, ir.const(0, torch.int64))


def is_below(entry: Entry, bound: sympy.Expr) -> bool | ir.Node:
    """Whether an entry is less than `bound`: True or False where sizes decide it, else a condition."""
    if not isinstance(entry, ir.Node):
        limits = _limits(entry)
        if limits is not None:
            least, greatest = limits
            if _is_nonnegative(bound - 1 - greatest):
                return True
            if _is_nonnegative(least - bound):
                return False
    return ir.apply("lt", position(entry), ir.index(bound))


def is_within(entry: Entry, size: sympy.Expr) -> bool | ir.Node:
    """Whether `0 <= entry < size`: True or False where sizes decide it, else a condition."""
    negative = is_below(entry, sympy.S.Zero)
    above = negative if isinstance(negative, bool) else ir.apply("ge", position(entry), ir.const(0, torch.int64))
    if isinstance(negative, bool):
        above = not negative
    return both(above, is_below(entry, size))


def both(a: bool | ir.Node, b: bool | ir.Node) -> bool | ir.Node:
    """`a and b`."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return ir.apply("logical_and", a, b)


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


def _is_nonnegative(expression: sympy.Expr) -> bool:
    """Whether an expression over sizes, which are at least 1, is known to be 0 or more."""
    expression = sympy.expand(expression)
    sizes = {symbol: 1 + sympy.Symbol(f"{symbol}_more", integer=True, nonnegative=True)
             for symbol in expression.free_symbols if symbol.is_positive}  # fmt: skip
    return bool(sympy.expand(expression.subs(sizes)).is_nonnegative)
