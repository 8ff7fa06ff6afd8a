"""Unroll reductions and scans along a few elements.

Along a dimension that tensors were joined to (the coordinates of a box, the quantiles of a forecast) each term is
another formula. A sum over it in a loop would compute all of them at every step; term by term, each is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import sympy

from autogen import ir
from autogen.lowering import values
from autogen.lowering.registry import Context
from autogen.lowering.values import Index, Value, elementwise, fresh_index

# A dimension with more elements is not unrolled.
MOST = 8

COMBINED = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "logaddexp": "logaddexp"}


def reduction(kind: str, value: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """`value` reduced over `dims`, term by term over those that tensors were joined to, and a product over few."""
    dims = sorted(dim % len(value.shape) for dim in dims)
    joined = [dim for dim in dims if is_joined(value, dim) or (kind == "prod" and is_few(value.shape[dim]))]
    for dim in joined:
        value = _folded(COMBINED[kind], value, dim)
    return values.reduction(kind, value, dims, keepdim)


def is_few(size: sympy.Expr) -> bool:
    """Whether a size is known, and of no more elements than are written out."""
    return bool(size.is_Integer and 1 <= size <= MOST)


def is_joined(value: Value, dim: int) -> bool:
    """Whether an element depends on its place in a short dimension by a choice."""
    if not is_few(value.shape[dim]):
        return False
    index = fresh_index(value)
    places = index[dim].free_symbols
    return any(
        node.op == "lt" and node.args[0].op == "index" and node.args[0].attrs[0].free_symbols & places
        for node in ir.topological([value.at(index)])
    )


def _terms(value: Value, dim: int, index: Index) -> list[ir.Node]:
    """The elements along a dimension of constant size."""
    return [value.at((*index[:dim], sympy.Integer(k), *index[dim + 1 :])) for k in range(int(value.shape[dim]))]


def _folded(op: str, value: Value, dim: int) -> Value:
    """`value` with a short dimension combined into one element by a scalar op."""
    shape, factors = list(value.shape), list(value.factors)
    shape[dim], factors[dim] = sympy.S.One, (sympy.S.One,)

    def at(index: Index) -> ir.Node:
        return reduce(lambda a, b: ir.apply(op, a, b), _terms(value, dim, index))

    return Value(shape, value.dtype, at, factors)


def running(context: Context, op: str, value: Value, dim: int) -> Value:
    """The scan along a dimension of a few elements, `op` of two at a time."""
    from autogen.lowering.joining import joined

    wide = elementwise(value.shape, context.dtype, lambda x: x, value)

    def first(count: int) -> Callable[[Index], ir.Node]:
        return lambda index: reduce(lambda a, b: ir.apply(op, a, b), _terms(wide, dim, index)[:count])

    one = [sympy.S.One if d == dim else n for d, n in enumerate(value.shape)]
    parts = [Value(one, context.dtype, first(k + 1)) for k in range(int(value.shape[dim]))]
    return joined(context, parts, dim)
