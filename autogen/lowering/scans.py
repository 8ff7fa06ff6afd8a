"""Lower cumulative sums, products and log-sum-exps along a dimension of any length.

Read along an axis, from the first place on or back from the last, each is a scan; at one place of each row it is a
reduction.
Read in any other order, it is stored first (`follows`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce

import sympy
import torch

from autogen import ir
from autogen.lowering.entries import Condition, checked, choose, is_nonnegative, is_within, plain, position
from autogen.lowering.joining import replaced
from autogen.lowering.picks import is_often
from autogen.lowering.registry import Context, lowers
from autogen.lowering.unrolling import COMBINED, is_few, running
from autogen.lowering.values import Chosen, Entry, Index, Read, Value, elementwise, free_axes, fresh_axis

_aten = torch.ops.aten
TARGETS = frozenset({_aten.cumsum.default, _aten.cumprod.default, _aten.logcumsumexp.default})


@lowers("cumsum.default")
def cumsum(context: Context, value: Value, dim: int, dtype: object = None) -> Value:
    """The running sum along a dimension."""
    return _scanned(context, "sum", value, dim)


@lowers("cumprod.default")
def cumprod(context: Context, value: Value, dim: int, dtype: object = None) -> Value:
    """The running product along a dimension."""
    return _scanned(context, "prod", value, dim)


@lowers("logcumsumexp.default")
def logcumsumexp(context: Context, value: Value, dim: int) -> Value:
    """The logarithm of the running sum of exponentials along a dimension."""
    return _scanned(context, "logaddexp", value, dim)


def _scanned(context: Context, kind: str, value: Value, dim: int) -> Value:
    if 0 in context.shape or not context.shape or context.shape[dim] == 1:
        return elementwise(context.shape, context.dtype, lambda x: x, value)
    dim %= len(value.shape)
    if kind != "logaddexp" and is_few(value.shape[dim]):  # term by term
        return running(context, COMBINED[kind], value, dim)
    if not context.has_scans or value.shape[dim].has(Chosen, Read):
        raise NotImplementedError("a scan of so many elements")
    between = _difference(value, dim) if kind == "sum" else None
    if between is not None:
        return elementwise(context.shape, context.dtype, lambda x: x, between)
    return _Scan(kind, value, context.dtype, dim)


def _difference(value: Value, dim: int) -> Value | None:
    """The running sum of integers that are differences of neighbours, as the lengths that offsets tell: of the last and
    the first.
    """
    if value.dtype not in (torch.int32, torch.int64) or len(value.shape) != 1:
        return None
    axis = ir.Axis("neighbour", value.shape[dim])
    node = value.at((axis,))
    if node.op != "sub" or any(arg.op != "load" or arg.args for arg in node.args):
        return None
    (buffer, later), (other, before) = (arg.attrs for arg in node.args)
    moved = tuple(entry.subs(axis, axis + 1) for entry in before)
    if buffer is not other or any(sympy.expand(a - b) != 0 for a, b in zip(later, moved, strict=True)):
        return None
    first = ir.load(buffer, [entry.subs(axis, 0) for entry in before])

    def at(index: Index) -> ir.Node:
        last = value.at(index).args[0]
        return ir.apply("sub", last, first)

    return Value(value.shape, value.dtype, at, value.factors)


def follows(value: Value, index: Index) -> bool:
    """Whether a value can be computed at the places of an index, as all but scans can at any."""
    return not isinstance(value, _Scan) or value.walk(index) is not None


@dataclass(frozen=True)
class _Walk:
    """The places of an index along a scan: `entry`, along an axis or at one place of a row, after `before` others."""

    entry: Entry
    axis: ir.Axis | None = None
    before: int = 0
    is_back: bool = False


class _Scan(Value):
    """The scan of a value along one of its dimensions."""

    def __init__(self, kind: str, value: Value, dtype: torch.dtype, dim: int) -> None:
        factors = list(value.factors)
        factors[dim] = (value.shape[dim],)
        super().__init__(value.shape, dtype, self._at_place, factors)
        self._kind, self._value, self._dim = kind, value, dim
        compute = ir.compute_dtype(dtype)
        self._nothing = ir.const(ir.identity(kind, compute), compute)

    def walk(self, index: Index) -> _Walk | None:
        """The order in which an index has the scan run; None if it cannot run so."""
        entry = plain(index[self._dim])
        axes = free_axes([entry])
        others = free_axes([each for dim, each in enumerate(index) if dim != self._dim])
        if axes <= others:
            is_once = self._kind in ir.REDUCTIONS and not is_often(index, replaced(self.shape, self._dim, sympy.S.One))
            return _Walk(entry) if is_once else None
        if isinstance(entry, ir.Node) or len(axes) > 1:
            return None
        (axis,) = axes
        step, start = entry.coeff(axis, 1), entry.coeff(axis, 0)
        if sympy.expand(entry - start - step * axis) != 0:
            return None
        if step == 1 and is_nonnegative(-start):
            return _Walk(entry, axis)
        if step == 1 and is_few(start):
            return _Walk(entry, axis, before=int(start))
        if step == -1 and is_nonnegative(axis.size - 1 - start):  # beyond the last place of the axis is nothing
            return _Walk(entry, axis, is_back=True)
        return None

    def _at_place(self, index: Index) -> ir.Node:
        walk = self.walk(index)
        if walk is None:
            raise NotImplementedError(f"a scan at {index[self._dim]}")
        if walk.axis is not None:
            along = ir.scan(self._kind, walk.axis, self._term(index, walk.entry), reverse=walk.is_back)
            first = (self._term(index, sympy.Integer(place)) for place in range(walk.before))
            return reduce(partial(ir.apply, COMBINED[self._kind]), first, along)
        size = self.shape[self._dim]
        axis = fresh_axis(size, free_axes(index))
        here: Condition = True
        if walk.entry != size - 1:
            here = ir.apply("le", ir.index(axis), position(walk.entry))
        return ir.reduce(self._kind, [axis], self._where(here, lambda: self._term(index, axis)))

    def _term(self, index: Index, entry: Entry) -> ir.Node:
        """What is combined at a place: nothing outside of the tensor."""
        inside = is_within(entry, self.shape[self._dim])
        return self._where(inside, lambda: self._value.at(replaced(index, self._dim, checked(entry, inside))))

    def _where(self, condition: Condition, term: Callable[[], ir.Node]) -> ir.Node:
        return choose(condition, term, lambda: self._nothing, self._nothing.dtype)
