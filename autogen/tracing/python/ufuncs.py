"""Functions of NumPy that a loss gives numbers, as schedules do: `np.exp(-5 * rest**2)`, `np.clip(step, 0.0, last)`.

NumPy asks what it is given for methods of these names. So a symbol stays one, and NumPy itself computes the number at
each launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from autogen.arithmetic import function_of
from autogen.errors import ValueBranchError
from autogen.sizes import hint
from autogen.tracing.source import current_statement
from autogen.tracing.symbols import NUMBERS, number_of


def _as_array(symbol: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    """What other functions are given in the place of a symbol, which is fixed then."""
    import numpy

    return numpy.asarray(number_of(symbol), dtype)


def _of_ufunc(symbol: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """What a universal function gives where one of its inputs is a symbol."""
    import numpy

    is_plain = method == "__call__" and not options and getattr(numpy, ufunc.__name__, None) is ufunc
    found = _computed(ufunc, inputs) if is_plain and ufunc.nout == 1 else None
    return getattr(ufunc, method)(*map(_fixed, inputs), **options) if found is None else found


def _clip(symbol: Any, low: Any = None, high: Any = None, out: Any = None, **options: Any) -> Any:
    """`np.clip(symbol, low, high)`."""
    import numpy

    inputs = (symbol, low, high)
    found = _computed(numpy.clip, inputs) if out is None and not options else None
    return numpy.clip(*map(_fixed, inputs), out=out, **options) if found is None else found


def _computed(function: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """A function of numbers as a symbol; None if it is no float."""
    symbols = [each for each in inputs if isinstance(each, NUMBERS)]
    others = [each for each in inputs if not isinstance(each, NUMBERS)]
    if not all((isinstance(each, float) and math.isfinite(each)) or type(each) is int for each in others):
        return None
    if any(map(free_unbacked_symbols, symbols)):
        raise ValueBranchError(f"numpy.{function.__name__}() of a number", where=current_statement())
    result = function(*map(hint, inputs))
    if not isinstance(result, float):
        return None
    arguments = [each.node.expr if isinstance(each, NUMBERS) else sympy.sympify(each) for each in inputs]
    expression = function_of("numpy", function.__name__)(*arguments)
    return torch.SymFloat(SymNode(expression, symbols[0].node.shape_env, float, float(result)))


def _fixed(value: Any) -> Any:
    return number_of(value) if isinstance(value, NUMBERS) else value


OF_NUMPY: dict[str, Callable[..., Any]] = {"__array__": _as_array, "__array_ufunc__": _of_ufunc, "clip": _clip}
"""What symbols have while a loss is traced."""
