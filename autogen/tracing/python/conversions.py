"""Numbers that a loss makes of others by Python's functions: `float(n)`, `int(mask.sum())`, `math.log(n)`.

Python's own want a real number: they would fix the symbol that stands for it, or ask a tensor for what nobody knows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from autogen.arithmetic import MATH_FUNCTIONS, function_of
from autogen.calls.conversions import SAYING
from autogen.errors import ValueBranchError
from autogen.tracing.source import current_statement, is_asked_by_a_loss
from autogen.tracing.symbols import NUMBERS

_QUESTIONS = ("isnan", "isinf", "isfinite")

_functions: dict[str, Callable[..., Any]] = {
    name: getattr(math, name) for name in (*MATH_FUNCTIONS, "pow", *_QUESTIONS)
}


class _Converter(type):
    """Of what stands for a class: a call of it converts, and who asks hears of that class, as other threads may."""

    python: type

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.python)

    def __subclasscheck__(cls, other: Any) -> bool:
        return issubclass(other, cls.python)

    @property
    def dtype(cls) -> type:
        """What NumPy asks a class for."""
        return cls.python


class _Float(metaclass=_Converter):
    python = float

    def __new__(cls, *args: Any) -> Any:
        value = _read(args[0]) if len(args) == 1 else None
        return torch.sym_float(value) if isinstance(value, NUMBERS) else float(*args)


class _Int(metaclass=_Converter):
    python = int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        value = _read(args[0]) if len(args) == 1 and not kwargs else None
        is_symbol = isinstance(value, torch.SymInt) or (isinstance(value, torch.SymFloat) and _has_room(value))
        return torch.sym_int(value) if is_symbol else int(*args, **kwargs)


class SymbolicRange(Sequence[int]):
    """`range(n)` of a symbol: as an index of a tensor `torch.arange(n)`, for all else the numbers, which fix it."""

    def __init__(self, size: Any) -> None:
        self.size = size

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What takes it otherwise has the numbers. Without this, torch would ask an index for these first."""
        fixed = pytree.tree_map_only(SymbolicRange, lambda each: each._fixed, (args, kwargs or {}))
        return func(*fixed[0], **fixed[1])

    def __len__(self) -> int:
        return len(self._fixed)

    def __getitem__(self, place: Any) -> Any:
        return self._fixed[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._fixed)

    def __eq__(self, other: Any) -> bool:
        return self._fixed == (other._fixed if isinstance(other, SymbolicRange) else other)

    def __hash__(self) -> int:
        return hash(self._fixed)

    def __repr__(self) -> str:
        return repr(self._fixed)

    @property
    def _fixed(self) -> range:
        return range(int(self.size))


class _Range(metaclass=_Converter):
    python = range

    def __new__(cls, *args: Any) -> Any:
        return SymbolicRange(args[0]) if len(args) == 1 and isinstance(args[0], torch.SymInt) else range(*args)


def _has_room(number: torch.SymFloat) -> bool:
    """Whether a number is known to fit into an integer of 64 bits, as one does that sizes alone decide."""
    if free_unbacked_symbols(number):
        return False
    is_of_sizes = all(symbol.is_integer for symbol in number.node.expr.free_symbols)
    return is_of_sizes or bool(-(2.0**63) <= number < 2.0**63)


def _read(value: Any) -> Any:
    """What a number is, that may be in a tensor."""
    return value.item() if isinstance(value, FakeTensor) and not value.is_complex() else value


def _of_math(name: str, python: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `math` that takes symbols, too."""

    @functools.wraps(python)
    def call(*args: Any) -> Any:
        if not any(isinstance(each, (*NUMBERS, FakeTensor)) for each in args) or not is_asked_by_a_loss():
            return python(*args)
        values = list(map(_read, args))
        if any(free_unbacked_symbols(each) for each in values if isinstance(each, NUMBERS)):
            raise ValueBranchError(f"math.{name}() of a number", where=current_statement())
        if name == "log" and len(values) == 2:
            return _computed("log", values[0]) / _computed("log", values[1])
        if name == "pow" and len(values) == 2 and values[0] > 0:
            return torch.sym_float(values[0]) ** torch.sym_float(values[1])
        if name in MATH_FUNCTIONS and len(values) == 1:
            return _computed(name, values[0])
        if name in _QUESTIONS and all(map(_is_finite, values)):
            values = [each.node.hint for each in values]
        return python(*values)

    return call


def _computed(name: str, value: Any) -> Any:
    """A function of a number, which is a symbol for that of one."""
    if not isinstance(value, NUMBERS):
        return _functions[name](value)
    node = torch.sym_float(value).node
    hint = _functions[name](node.hint)  # which raises what it raises
    return torch.SymFloat(SymNode(function_of("math", name)(node.expr), node.shape_env, float, hint))


def _is_finite(value: Any) -> bool:
    """Whether a number is a symbol of its own, which neither nan nor an infinity is; what is computed may be."""
    return isinstance(value, torch.SymInt) or (isinstance(value, torch.SymFloat) and value.node.expr.is_Symbol)


OF_MATH = {name: _of_math(name, python) for name, python in _functions.items()}
"""What `math` has while a loss is traced."""

_STAND_INS: dict[Any, Any] = {
    **{float: _Float, int: _Int, range: _Range},
    **{_functions[name]: each for name, each in OF_MATH.items()},
}


def converter(function: Any) -> Any:
    """What a trace calls in the place of one of Python's functions, once it has begun; of others, these."""
    if function in SAYING:
        return getattr(*SAYING[function])
    return _STAND_INS.get(function, function)
