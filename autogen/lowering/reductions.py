"""Lower reductions, norms and softmax."""

from __future__ import annotations

from typing import Any

from autogen import ir
from autogen.lowering.extremes import all_dims, comparable
from autogen.lowering.registry import Context, lowers, number
from autogen.lowering.unrolling import reduction
from autogen.lowering.values import Value, elementwise, numel


def _reduce(context: Context, kind: str, value: Value, dims: Any = None, keepdim: bool = False) -> Value:
    """`value`, cast to the result's dtype, reduced over `dims`."""
    widened = elementwise(value.shape, context.dtype, lambda x: x, value)
    return reduction(kind, widened, all_dims(value, dims), keepdim)


@lowers("sum.default", "sum.dim_IntList")
def sum_(context: Context, value: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum over `dims`."""
    return _reduce(context, "sum", value, dims, keepdim)


@lowers("prod.default", "prod.dim_int")
def prod(context: Context, value: Value, dim: int | None = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The product over a dimension, or all."""
    return _reduce(context, "prod", value, dim, keepdim)


@lowers("mean.default", "mean.dim")
def mean(context: Context, value: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum over `dims` divided by the number of terms; nan if there are none."""
    total = _reduce(context, "sum", value, dims, keepdim)
    count = numel(tuple(value.shape[dim] for dim in all_dims(value, dims)))
    compute = context.compute
    return elementwise(total.shape, context.dtype, lambda x: ir.apply("div", x, number(count, compute)), total)


def _extreme(context: Context, kind: str, value: Value, dims: Any, keepdim: bool) -> Value:
    found = reduction(kind, comparable(value), all_dims(value, dims), keepdim)
    return elementwise(found.shape, context.dtype, lambda x: x, found)


@lowers("amax.default", "max.default")
def amax(context: Context, value: Value, dims: Any = None, keepdim: bool = False) -> Value:
    """The largest element over `dims`; nan wins."""
    return _extreme(context, "max", value, dims, keepdim)


@lowers("amin.default", "min.default")
def amin(context: Context, value: Value, dims: Any = None, keepdim: bool = False) -> Value:
    """The smallest element over `dims`; nan wins."""
    return _extreme(context, "min", value, dims, keepdim)


_NORM_TOTALS = {2.0: "squared_norm", 1.0: "norm", 0.0: "norm", float("inf"): "norm", -float("inf"): "norm"}


def _named(context: Context, value: Value, name: str) -> Value:
    """`value`, called `name` in the kernel."""
    return Value(value.shape, value.dtype, lambda index: context.name(value.at(index), name), value.factors)


@lowers("linalg_vector_norm.default")
def vector_norm(
    context: Context, value: Value, ord: Any = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """`(sum |x|^ord)^(1/ord)` over `dims`; the largest magnitude for inf, the smallest for -inf, a count for 0."""
    compute = context.compute
    one, zero = ir.const(1, compute), ir.const(0, compute)

    def term(x: ir.Node) -> ir.Node:
        x = ir.cast(x, compute)
        if ord == 2:
            return ir.apply("mul", x, x)
        if ord == 0:
            return ir.apply("where", ir.apply("ne", x, zero), one, zero)
        size = ir.apply("abs", x)
        if ord in (3, 4):
            return ir.apply("mul", ir.apply("mul", x, x), size if ord == 3 else ir.apply("mul", x, x))
        return size if ord in (1, float("inf"), -float("inf")) else ir.apply("pow", size, ir.const(ord, compute))

    def finish(total: ir.Node) -> ir.Node:
        if ord == 2:
            return ir.apply("sqrt", total)
        if ord in (0, 1, float("inf"), -float("inf")):
            return total
        return ir.apply("pow", total, ir.const(1 / ord, compute))

    kind = {float("inf"): "max", -float("inf"): "min"}.get(ord, "sum")
    terms = elementwise(value.shape, context.dtype, term, value)
    total = _named(context, reduction(kind, terms, all_dims(value, dims), keepdim), _NORM_TOTALS.get(ord, "norm_total"))
    return elementwise(total.shape, context.dtype, lambda x: context.name(finish(x), "norm"), total)


def _shifted(context: Context, value: Value, dim: int) -> tuple[Value, Value, Value]:
    """The parts of a softmax over one dimension: `x - max`, its exponential, and the sum of that."""
    wide = elementwise(value.shape, context.dtype, lambda x: ir.cast(x, context.compute), value)
    dims = [dim] if value.shape else []
    largest = _named(context, reduction("max", wide, dims, True), "row_max")
    shifted = elementwise(value.shape, context.dtype, lambda x, m: ir.apply("sub", x, m), wide, largest)
    exponential = elementwise(value.shape, context.dtype, lambda x: ir.apply("exp", x), shifted)
    return shifted, exponential, _named(context, reduction("sum", exponential, dims, True), "sum_exp")


@lowers("_log_softmax.default")
def log_softmax(context: Context, value: Value, dim: int, half_to_float: bool) -> Value:
    """`(x - max) - log(sum(exp(x - max)))` over `dim`."""
    shifted, _, total = _shifted(context, value, dim)

    def formula(shifted: ir.Node, total: ir.Node) -> ir.Node:
        log_total = context.name(ir.apply("log", total), "log_sum_exp")
        return context.name(ir.apply("sub", shifted, log_total), "log_prob")

    return elementwise(value.shape, context.dtype, formula, shifted, total)


@lowers("_softmax.default")
def softmax(context: Context, value: Value, dim: int, half_to_float: bool) -> Value:
    """`exp(x - max) / sum(exp(x - max))` over `dim`, with one division for each sum."""
    _, exponential, total = _shifted(context, value, dim)

    def formula(exponential: ir.Node, total: ir.Node) -> ir.Node:
        return context.name(ir.apply("mul", exponential, ir.apply("reciprocal", total)), "prob")

    return elementwise(value.shape, context.dtype, formula, exponential, total)


@lowers("_log_softmax_backward_data.default")
def log_softmax_backward(context: Context, grad: Value, result: Value, dim: int, input_dtype: Any) -> Value:
    """`grad - exp(result) * sum(grad)` over `dim`."""
    wide = elementwise(grad.shape, context.dtype, lambda g: ir.cast(g, context.compute), grad)
    total = reduction("sum", wide, [dim] if grad.shape else [], True)

    def formula(g: ir.Node, log_prob: ir.Node, total: ir.Node) -> ir.Node:
        prob = context.name(ir.apply("exp", ir.cast(log_prob, context.compute)), "prob")
        return ir.apply("sub", g, ir.apply("mul", prob, context.name(total, "grad_sum")))

    return elementwise(context.shape, context.dtype, formula, wide, result, total)


@lowers("logsumexp.default")
def logsumexp(context: Context, value: Value, dims: Any, keepdim: bool = False) -> Value:
    """`log(sum(exp(x - m))) + m` with `m = max(x)`, or 0 where that is infinite."""
    compute = context.compute
    chosen = all_dims(value, dims)
    wide = elementwise(value.shape, context.dtype, lambda x: ir.cast(x, compute), value)

    def finite(m: ir.Node) -> ir.Node:
        infinite = ir.apply("eq", ir.apply("abs", m), ir.const(float("inf"), compute))
        return ir.apply("where", infinite, ir.const(0, compute), m)

    def shift(keepdim: bool) -> Value:
        largest = reduction("max", wide, chosen, keepdim)
        return elementwise(largest.shape, context.dtype, finite, largest)

    exponential = elementwise(
        value.shape, context.dtype, lambda x, m: ir.apply("exp", ir.apply("sub", x, m)), wide, shift(True)
    )
    total = reduction("sum", exponential, chosen, keepdim)
    return elementwise(
        context.shape, context.dtype, lambda s, m: ir.apply("add", ir.apply("log", s), m), total, shift(keepdim)
    )
