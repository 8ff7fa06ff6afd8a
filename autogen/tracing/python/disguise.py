"""Symbols in the place of numbers: what Python says of them while a loss is traced, where the loss asks."""

from __future__ import annotations

import builtins
import contextlib
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.symbol import SymT, symbol_is_type

from autogen.arithmetic import FloatAdd, FloatFloorDiv, FloatMod, FloatMul
from autogen.errors import ValueBranchError
from autogen.tracing.python.conversions import OF_MATH
from autogen.tracing.python.ufuncs import OF_NUMPY
from autogen.tracing.source import current_statement, is_asked_by_a_loss
from autogen.tracing.symbols import NUMBERS, PYTHONS, number_of

# What Python asks of numbers that is true or false.
_ASKED = {
    torch.SymInt: ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    torch.SymFloat: ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "is_integer"),
}

_MISSING = object()
_isinstance, _len = isinstance, len
_shown: dict[type, Any] = {kind: kind.__repr__ for kind in PYTHONS}
_answers: dict[tuple[type, str], Any] = {
    (kind, name): getattr(kind, name) for kind, all_ in _ASKED.items() for name in all_
}
# By the methods of nodes, how each operation on floats is written, where torch writes another, and what computes it.
_WRITTEN: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (FloatAdd, operator.add),
    "sub": (lambda left, right: FloatAdd(left, -right), operator.sub),
    "mul": (FloatMul, operator.mul),
    "mod": (FloatMod, operator.mod),
    "int_floordiv": (FloatFloorDiv, operator.floordiv),
}
_DIVISIONS = ("mod", "int_floordiv", "int_truediv", "float_truediv")
_operations: dict[str, Any] = {name: getattr(SymNode, name) for name in dict.fromkeys((*_WRITTEN, *_DIVISIONS))}
_divisions: dict[tuple[type, str], Any] = {
    (kind, name): getattr(kind, name) for kind in NUMBERS for name in ("__floordiv__", "__rfloordiv__")
}
_hash: Any = torch.SymInt.__hash__
_power: Any = torch.SymFloat.__pow__
_infer_size = getattr(F, "_infer_size", None)
_functional: Any = F  # which does not export all that it has
_has_torch_function = _functional.has_torch_function_variadic


def _is_instance(value: Any, kinds: Any) -> bool:
    if _isinstance(value, kinds):
        return True
    number = PYTHONS.get(type(value))
    return number is not None and _isinstance(number(), kinds) and is_asked_by_a_loss()


def _length(value: Any) -> Any:
    is_symbolic = _isinstance(value, FakeTensor) and value.dim() > 0
    return value.shape[0] if is_symbolic else _len(value)


def _hears_of(*tensors: Any) -> bool:
    """Whether a mode hears of a call: not of `l1_loss`, which tells it nothing of its weight (torch 2.11 to 2.13)."""
    return sys._getframe(1).f_code is not F.l1_loss.__code__ and bool(_has_torch_function(*tensors))


def _showing(kind: type) -> Callable[[Any], str]:
    def show(symbol: Any) -> str:
        shown: str = repr(number_of(symbol)) if is_asked_by_a_loss() else _shown[kind](symbol)
        return shown

    return show


def _computing(name: str, refuse_zero: Callable[[Any], None]) -> Callable[[Any, Any], Any]:
    """What computes `name` of two nodes: with floats, as it is written."""
    plain, written = _operations[name], _WRITTEN.get(name)

    def compute(left: Any, right: Any) -> Any:
        if name in _DIVISIONS:
            refuse_zero(right.expr)
        if written is None or float not in (left.pytype, right.pytype):
            return plain(left, right)
        expression, python = written
        is_known = left.hint is not None and right.hint is not None
        hint = python(left.hint, right.hint) if is_known else None
        return SymNode(expression(left.expr, right.expr), left.shape_env, float, hint)

    return compute


def _dividing(name: str, plain: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`//` of numbers, one of them a symbol; with floats, torch's is the floor of a rounded quotient."""

    def divide(symbol: Any, other: Any) -> Any:
        if not _isinstance(other, (int, float, *NUMBERS)):
            return NotImplemented
        if not any(_isinstance(each, (float, torch.SymFloat)) for each in (symbol, other)):
            return plain(symbol, other)
        node, number = torch.sym_float(symbol).node, torch.sym_float(other)
        beside = number.node if _isinstance(number, torch.SymFloat) else node.wrap_float(number)
        left, right = (beside, node) if name == "__rfloordiv__" else (node, beside)
        return torch.SymFloat(left.int_floordiv(right))

    return divide


def _raising(refuse_zero: Callable[[Any], None]) -> Callable[[Any, Any], Any]:
    """`**` of floats; whether it would be complex, which torch asks always, an integer does not make it."""

    def power(base: Any, exponent: Any) -> Any:
        if not _isinstance(exponent, (int, float)) or exponent % 1 != 0:
            return _power(base, exponent)
        if exponent < 0:
            refuse_zero(base.node.expr)
        return base.__float_pow__(float(exponent))

    return power


def _is_unknown(number: Any) -> bool:
    """Whether a number depends on a float that the loss has read, and that is not known ahead."""
    return type(number) is torch.SymFloat and any(
        symbol_is_type(symbol, SymT.UNBACKED_FLOAT) for symbol in free_unbacked_symbols(number)
    )


def _settling(answer: Callable[..., Any]) -> Callable[..., Any]:
    def settle(symbol: Any, *others: Any) -> Any:
        if _is_unknown(symbol) or any(map(_is_unknown, others)):  # it may be nan, of which sympy knows nothing
            raise ValueBranchError("a comparison of a number", where=current_statement())
        found = answer(symbol, *others)
        is_known = type(found) is torch.SymBool and found.node.has_hint()
        return bool(found) if is_known and is_asked_by_a_loss() else found

    return settle


def _hashed(symbol: Any) -> Any:
    """The hash of a size, which is fixed then: the loss has it as a key. Some count on the error that torch raises."""
    asking = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
    return _hash(symbol) if asking in ("torch", "sympy", "einops") else hash(int(symbol))


_OF_SYMBOLS: dict[str, Callable[..., Any]] = {
    **OF_NUMPY,
    "__divmod__": lambda left, right: (left // right, left % right),
    "__rdivmod__": lambda right, left: (left // right, left % right),
    "__bool__": lambda symbol: bool(symbol != 0),
}


@contextlib.contextmanager
def swapped(values: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Meanwhile, classes and modules have other attributes."""
    former = {(owner, name): vars(owner).get(name, _MISSING) for owner, name in values}
    for (owner, name), value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in former.items():
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextlib.contextmanager
def disguised(refuse_zero: Callable[[Any], None], others: dict[tuple[Any, str], Any]) -> Iterator[None]:
    """Have Python take symbols for the numbers that they stand for.

    `len(tensor)` is the symbol that `tensor.shape[0]` is, which Python's own would fix, as it gives an int; so would
    the function by which `binary_cross_entropy` broadcasts its weight, before torch 2.12. A loss that asks whether a
    symbol is an int or a float hears what it would hear of a number, and where it makes a text of one, that is fixed.
    Whether one is greater than another is settled where it is asked, as a bool can be more than a symbol: `is True`, a
    place in a list, 1 more than False. What depends on integers and sizes that are not known stays a symbol; of floats,
    which may be nan, it is an error. What is computed with floats stays as it is written (`autogen.arithmetic`);
    `refuse_zero` hears of divisors, as expressions. Where `others` say so, there is something else, too.
    """
    values: dict[tuple[Any, str], Any] = {
        (_functional, "has_torch_function_variadic"): _hears_of,
        (builtins, "len"): _length,
        (builtins, "isinstance"): _is_instance,
        (torch.SymFloat, "__pow__"): _raising(refuse_zero),
        (torch.SymInt, "__hash__"): _hashed,
    }
    values |= {(math, name): function for name, function in OF_MATH.items()}
    values |= {(kind, "__repr__"): _showing(kind) for kind in PYTHONS}
    values |= {(kind, name): method for kind in _ASKED for name, method in _OF_SYMBOLS.items()}
    values |= {(kind, name): _settling(answer) for (kind, name), answer in _answers.items()}
    values |= {(kind, name): _dividing(name, division) for (kind, name), division in _divisions.items()}
    values |= {(SymNode, name): _computing(name, refuse_zero) for name in _operations}
    if _infer_size is not None:
        values[_functional, "_infer_size"] = torch.broadcast_shapes
    with swapped(values | others):
        yield


@contextlib.contextmanager
def undisguised() -> Iterator[None]:
    """While torch alone asks, which knows symbols, and asks often. Comparisons stay: to replace these takes longer."""
    if builtins.isinstance is not _is_instance:
        yield
        return
    builtins.len, builtins.isinstance = _len, _isinstance
    try:
        yield
    finally:
        builtins.len, builtins.isinstance = _length, _is_instance
