"""Store a reduction before a computed index reads from it, as in `counts[labels]` of class-balanced losses.

A value is computed where it is used, so each pick would reduce anew: a few sums of all rows, for every row. Then the
sums are stored first, and picked from memory.
"""

from __future__ import annotations

import functools

import sympy

from autogen import ir
from autogen.lowering.values import Index, Shape, Value, free_axes, fresh_index, numel

_MANY = 16  # times that fewer launches are not worth


def _times(index: Index, shape: Shape) -> sympy.Expr:
    """How many places an index has for each element of a shape."""
    return _ratio(sympy.Mul(*(axis.size for axis in free_axes(index))), numel(shape))


@functools.lru_cache(maxsize=1024)
def _ratio(places: sympy.Expr, elements: sympy.Expr) -> sympy.Expr:
    return sympy.cancel(places / elements)


def is_often(index: Index, shape: Shape) -> bool:
    """Whether there are, or may be, many places in an index for each element of a shape."""
    times = _times(index, shape)
    return not times.is_number or bool(times >= _MANY)


def reduces_for_each(value: Value, index: Index) -> bool:
    """Whether an index would have a value reduce, for each of its places, over as many elements as there are places.

    That is so if a size of what is reduced is also one by which there are more places than values.
    """
    computed = [dim for dim, entry in enumerate(index) if isinstance(entry, ir.Node) and entry.axes]
    if not computed or 0 in value.shape:
        return False
    times = _times(index, value.shape)
    if times.is_number and times < _MANY:
        return False
    fresh = fresh_index(value)
    node = value.at(fresh)
    if not node.reduces:
        return False
    picked = free_axes([fresh[dim] for dim in computed])
    reduced = [below for below in ir.topological([node]) if below.op == "reduce" and below.axes & picked]
    if times.is_number:
        return bool(reduced)
    sizes = sympy.Mul(*(axis.size for node in reduced for axis in node.args[0].axes - node.axes))
    return bool(sizes.free_symbols & sympy.fraction(times)[0].free_symbols)
