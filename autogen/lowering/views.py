"""Lower views, each of which maps an index of the result to one of the argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from autogen import compat, ir
from autogen.lowering.entries import bounded, plus, position, surely_within, times
from autogen.lowering.registry import Context, lowers
from autogen.lowering.values import Entry, Index, Shape, Value, aligned, broadcast_factors


@lowers("detach.default", "alias.default", "clone.default", "lift_fresh.default")
def identity(context: Context, value: Value, **_: Any) -> Value:
    """The same elements."""
    return value


@lowers("expand.default")
def expand(context: Context, value: Value, size: Sequence[Any], implicit: bool = False) -> Value:
    """Broadcast to a larger shape."""
    factors = broadcast_factors(context.shape, [value])
    expanded = Value(context.shape, value.dtype, lambda index: value.at(aligned(index, value.shape)), factors)
    new = len(context.shape) - len(value.shape)
    return bounded(expanded, *range(new), *(new + dim for dim, size in enumerate(value.shape) if size == 1))


@lowers("view.default", "_unsafe_view.default", "view_copy.default", "_reshape_alias.default")
def view(context: Context, value: Value, *_: Any) -> Value:
    """Other dimensions over the same elements in row-major order."""
    groups = _matching_groups(value, context.shape)

    def at(index: Index) -> ir.Node:
        entries: list[Entry] = [sympy.S.Zero] * len(value.shape)
        for theirs, ours in groups:
            if len(theirs) == len(ours) == 1:
                entries[theirs[0]] = index[ours[0]]
            else:
                for dim, entry in zip(theirs, _regroup(index, ours, theirs, value, context.shape), strict=True):
                    entries[dim] = entry
        return value.at(entries)

    factors: list[Shape] = [(size,) for size in context.shape]
    for theirs, ours in groups:
        if len(ours) == 1:
            factors[ours[0]] = tuple(f for dim in theirs for f in value.factors[dim])
    # Beyond the first of some dimensions that are one in memory, there is the next of that one.
    inner = [dim for theirs, ours in groups for dim in (ours[1:] if theirs else ours)]
    return bounded(Value(context.shape, value.dtype, at, factors), *inner)


def _matching_groups(value: Value, shape: Shape) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions (of the argument, of the result) which hold the same elements; all are one run of no elements,
    of which products of sizes do not tell where a run ends.
    """
    if 0 in value.shape:
        return [(list(range(len(value.shape))), list(range(len(shape))))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(value.shape) or j < len(shape):
        if i < len(value.shape) and value.shape[i] == 1:
            groups.append(([i], []))
            i += 1
            continue
        if j < len(shape) and shape[j] == 1:
            groups.append(([], [j]))
            j += 1
            continue
        theirs: list[int] = []
        ours: list[int] = []
        left: sympy.Expr = sympy.S.One
        right: sympy.Expr = sympy.S.One
        while True:
            if left == right and (theirs or ours):
                break
            # Step on the side that has less, or on whichever still divides the other.
            if i < len(value.shape) and (j >= len(shape) or not theirs or _divides(left, right)):
                left = sympy.expand(left * value.shape[i])
                theirs.append(i)
                i += 1
            elif j < len(shape):
                right = sympy.expand(right * shape[j])
                ours.append(j)
                j += 1
            else:
                raise NotImplementedError(f"a view of shape {value.shape} as {shape}")
            if i == len(value.shape) and j == len(shape):
                break
        groups.append((theirs, ours))
    return groups


def _divides(small: sympy.Expr, large: sympy.Expr) -> bool:
    quotient = sympy.cancel(large / small)
    return bool(quotient != 1 and quotient.as_numer_denom()[1] == 1)


def _regroup(index: Index, ours: list[int], theirs: list[int], value: Value, shape: Shape) -> list[Entry]:
    """The entries of `theirs` at which the element with entries `index[ours]` is found."""
    if not theirs:  # dimensions of size 1 only
        return []
    flat: sympy.Expr = sympy.S.Zero
    for dim in ours:
        entry = index[dim]
        if isinstance(entry, ir.Node):
            return _regroup_nodes(index, ours, theirs, value, shape)
        flat = flat * shape[dim] + entry
    entries: list[Entry] = []
    rest = sympy.expand(flat)
    for dim in reversed(theirs):
        rest, entry = divide(rest, value.shape[dim], last=dim == theirs[0])
        entries.append(entry)
    return entries[::-1]


def divide(flat: sympy.Expr, size: sympy.Expr, *, last: bool) -> tuple[sympy.Expr, sympy.Expr]:
    """`flat` // `size` and `flat` % `size`, without a division where the terms separate."""
    if size == 1:
        return flat, sympy.S.Zero
    if last:
        return sympy.S.Zero, flat
    if size == 0:  # there is no element to be found
        return sympy.S.Zero, sympy.S.Zero
    high: sympy.Expr = sympy.S.Zero
    low: sympy.Expr = sympy.S.Zero
    for term in _terms(flat):
        quotient = sympy.cancel(term / size)
        if quotient.as_numer_denom()[1] == 1:
            high += quotient
        else:
            low += term
    if surely_within(low, size):
        return high, low
    turned = sympy.expand(-1 - low)  # of which the quotient is turned, too, and the remainder
    if surely_within(turned, size):
        return high - 1, size + low
    functions = compat.size_functions()
    return functions.FloorDiv(flat, size), functions.Mod(flat, size)


def _terms(flat: sympy.Expr) -> list[sympy.Expr]:
    """The summands of an expanded sum, those of an axis together: (C - 1) * n is divisible by C - 1."""
    terms, rest = [], flat
    for axis in sorted((symbol for symbol in flat.free_symbols if isinstance(symbol, ir.Axis)), key=str):
        coefficient = flat.coeff(axis, 1)
        if not any(isinstance(symbol, ir.Axis) for symbol in coefficient.free_symbols):
            terms.append(coefficient * axis)
            rest -= sympy.expand(coefficient * axis)
    return [*terms, *sympy.Add.make_args(rest)]


def _regroup_nodes(index: Index, ours: list[int], theirs: list[int], value: Value, shape: Shape) -> list[Entry]:
    """`_regroup` where an entry is computed: the arithmetic happens in the kernel."""
    flat: ir.Node | None = None
    for dim in ours:
        node = position(index[dim])
        flat = node if flat is None else ir.apply("add", ir.apply("mul", ir.index(shape[dim]), flat), node)
    assert flat is not None
    entries: list[Entry] = []
    for dim in reversed(theirs[1:]):
        flat, entry = _divide_node(flat, value.shape[dim])
        entries.append(entry)
    return [flat, *entries[::-1]]


def _divide_node(flat: ir.Node, size: sympy.Expr) -> tuple[ir.Node, ir.Node]:
    """`flat` // `size` and `flat` % `size`.

    What `_regroup_nodes` has flattened (no one else multiplies with the size in front) is taken apart again: where an
    entry lies outside its dimension, what is read there does not count.
    """
    divisor = ir.index(size)
    if flat.op == "add" and flat.args[0].op == "mul" and flat.args[0].args[0] is divisor:
        return flat.args[0].args[1], flat.args[1]
    return ir.apply("floor_divide", flat, divisor), ir.apply("remainder", flat, divisor)


@lowers("unsqueeze.default")
def unsqueeze(context: Context, value: Value, dim: int) -> Value:
    """A new dimension of size 1."""
    dim %= len(value.shape) + 1
    factors = [*value.factors[:dim], (sympy.S.One,), *value.factors[dim:]]
    return bounded(Value(context.shape, value.dtype, lambda i: value.at((*i[:dim], *i[dim + 1 :])), factors), dim)


@lowers("squeeze.default", "squeeze.dim", "squeeze.dims")
def squeeze(context: Context, value: Value, dims: int | Sequence[int] | None = None) -> Value:
    """Without (the given) dimensions of size 1."""
    rank = len(value.shape)
    chosen = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    dropped = {dim % rank for dim in chosen if rank and value.shape[dim % rank] == 1}
    if rank - len(dropped) != len(context.shape):
        raise NotImplementedError("a dimension whose size is 1 only for these inputs")

    def at(index: Index) -> ir.Node:
        rest = iter(index)
        return value.at([sympy.S.Zero if dim in dropped else next(rest) for dim in range(rank)])

    return Value(context.shape, value.dtype, at, [f for d, f in enumerate(value.factors) if d not in dropped])


@lowers("permute.default")
def permute(context: Context, value: Value, dims: Sequence[int]) -> Value:
    """Dimensions in another order."""
    order = [dim % len(value.shape) for dim in dims]

    def at(index: Index) -> ir.Node:
        return value.at([index[order.index(dim)] for dim in range(len(order))])

    return Value(context.shape, value.dtype, at, [value.factors[dim] for dim in order])


@lowers("select.int")
def select(context: Context, value: Value, dim: int, position: Any) -> Value:
    """One slice of a dimension, which goes away."""
    dim %= len(value.shape)
    where = context.place_of(position)
    factors = [*value.factors[:dim], *value.factors[dim + 1 :]]
    return Value(context.shape, value.dtype, lambda i: value.at((*i[:dim], where, *i[dim:])), factors)


@lowers("slice.Tensor")
def slice_(context: Context, value: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    """Part of a dimension."""
    dim %= len(value.shape)
    if context.shape[dim] == value.shape[dim]:
        return value
    first = context.place_of(start if start is not None else 0)
    stride = context.place_of(step)

    def at(index: Index) -> ir.Node:
        return value.at((*index[:dim], plus(times(index[dim], stride), first), *index[dim + 1 :]))

    factors = list(value.factors)
    factors[dim] = (context.shape[dim],)
    return bounded(Value(context.shape, value.dtype, at, factors), dim)
