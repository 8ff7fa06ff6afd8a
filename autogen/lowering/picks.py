"""Elements that a computed index picks from what is reduced: `counts[labels]`, as class-balanced losses have it.

A value is computed where it is used, so each pick would reduce anew: a few sums of all rows, for every row. Then the
sums are stored first, and picked from memory.
"""

from __future__ import annotations

import sympy

from autogen import ir
from autogen.lowering.values import Index, Value, free_axes, fresh_index, numel


def reduces_for_each(value: Value, index: Index) -> bool:
    """Whether an index would have a value reduce, for each of its places, over as many elements as there are places."""
    computed = [dim for dim, entry in enumerate(index) if isinstance(entry, ir.Node) and entry.axes]
    if not computed:
        return False
    fresh = fresh_index(value)
    picked = free_axes([fresh[dim] for dim in computed])
    places = sympy.Mul(*(axis.size for axis in free_axes(index)))
    repeated, _ = sympy.fraction(sympy.cancel(places / numel(value.shape)))
    if repeated == 1:
        return False
    reduced = [node for node in ir.topological([value.at(fresh)]) if node.op == "reduce" and node.axes & picked]
    sizes = sympy.Mul(*(axis.size for node in reduced for axis in node.args[0].axes - node.axes))
    return bool(sizes.free_symbols & repeated.free_symbols) or (bool(reduced) and repeated.is_number)
