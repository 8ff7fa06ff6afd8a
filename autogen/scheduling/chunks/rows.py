"""Find which row of a matrix a value belongs to, as an expression over axes, and the axes of a given row."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch

from autogen import compat, ir
from autogen.ir import Axis, Buffer, Node
from autogen.lowering.entries import surely_within


class Digit(NamedTuple):
    """What an axis adds to a row: `stride * (axis + offset)`, where `axis + offset` is below `extent`."""

    axis: Axis
    stride: sympy.Expr
    offset: sympy.Expr
    extent: sympy.Expr


@dataclass(frozen=True)
class Rows:
    """`row`, one of `count`, as digits after the `first`: in a matrix of the tokens of sequences, `T * b + t + 1`."""

    row: sympy.Expr
    count: sympy.Expr
    digits: tuple[Digit, ...]
    first: sympy.Expr = sympy.S.Zero

    @property
    def axes(self) -> frozenset[Axis]:
        """The axes of the row."""
        return frozenset(digit.axis for digit in self.digits)

    @property
    def is_all(self) -> bool:
        """Whether every row of the matrix is one."""
        return self.first == 0 and all(each.offset == 0 and each.axis.size == each.extent for each in self.digits)

    def places(self, row: Axis) -> dict[Axis, sympy.Expr]:
        """The axes, at a row of the matrix."""
        functions, found, since = compat.size_functions(), dict[Axis, sympy.Expr](), row - self.first
        for position, digit in enumerate(self.digits):
            place = since if digit.stride == 1 else functions.FloorDiv(since, digit.stride)
            place = functions.Mod(place, digit.extent) if position else place
            found[digit.axis] = place - digit.offset
        return found

    def is_one(self, row: Axis) -> Node | None:
        """Whether a row of the matrix is one; None if every one is."""
        zero, places = ir.const(0, torch.int64), self.places(row)
        found = ir.apply("ge", ir.index(row - self.first), zero) if self.first != 0 else None
        for digit in self.digits:
            if digit.offset == 0 and digit.axis.size == digit.extent:
                continue
            place = ir.index(places[digit.axis])
            inside = ir.is_inside(place, digit.axis.size)
            found = inside if found is None else ir.apply("logical_and", found, inside)
        return found

    def at(self, node: Node, row: Axis) -> Node:
        """`node` at a row of the matrix; 0 at others than its own."""
        places = self.places(row)
        done: dict[Node, Node] = {}
        for below in ir.topological([node]):
            args = [done[arg] for arg in below.args]
            if below.op == "index":
                done[below] = ir.index(below.attrs[0].xreplace(places))
            elif below.op == "load":
                given = iter(args)
                entries = [next(given) if ir.is_hole(e) else self._entry(e, places) for e in below.attrs[1]]
                done[below] = ir.load(below.attrs[0], entries)
            else:
                done[below] = ir.rebuild(below, args)
        condition = self.is_one(row)
        return done[node] if condition is None else ir.apply("where", condition, done[node], _zero(node.dtype))

    def _entry(self, entry: sympy.Expr, places: Mapping[Axis, sympy.Expr]) -> sympy.Expr | Node:
        """An entry of a load at a row; one that is to be checked where the row may be another than its own."""
        new = entry.xreplace(places)
        return new if new == entry or self.is_all else ir.index(new)


def _zero(dtype: torch.dtype) -> Node:
    return ir.const(0, dtype)


def rows_of(row: sympy.Expr, count: sympy.Expr) -> Rows | None:
    """A row as digits; None if it is no such sum, as that of every second row."""
    row = sympy.expand(row)
    axes: list[Any] = sorted((symbol for symbol in row.free_symbols if isinstance(symbol, Axis)), key=str)
    strides = {axis: row.coeff(axis, 1) for axis in axes}
    rest = sympy.expand(row - sum(axis * stride for axis, stride in strides.items()))
    if not axes or any(symbol in axes for each in (*strides.values(), rest) for symbol in each.free_symbols):
        return None
    order = sorted(axes, key=functools.cmp_to_key(lambda a, b: _larger_first(strides[a], strides[b])))
    digits: list[Digit] = []
    above = count
    for axis in order:
        extent = quotient(above, strides[axis])
        if extent is None or (digits and extent == 1):
            return None
        offset, others = _split(rest, strides[axis])
        if digits and not surely_within(offset + axis, extent):  # else it would be one of the digit before
            offset, others = sympy.S.Zero, rest
        digits.append(Digit(axis, strides[axis], offset, extent))
        above, rest = strides[axis], others
    return Rows(row, count, tuple(digits), rest) if above == 1 else None


def quotient(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """`a / b`, if it is a polynomial over sizes."""
    found = sympy.cancel(a / b)
    return found if found.as_numer_denom()[1] == 1 else None


def _larger_first(a: sympy.Expr, b: sympy.Expr) -> int:
    if quotient(a, b) is not None:
        return -1
    return 1 if quotient(b, a) is not None else 0


def _split(constant: sympy.Expr, stride: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """How often a stride is in a constant, and the rest."""
    times = rest = sympy.S.Zero
    for term in sympy.Add.make_args(constant):
        found = quotient(term, stride)
        times, rest = (times + found, rest) if found is not None else (times, rest + term)
    return times, rest


def row_of(node: Node, columns: sympy.Expr) -> sympy.Expr | None:
    """The row that a load of a matrix reads: of one of more dimensions, all but the last are rows. None if it depends
    on values.
    """
    buffer, entries = node.attrs
    args = iter(node.args)
    known = [expression_of(next(args)) if ir.is_hole(entry) else entry for entry in entries]
    return row_at(buffer, known[:-1], columns)


def row_at(buffer: Buffer, entries: Sequence[sympy.Expr | None], columns: sympy.Expr) -> sympy.Expr | None:
    """The row at some entries for the dimensions before the last."""
    row = sympy.S.Zero
    for entry, stride in zip(entries, buffer.strides, strict=False):
        step = quotient(stride, columns)
        if entry is None or step is None:
            return None
        row += entry * step
    return sympy.expand(row)


def expression_of(node: Node) -> sympy.Expr | None:
    """The expression that integer arithmetic on axes and sizes spells out, if it is that."""
    match node.op:
        case "index":
            return node.attrs[0]
        case "const":
            return sympy.Integer(node.attrs[0])
        case "add" | "sub" | "mul":
            a, b = map(expression_of, node.args)
            if a is None or b is None:
                return None
            return a + b if node.op == "add" else a - b if node.op == "sub" else sympy.expand(a * b)
    return None
