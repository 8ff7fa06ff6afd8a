"""Lower torch's fused loss ops by formulas that are shorter, or more exact, than their decompositions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from autogen import ir
from autogen.lowering.registry import Context, lowers, number
from autogen.lowering.unrolling import reduction
from autogen.lowering.values import Value, broadcast_shape, elementwise, numel

MEAN, SUM = 1, 2


def _loss(context: Context, mode: int, formula: Callable[..., ir.Node], *operands: Value | None) -> Value:
    """`formula` of the operands that are given, element by element, under torch's reduction code `mode`."""
    given = [each for each in operands if each is not None]

    def element(*nodes: ir.Node) -> ir.Node:
        return context.name(formula(*(ir.cast(node, context.compute) for node in nodes)), "loss")

    loss = elementwise(broadcast_shape(given), context.dtype, element, *given)
    if mode not in (MEAN, SUM):
        return loss
    total = reduction("sum", loss, range(len(loss.shape)), False)
    if mode == SUM:
        return total
    count = numel(loss.shape)
    return elementwise((), context.dtype, lambda x: ir.apply("div", x, number(count, context.compute)), total)


def _slope(context: Context, grad: Value, mode: int, formula: Callable[..., ir.Node], *operands: Value | None) -> Value:
    """The gradient of such a loss, whose derivative is `formula`."""
    given = [each for each in operands if each is not None]
    count = numel(context.shape)

    def element(*nodes: ir.Node) -> ir.Node:
        upstream, *own = (ir.cast(node, context.compute) for node in nodes)
        if mode == MEAN:
            upstream = ir.apply("div", upstream, number(count, context.compute))
        return ir.apply("mul", formula(*own), upstream)

    return elementwise(context.shape, context.dtype, element, grad, *given)


def _weighted(loss: ir.Node, *weight: ir.Node) -> ir.Node:
    return ir.apply("mul", loss, *weight) if weight else loss


@lowers("binary_cross_entropy.default")
def binary_cross_entropy(
    context: Context, input: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """`-(t * log(x) + (1 - t) * log(1 - x))` with both logarithms at least -100."""
    one = ir.const(1, context.compute)

    def formula(x: ir.Node, t: ir.Node, *w: ir.Node) -> ir.Node:
        log_x = context.name(ir.apply("clamped_log", x), "log_input")
        log_1mx = context.name(ir.apply("clamped_log1m", x), "log_complement")
        loss = ir.apply("sub", ir.apply("mul", ir.apply("sub", t, one), log_1mx), ir.apply("mul", t, log_x))
        return _weighted(loss, *w)

    return _loss(context, reduction, formula, input, target, weight)


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

    def formula(x: ir.Node, t: ir.Node, *w: ir.Node) -> ir.Node:
        variance = ir.apply("maximum", ir.apply("mul", ir.apply("sub", one, x), x), floor)
        slope = ir.apply("div", ir.apply("sub", x, t), context.name(variance, "variance"))
        return _weighted(slope, *w)

    return _slope(context, grad, reduction, formula, input, target, weight)


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
    one = ir.const(1, context.compute)

    def formula(x: ir.Node, t: ir.Node, *rest: ir.Node) -> ir.Node:
        weights = list(rest)
        log_prob = context.name(ir.apply("log_sigmoid", x), "log_prob")
        if pos_weight is not None:
            gain = ir.apply("add", ir.apply("mul", ir.apply("sub", weights.pop(0), one), t), one)
            log_prob = ir.apply("mul", context.name(gain, "log_weight"), log_prob)
        loss = ir.apply("sub", ir.apply("mul", ir.apply("sub", one, t), x), log_prob)
        return _weighted(loss, *weights)

    return _loss(context, reduction, formula, input, target, pos_weight, weight)


def _of_difference(context: Context, formula: Callable[[ir.Node], ir.Node]) -> Callable[..., ir.Node]:
    """`formula` of `x - t`."""
    return lambda x, t: formula(context.name(ir.apply("sub", x, t), "difference"))


def _const(value: float, like: ir.Node) -> ir.Node:
    return ir.const(value, like.dtype)


def _times(factor: float, node: ir.Node) -> ir.Node:
    return ir.apply("mul", _const(factor, node), node)


@lowers("mse_loss.default")
def mse_loss(context: Context, input: Value, target: Value, reduction: int = MEAN) -> Value:
    """`(x - t)^2`."""
    square = _of_difference(context, lambda d: ir.apply("mul", d, d))
    return _loss(context, reduction, square, input, target)


@lowers("mse_loss_backward.default")
def mse_loss_backward(context: Context, grad: Value, input: Value, target: Value, reduction: int) -> Value:
    """`2 * (x - t) * grad`."""
    twice = _of_difference(context, lambda d: _times(2, d))
    return _slope(context, grad, reduction, twice, input, target)


@lowers("smooth_l1_loss.default")
def smooth_l1_loss(context: Context, input: Value, target: Value, reduction: int = MEAN, beta: float = 1.0) -> Value:
    """`0.5 * d^2 / beta` where `|d| < beta`, else `|d| - 0.5 * beta`."""

    def formula(d: ir.Node) -> ir.Node:
        size = ir.apply("abs", d)
        inside = ir.apply("div", _times(0.5, ir.apply("mul", d, d)), _const(beta, d))
        outside = ir.apply("sub", size, _const(0.5 * beta, d))
        return ir.apply("where", ir.apply("lt", size, _const(beta, d)), inside, outside)

    return _loss(context, reduction, _of_difference(context, formula), input, target)


@lowers("smooth_l1_loss_backward.default")
def smooth_l1_loss_backward(
    context: Context, grad: Value, input: Value, target: Value, reduction: int, beta: float
) -> Value:
    """`sign(d)` where `|d| >= beta`, else `d / beta`; so nan stays nan."""

    def slope(d: ir.Node) -> ir.Node:
        outside = ir.apply("ge", ir.apply("abs", d), _const(beta, d))
        return ir.apply("where", outside, ir.apply("sign", d), ir.apply("div", d, _const(beta, d)))

    return _slope(context, grad, reduction, _of_difference(context, slope), input, target)


@lowers("huber_loss.default")
def huber_loss(context: Context, input: Value, target: Value, reduction: int = MEAN, delta: float = 1.0) -> Value:
    """`0.5 * d^2` where `|d| <= delta`, else `delta * (|d| - 0.5 * delta)`."""

    def formula(d: ir.Node) -> ir.Node:
        size = ir.apply("abs", d)
        inside = _times(0.5, ir.apply("mul", d, d))
        outside = _times(delta, ir.apply("sub", size, _const(0.5 * delta, d)))
        return ir.apply("where", ir.apply("le", size, _const(delta, d)), inside, outside)

    return _loss(context, reduction, _of_difference(context, formula), input, target)


@lowers("huber_loss_backward.default")
def huber_loss_backward(
    context: Context, grad: Value, input: Value, target: Value, reduction: int, delta: float
) -> Value:
    """`delta * sign(d)` where `|d| > delta`, else `d`; so nan stays nan."""

    def slope(d: ir.Node) -> ir.Node:
        outside = ir.apply("gt", ir.apply("abs", d), _const(delta, d))
        return ir.apply("where", outside, _times(delta, ir.apply("sign", d)), d)

    return _slope(context, grad, reduction, _of_difference(context, slope), input, target)


def _margin(context: Context, x: ir.Node, t: ir.Node) -> ir.Node:
    """`t * x`"""
    return context.name(ir.apply("mul", t, x), "margin")


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

    return _loss(context, reduction, formula, input, target)


@lowers("soft_margin_loss_backward.default")
def soft_margin_loss_backward(context: Context, grad: Value, input: Value, target: Value, reduction: int) -> Value:
    """`-t * z / (1 + z)` with `z = exp(-t * x)`; the equal `t * (sigmoid(t * x) - 1)` would cancel."""

    def formula(x: ir.Node, t: ir.Node) -> ir.Node:
        z = context.name(ir.apply("exp", ir.apply("neg", _margin(context, x, t))), "exp_margin")
        share = ir.apply("div", z, ir.apply("add", z, ir.const(1, context.compute)))
        return ir.apply("mul", ir.apply("neg", t), share)

    return _slope(context, grad, reduction, formula, input, target)
