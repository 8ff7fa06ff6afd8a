"""The registry of lowerings: a function for each ATen op, found by the op's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, TypeVar

import sympy
import torch
from sympy.logic.boolalg import Boolean, BooleanAtom

from autogen import compat, ir
from autogen.errors import ValueBranchError
from autogen.ir.provenance import Provenance
from autogen.ir.sizes import evaluator_of
from autogen.lowering.values import Chosen, Read, Shape, Value

Lowering = Callable[..., Any]
_Function = TypeVar("_Function", bound=Lowering)

LOWERINGS: dict[str, Lowering] = {}

_ToFloat = compat.size_functions().ToFloat


@dataclass
class Context:
    """What a lowering may want to know of the node it lowers: its result's `shape` and `dtype` (of every part, for
    an op with several results), `size_of` to turn a torch size into an expression, `provenance` for names, and
    whether the op is `of_formula`: a part of torch's formula for another. Without `has_scans`, long running sums are
    torch's.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...]
    size_of: Callable[[Any], sympy.Expr]
    provenance: Provenance = field(repr=False)
    of_formula: bool = False
    has_scans: bool = True

    @property
    def shape(self) -> Shape:
        """The shape of the (first) result."""
        return self.shapes[0]

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of the (first) result."""
        return self.dtypes[0]

    @property
    def compute(self) -> torch.dtype:
        """The dtype in which the (first) result is computed."""
        return ir.compute_dtype(self.dtype)

    def value(self, argument: Any, inside: torch.dtype | None = None) -> Value:
        """An argument of an op as a tensor: a number becomes a 0-dim one.

        The op computes `inside` a dtype, by default that of the (first) result.
        """
        if isinstance(argument, Value):
            return argument
        if isinstance(argument, bool):
            return Value((), torch.bool, lambda _: ir.const(argument, torch.bool))
        if isinstance(argument, (int, float)):
            # The number is exact until an op casts it to the dtype that it computes in, of which integers have the last
            # 64 bits, and floats the size.
            is_large = (inside or self.compute).is_floating_point and argument > torch.iinfo(torch.int64).max
            dtype = torch.float64 if isinstance(argument, float) or is_large else torch.int64
            return Value((), dtype, lambda _: ir.const(argument, dtype))
        expression = self.size_of(argument)
        if expression.is_integer:
            return Value((), torch.int64, lambda _: number(expression, torch.int64))
        inside = self.compute if self.compute.is_floating_point else torch.float64
        return Value((), torch.float64, lambda _: number(expression, inside))

    def rounded(self, argument: Any, dtype: torch.dtype) -> Value:
        """An argument of an op that takes it in a dtype: if that is half precision, what is of another is rounded."""
        value = self.value(argument, ir.compute_dtype(dtype))
        if dtype not in ir.ROUNDINGS or value.dtype in (dtype, *ir.HELD_BY_HALVES):
            return value
        return Value(value.shape, dtype, lambda index: ir.rounded(value.at(index), dtype), value.factors)

    def place_of(self, argument: Any) -> sympy.Expr:
        """A torch size that places in tensors are computed from."""
        place = self.size_of(argument)
        if place.has(Read):
            raise ValueBranchError("an index that depends on values")
        return place

    def name(self, node: ir.Node, name: str) -> ir.Node:
        """Call a node `name` in the kernel; returns the node."""
        return self.provenance.name(node, name)


def lowers(*names: str) -> Callable[[_Function], _Function]:
    """Register the lowering of the ATen overloads `names`, such as "sum.dim_IntList".

    The function is called as `f(context, *args, **kwargs)` with the op's arguments, tensors as `Value`s, and
    returns a `Value`, or a tuple of them for an op with several results.
    """

    def register(function: _Function) -> _Function:
        for name in names:
            LOWERINGS[name] = function
        return function

    return register


def number(expression: sympy.Expr, dtype: torch.dtype) -> ir.Node:
    """The value of a size expression, such as `0.1 / ToFloat(C)`, in a dtype.

    Sizes are integers in the kernel, too. All else that is known when it is launched is one number, computed there: as
    Python does it, in double precision. What is not known then is put together in the kernel.
    """
    if isinstance(expression, Boolean) and not expression.is_Symbol:
        return ir.cast(_condition(expression), dtype)
    if expression.is_number:
        return ir.const(float(expression) if not expression.is_integer else int(expression), dtype)
    if isinstance(expression, Chosen):
        return expression.count(dtype)
    if isinstance(expression, Read):
        return ir.cast(expression.value.at((sympy.S.Zero,) * len(expression.value.shape)), dtype)
    args = expression.args
    if not expression.has(Chosen, Read):
        size = args[0] if isinstance(expression, _ToFloat) else expression
        if _is_of_sizes(size):
            return ir.cast(ir.index(size), dtype)
        # Triton would look whether an integer is 1, though floats decide it: another call may have another.
        expression = _ToFloat(expression) if expression.is_integer else expression
        evaluator_of(expression)  # refuses what Python's text has no function for
        return ir.cast(ir.scalar(expression, torch.float64), dtype)
    if isinstance(expression, _ToFloat):
        return number(args[0], dtype)
    if expression.is_Add or expression.is_Mul:  # in any order: what is known is one number
        known = [arg for arg in args if not arg.has(Chosen, Read)]
        args = [expression.func(*known)] * bool(known) + [arg for arg in args if arg not in known]
    name = type(expression).__name__
    if name not in _ARITHMETIC:
        raise NotImplementedError(f"the size expression {expression}")
    # As Python computes it: integers are exact, floats in double precision.
    inside = torch.int64 if expression.is_integer and name in ("Add", "Mul") else torch.float64
    return ir.cast(_combined(_ARITHMETIC[name], [number(arg, inside) for arg in args]), dtype)


def _condition(expression: Boolean) -> ir.Node:
    """What is compared in Python, of numbers that kernels alone know: of others, the trace has the outcome."""
    if isinstance(expression, BooleanAtom):
        return ir.const(bool(expression), torch.bool)
    name = type(expression).__name__
    if name in _COMPARISONS:
        return _combined(_COMPARISONS[name], [number(arg, torch.float64) for arg in expression.args])
    if name not in _CONNECTIVES:
        raise NotImplementedError(f"the condition {expression}")
    return _combined(_CONNECTIVES[name], [number(arg, torch.bool) for arg in expression.args])


def _combined(op: str, args: list[ir.Node]) -> ir.Node:
    """`op` of one or two arguments, or of the first two, and of what that gives and the next."""
    return reduce(partial(ir.apply, op), args) if len(args) > 1 else ir.apply(op, *args)


# By the names of sympy's and torch's classes.
_ARITHMETIC = {
    "Add": "add",
    "Mul": "mul",
    "FloatAdd": "add",
    "FloatMul": "mul",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "FloatPow": "pow",
    "Pow": "pow",
}
_COMPARISONS = {
    "Equality": "eq",
    "Unequality": "ne",
    "GreaterThan": "ge",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "StrictLessThan": "lt",
}
_CONNECTIVES = {"And": "logical_and", "Not": "logical_not", "Or": "logical_or"}


def _is_of_sizes(expression: sympy.Expr) -> bool:
    """Whether an expression is an integer that only integers decide."""
    is_of_integers = all(symbol.is_integer for symbol in expression.free_symbols)
    return bool(expression.is_integer and is_of_integers and not expression.has(sympy.Float, _ToFloat))
