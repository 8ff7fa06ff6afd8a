"""Lower pointwise ops: ATen ops that are rows of the op table as they are, and those with arguments of their own.

The latter have an `alpha`, a `rounding_mode`, optional bounds, or the formula of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from autogen import compat, ir
from autogen.ir.ops import OPS, Rule
from autogen.lowering.registry import LOWERINGS, Context, lowers
from autogen.lowering.values import Value, elementwise

# On bool tensors torch's arithmetic is logic.
_ON_BOOL = {"add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and"}

# What ops for floats are on integers, where torch lets them be.
_ON_INTEGERS: dict[str, Callable[..., ir.Node]] = {
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), lambda x: x),
    **dict.fromkeys(("isnan", "isinf"), lambda x: ir.const(False, torch.bool)),
    "isfinite": lambda x: ir.const(True, torch.bool),
    "signbit": lambda x: ir.apply("lt", ir.cast(x, torch.int64), ir.const(0, torch.int64)),
}


# What integers are divided by, an error if that is 0.
_DIVISIONS = ("floor_divide", "fmod", "remainder")

# What is off by one where a quotient is off by an ulp, and what such a quotient may go through before.
_TO_INTEGERS = ("floor", "ceil", "trunc", "round")
_ON_THE_WAY = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum")

# What takes numbers in half precision where its tensors are; arithmetic has them as they are.
_OF_ROUNDED = ("fmod", "remainder", "maximum", "minimum")

# For torch's promotion a symbolic size counts as any number of its kind does.
_SAMPLES = {True: 1, False: 0.5}


def promoted(*arguments: Any) -> torch.dtype:
    """The dtype in which torch compares or combines tensors and numbers."""
    samples: list[Any] = [
        torch.empty((1,) * bool(each.shape), dtype=each.dtype, device="meta")
        if isinstance(each, Value)
        else (each if isinstance(each, (bool, int, float)) else _SAMPLES[bool(each.expression.is_integer)])
        for each in arguments
    ]
    dtypes = [torch.result_type(samples[0], other) for other in samples[1:]] or [samples[0].dtype]
    return reduce(torch.promote_types, dtypes)


def rounded_once(node: ir.Node) -> ir.Node:
    """`node` with quotients as a processor divides, which is not the fastest way of a GPU: `6 / 3` is 2 exactly."""
    met = ir.downward([node], lambda each: each.op not in _ON_THE_WAY)
    quotients = {each: ir.apply("div_rn", *each.args) for each in met if each.op == "div"}
    for each in met:
        if each.op == "reciprocal":
            quotients[each] = ir.apply("div_rn", ir.const(1, each.dtype), *each.args)
    return ir.replace([node], quotients)[0] if quotients else node


def apply_op(context: Context, name: str, *arguments: Any) -> Value:
    """A row of the op table on broadcast tensors and numbers, with torch's promotion."""
    op = OPS[name]
    is_of_rounded = op.rule in (Rule.COMPARE, Rule.LOGICAL) or name in _OF_ROUNDED
    if op.rule in (Rule.ARITHMETIC, Rule.FLOAT, Rule.BITWISE):
        inside = context.compute
        if inside == torch.bool:
            name = _ON_BOOL.get(name, name)
    elif op.rule == Rule.LOGICAL:
        inside = torch.bool
    else:
        inside = ir.compute_dtype(promoted(*arguments))
    if op.rule == Rule.COMPARE and inside == torch.bool:
        inside = torch.int32
    settled = None if inside.is_floating_point else _ON_INTEGERS.get(name)
    if name == "sign" and inside == torch.bool:
        settled = _ON_INTEGERS["trunc"]
    if name in _DIVISIONS and not inside.is_floating_point and arguments[1] == 0:
        raise NotImplementedError("an integer divided by 0, which is torch's error")
    if settled is None and inside not in OPS[name].rule.dtypes:
        raise NotImplementedError(f"{name} of {inside}")

    def formula(*nodes: ir.Node) -> ir.Node:
        nodes = tuple(ir.cast(node, inside) for node in nodes)
        if name in _TO_INTEGERS:
            nodes = tuple(map(rounded_once, nodes))
        return settled(*nodes) if settled else ir.apply(name, *nodes)

    if is_of_rounded:
        dtype = promoted(*arguments)
        values = [context.rounded(each, dtype) for each in arguments]
    else:
        values = [context.value(each, inside) for each in arguments]
    return elementwise(context.shape, context.dtype, formula, *values)


# Beside an overload for tensors, those that take a number in the place of one.
_WITH_NUMBERS = {
    "Tensor": ("Scalar", "Scalar_Tensor", "Scalar_Self", "Scalar_Other"),
    "default": ("self_scalar", "other_scalar"),
}


def _register_table() -> None:
    def lowering(name: str) -> Callable[..., Value]:
        return lambda context, *arguments, **_: apply_op(context, name, *arguments)

    for op in OPS.values():
        if op.rule == Rule.SELECT:
            continue
        for overload in op.aten:
            base, _, kind = overload.partition(".")
            offered = getattr(torch.ops.aten, base).overloads()
            names = [overload, *(f"{base}.{other}" for other in _WITH_NUMBERS.get(kind, ()) if other in offered)]
            for name in names:
                LOWERINGS.setdefault(name, lowering(op.name))


@lowers("bitwise_not.default")
def bitwise_not(context: Context, value: Value) -> Value:
    """`~x`, of bytes as `x ^ 255`: Triton's interpreter has no `~` for them."""
    if context.dtype == torch.uint8:
        return apply_op(context, "bitwise_xor", value, 255)
    return apply_op(context, "bitwise_not", value)


@lowers("add.Tensor", "add.Scalar")
def add(context: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    """`a + alpha * b`."""
    return apply_op(context, "add", a, b if alpha == 1 else apply_op(context, "mul", b, alpha))


@lowers("sub.Tensor", "sub.Scalar")
def sub(context: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    """`a - alpha * b`."""
    return apply_op(context, "sub", a, b if alpha == 1 else apply_op(context, "mul", b, alpha))


@lowers("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(context: Context, a: Any, b: Any) -> Value:
    """`a / b`."""
    return apply_op(context, "div", a, b)


@lowers("div.Tensor_mode", "div.Scalar_mode")
def div_mode(context: Context, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    """`a / b`, rounded down or towards zero on request."""
    if rounding_mode == "floor":
        return apply_op(context, "floor_divide", a, b)
    quotient = apply_op(context, "div", a, b)
    return quotient if rounding_mode is None else apply_op(context, "trunc", quotient)


@lowers("round.decimals")
def round_decimals(context: Context, value: Value, *, decimals: int) -> Value:
    """`round(x * 10^decimals) / 10^decimals`; in the other order for decimals before the point."""
    if not context.compute.is_floating_point:
        raise NotImplementedError("integers rounded to a power of ten")
    there, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    power = 10.0 ** abs(decimals)
    return apply_op(context, back, apply_op(context, "round", apply_op(context, there, value, power)), power)


@lowers("polygamma.default")
def polygamma(context: Context, order: int, value: Value) -> Value:
    """The derivative of digamma of an order."""
    names = ("digamma", "trigamma", "tetragamma")
    if order >= len(names):
        raise NotImplementedError(f"polygamma of order {order}")
    return apply_op(context, names[order], value)


@lowers("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(context: Context, base: Any, exponent: Any) -> Value:
    """`base ** exponent`; a small constant exponent needs no logarithm, as in torch."""
    if isinstance(exponent, int) and exponent < 0 and not context.dtype.is_floating_point:
        raise NotImplementedError("an integer to a negative power, which is torch's error")
    if isinstance(exponent, (int, float)) and exponent in (-2, -1, -0.5, 0.5, 1, 2, 3, 4):
        compute = context.compute
        one = ir.const(1, compute)

        def formula(x: ir.Node) -> ir.Node:
            x = ir.cast(x, compute)
            square = ir.apply("mul", x, x)
            if exponent in (-2, -1):
                return ir.apply("div", one, square if exponent == -2 else x)
            if exponent in (-0.5, 0.5):
                return ir.apply("sqrt" if exponent > 0 else "rsqrt", x)
            powers = {1: x, 2: square, 3: ir.apply("mul", square, x), 4: ir.apply("mul", square, square)}
            return powers[int(exponent)]

        return elementwise(context.shape, context.dtype, formula, context.value(base))
    return apply_op(context, "pow", base, exponent)


@lowers("clamp.default", "clamp.Tensor")
def clamp(context: Context, value: Value, min: Any = None, max: Any = None) -> Value:
    """`minimum(maximum(value, min), max)`, bounds optional; nan stays nan."""
    if min is not None:
        value = apply_op(context, "maximum", value, _representable(min, context.dtype))
    return value if max is None else apply_op(context, "minimum", value, _representable(max, context.dtype))


def _representable(bound: Any, dtype: torch.dtype) -> Any:
    """The number of an integer dtype that is closest to a bound."""
    if not compat.TAKES_ANY_BOUND or not isinstance(bound, int) or dtype.is_floating_point or dtype == torch.bool:
        return bound
    limits = torch.iinfo(dtype)
    return sorted((limits.min, bound, limits.max))[1]


@lowers("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(context: Context, condition: Value, chosen: Any, other: Any) -> Value:
    """`chosen` where `condition`, else `other`."""

    def formula(condition: ir.Node, chosen: ir.Node, other: ir.Node) -> ir.Node:
        both = (ir.cast(each, context.compute) for each in (chosen, other))
        return ir.apply("where", ir.cast(condition, torch.bool), *both)

    arguments = (context.rounded(each, context.dtype) for each in (chosen, other))
    return elementwise(context.shape, context.dtype, formula, condition, *arguments)


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(context: Context, value: Value, mask: Value, fill: Any) -> Value:
    """`fill` where `mask`, else `value`."""
    return where(context, mask, fill, value)


@lowers("_to_copy.default", "copy.default")
def to_copy(context: Context, value: Value, source: Value | None = None, **_: Any) -> Value:
    """Another dtype; of two arguments the second, broadcast to the first.

    A cast to half precision rounds if the loss asks for it. One in torch's formula for an op only says how the op's
    result is stored.
    """
    source = value if source is None else source
    rounds = source.dtype != context.dtype and not context.of_formula
    is_integer = not context.dtype.is_floating_point and context.dtype != torch.bool

    def formula(x: ir.Node) -> ir.Node:
        x = rounded_once(x) if is_integer else x
        return ir.rounded(x, context.dtype) if rounds else x

    return elementwise(context.shape, context.dtype, formula, source)


@lowers("log_sigmoid_forward.default")
def log_sigmoid_forward(context: Context, x: Value) -> tuple[Value, Value]:
    """`log(sigmoid(x))`; torch's second result is a buffer that only its own backward reads."""
    result = apply_op(context, "log_sigmoid", x)
    return result, result


@lowers("log_sigmoid_backward.default")
def log_sigmoid_backward(context: Context, grad: Value, x: Value, buffer: Value) -> Value:
    """`grad * sigmoid(-x)`."""
    return apply_op(context, "mul", grad, apply_op(context, "sigmoid", apply_op(context, "neg", x)))


_register_table()
