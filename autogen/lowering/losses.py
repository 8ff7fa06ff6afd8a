"""torch's fused loss ops whose own formula reads better, or is more exact, than their decomposition."""

from __future__ import annotations

import math
from collections.abc import Callable

import sympy
import torch

from autogen import ir
from autogen.lowering.registry import Context, lowers, number
from autogen.lowering.unrolling import reduction
from autogen.lowering.values import Value, broadcast_factors, elementwise, numel

MEAN, SUM = 1, 2


def reduced(context: Context, loss: Value, mode: int) -> Value:
    """An elementwise loss under torch's reduction code: 0 none, 1 mean, 2 sum."""
    named = Value(loss.shape, loss.dtype, lambda i: context.name(loss.at(i), "loss"), loss.factors)
    if mode not in (MEAN, SUM):
        return named
    total = reduction("sum", named, range(len(loss.shape)), False)
    if mode == SUM:
        return total
    count = numel(loss.shape)
    return elementwise((), context.dtype, lambda x: ir.apply("div", x, number(count, context.compute)), total)


def upstream(context: Context, grad: ir.Node, mode: int, count: sympy.Expr) -> ir.Node:
    """The gradient that reaches one element of a loss reduced under `mode`."""
    grad = ir.cast(grad, context.compute)
    return ir.apply("div", grad, number(count, context.compute)) if mode == MEAN else grad


def _weighted(loss: ir.Node, weight: tuple[ir.Node, ...]) -> ir.Node:
    return ir.apply("mul", loss, *weight) if weight else loss


def _optional(value: Value | None) -> tuple[Value, ...]:
    return () if value is None else (value,)


def _broadcast(*values: Value) -> tuple[sympy.Expr, ...]:
    rank = max(len(value.shape) for value in values)
    shape = [sympy.S.One] * rank
    for value in values:
        for dim, size in enumerate(value.shape, rank - len(value.shape)):
            if size != 1:
                shape[dim] = size
    return tuple(shape)


@lowers("binary_cross_entropy.default")
def binary_cross_entropy(
    context: Context, input: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """`-(t * log(x) + (1 - t) * log(1 - x))` with both logarithms at least -100."""
    compute = context.compute
    one = ir.const(1, compute)

    def formula(x: ir.Node, t: ir.Node, *w: ir.Node) -> ir.Node:
        x, t = ir.cast(x, compute), ir.cast(t, compute)
        log_x = context.name(ir.apply("clamped_log", x), "log_input")
        log_1mx = context.name(ir.apply("clamped_log1m", x), "log_complement")
        loss = ir.apply("sub", ir.apply("mul", ir.apply("sub", t, one), log_1mx), ir.apply("mul", t, log_x))
        return _weighted(loss, tuple(ir.cast(each, compute) for each in w))

    loss = elementwise(input.shape, context.dtype, formula, input, target, *_optional(weight))
    return reduced(context, loss, reduction)


# torch's constant has single precision, in its double precision kernel too.
_FLOOR = {torch.float32: 1e-12, torch.float64: 9.999999960041972e-13}


@lowers("binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    context: Context,
    grad: Value,
    input: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """`grad * (x - t) / max((1 - x) * x, 1e-12)`."""
    compute = context.compute
    one, floor = ir.const(1, compute), ir.const(_FLOOR[compute], compute)
    count = numel(input.shape)

    def formula(g: ir.Node, x: ir.Node, t: ir.Node, *w: ir.Node) -> ir.Node:
        x, t = ir.cast(x, compute), ir.cast(t, compute)
        variance = ir.apply("maximum", ir.apply("mul", ir.apply("sub", one, x), x), floor)
        slope = ir.apply("div", ir.apply("sub", x, t), context.name(variance, "variance"))
        slope = _weighted(slope, tuple(ir.cast(each, compute) for each in w))
        return ir.apply("mul", upstream(context, g, reduction, count), slope)

    return elementwise(context.shape, context.dtype, formula, grad, input, target, *_optional(weight))


@lowers("binary_cross_entropy_with_logits.default")
def binary_cross_entropy_with_logits(
    context: Context,
    input: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """`(1 - t) * x - (1 + (p - 1) * t) * log(sigmoid(x))`."""
    compute = context.compute
    one = ir.const(1, compute)

    def formula(x: ir.Node, t: ir.Node, *rest: ir.Node) -> ir.Node:
        x, t = ir.cast(x, compute), ir.cast(t, compute)
        extras = [ir.cast(each, compute) for each in rest]
        log_prob = context.name(ir.apply("log_sigmoid", x), "log_prob")
        if pos_weight is not None:
            gain = ir.apply("add", ir.apply("mul", ir.apply("sub", extras.pop(0), one), t), one)
            log_prob = ir.apply("mul", context.name(gain, "log_weight"), log_prob)
        loss = ir.apply("sub", ir.apply("mul", ir.apply("sub", one, t), x), log_prob)
        return _weighted(loss, tuple(extras))

    operands = [input, target, *_optional(pos_weight), *_optional(weight)]
    shape = _broadcast(*operands)
    loss = elementwise(shape, context.dtype, formula, *operands)
    return reduced(context, Value(shape, context.dtype, loss.at, broadcast_factors(shape, operands)), reduction)


def _difference_loss(
    context: Context, input: Value, target: Value, mode: int, formula: Callable[[ir.Node], ir.Node]
) -> Value:
    """A loss of the difference of input and target."""

    def of_both(x: ir.Node, t: ir.Node) -> ir.Node:
        return formula(_difference(context, x, t))

    loss = elementwise(_broadcast(input, target), context.dtype, of_both, input, target)
    return reduced(context, loss, mode)


def _difference_slope(
    context: Context, grad: Value, input: Value, target: Value, mode: int, slope: Callable[[ir.Node], ir.Node]
) -> Value:
    """The gradient of a loss of the difference, whose derivative is `slope`."""
    count = numel(context.shape)

    def of_all(g: ir.Node, x: ir.Node, t: ir.Node) -> ir.Node:
        return ir.apply("mul", slope(_difference(context, x, t)), upstream(context, g, mode, count))

    return elementwise(context.shape, context.dtype, of_all, grad, input, target)


def _difference(context: Context, x: ir.Node, t: ir.Node) -> ir.Node:
    node = ir.apply("sub", ir.cast(x, context.compute), ir.cast(t, context.compute))
    return context.name(node, "difference")


def _const(value: float, like: ir.Node) -> ir.Node:
    return ir.const(value, like.dtype)


def _times(factor: float, node: ir.Node) -> ir.Node:
    return ir.apply("mul", _const(factor, node), node)


@lowers("mse_loss.default")
def mse_loss(context: Context, input: Value, target: Value, reduction: int = MEAN) -> Value:
    """`(x - t)^2`."""
    return _difference_loss(context, input, target, reduction, lambda d: ir.apply("mul", d, d))


@lowers("mse_loss_backward.default")
def mse_loss_backward(context: Context, grad: Value, input: Value, target: Value, reduction: int) -> Value:
    """`2 * (x - t) * grad`."""
    return _difference_slope(context, grad, input, target, reduction, lambda d: _times(2, d))


@lowers("smooth_l1_loss.default")
def smooth_l1_loss(context: Context, input: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Value:
    """`0.5 * d^2 / beta` where `|d| < beta`, else `|d| - 0.5 * beta`."""

    def formula(d: ir.Node) -> ir.Node:
        size = ir.apply("abs", d)
        inside = ir.apply("div", _times(0.5, ir.apply("mul", d, d)), _const(beta, d))
        outside = ir.apply("sub", size, _const(0.5 * beta, d))
        return ir.apply("where", ir.apply("lt", size, _const(beta, d)), inside, outside)

    return _difference_loss(context, input, target, reduction, formula)


@lowers("smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    context: Context, grad: Value, input: Value, target: Value, reduction: int, beta: float
) -> Value:
    """`sign(d)` where `|d| >= beta`, else `d / beta`; so nan stays nan."""

    def slope(d: ir.Node) -> ir.Node:
        outside = ir.apply("ge", ir.apply("abs", d), _const(beta, d))
        return ir.apply("where", outside, ir.apply("sign", d), ir.apply("div", d, _const(beta, d)))

    return _difference_slope(context, grad, input, target, reduction, slope)


@lowers("huber_loss.default")
def huber_loss(context: Context, input: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Value:
    """`0.5 * d^2` where `|d| <= delta`, else `delta * (|d| - 0.5 * delta)`."""

    def formula(d: ir.Node) -> ir.Node:
        size = ir.apply("abs", d)
        inside = _times(0.5, ir.apply("mul", d, d))
        outside = _times(delta, ir.apply("sub", size, _const(0.5 * delta, d)))
        return ir.apply("where", ir.apply("le", size, _const(delta, d)), inside, outside)

    return _difference_loss(context, input, target, reduction, formula)


@lowers("huber_loss_backward.default")
def huber_loss_backward(
    context: Context, grad: Value, input: Value, target: Value, reduction: int, delta: float
) -> Value:
    """`delta * sign(d)` where `|d| > delta`, else `d`; so nan stays nan."""

    def slope(d: ir.Node) -> ir.Node:
        outside = ir.apply("gt", ir.apply("abs", d), _const(delta, d))
        return ir.apply("where", outside, _times(delta, ir.apply("sign", d)), d)

    return _difference_slope(context, grad, input, target, reduction, slope)


def _margin(context: Context, x: ir.Node, t: ir.Node) -> ir.Node:
    """`t * x`"""
    return context.name(ir.apply("mul", ir.cast(t, context.compute), ir.cast(x, context.compute)), "margin")


# The greatest numbers whose exponentials are finite.
_LARGEST = {torch.float32: 88.72283172607422, torch.float64: 709.782712893384}


@lowers("soft_margin_loss.default")
def soft_margin_loss(context: Context, input: Value, target: Value, reduction: int = MEAN) -> Value:
    """`log(1 + exp(-t * x))`; infinite, as in torch, where the exponential is."""
    least = ir.const(-_LARGEST[context.compute], context.compute)
    infinite = ir.const(math.inf, context.compute)

    def formula(x: ir.Node, t: ir.Node) -> ir.Node:
        margin = _margin(context, x, t)
        loss = ir.apply("neg", ir.apply("log_sigmoid", margin))
        return ir.apply("where", ir.apply("lt", margin, least), infinite, loss)

    loss = elementwise(_broadcast(input, target), context.dtype, formula, input, target)
    return reduced(context, loss, reduction)


@lowers("soft_margin_loss_backward.default")
def soft_margin_loss_backward(context: Context, grad: Value, input: Value, target: Value, reduction: int) -> Value:
    """`-t * z / (1 + z)` with `z = exp(-t * x)`; the equal `t * (sigmoid(t * x) - 1)` would cancel."""
    count = numel(context.shape)

    def formula(g: ir.Node, x: ir.Node, t: ir.Node) -> ir.Node:
        z = context.name(ir.apply("exp", ir.apply("neg", _margin(context, x, t))), "exp_margin")
        share = ir.apply("div", z, ir.apply("add", z, ir.const(1, context.compute)))
        slope = ir.apply("mul", ir.apply("neg", ir.cast(t, context.compute)), share)
        return ir.apply("mul", slope, upstream(context, g, reduction, count))

    return elementwise(context.shape, context.dtype, formula, grad, input, target)
