"""Functions for results in half precision: a third of the instructions, and a rounding of such a result is much more
than their errors. What is no normal number is 0.
"""

import triton.language as tl

from autogen.device_math.basic import exp2_normal, polynomial, reciprocal_normal
from autogen.device_math.device import device
from autogen.device_math.logarithms import log_sigmoid, log_sigmoid_neg

# log1p(x) / x for 0 <= x <= 1, within 2^-16
_LOG1P_UNIT = tl.constexpr((-0.023869155, 0.101222292, -0.21004869, 0.325206667, -0.499361366, 0.999991596))


@device
def exp_half(x: tl.tensor) -> tl.tensor:
    """`e^x` within 2^-17, by the rounding of `x log2(e)`."""
    return tl.exp(x) if x.dtype == tl.float64 else exp2_normal(x * 1.4426950408889634)


@device
def sigmoid_half(x: tl.tensor) -> tl.tensor:
    """`1 / (1 + e^-x)` within 2^-17, also where it is tiny."""
    return reciprocal_normal(1.0 + exp_half(-x))


@device
def sigmoid_neg_half(x: tl.tensor) -> tl.tensor:
    """`sigmoid(-x)` within 2^-17, also where it is tiny."""
    return reciprocal_normal(1.0 + exp_half(x))


@device
def _log1p_exp_half(x: tl.tensor) -> tl.tensor:
    """`log(1 + e^-|x|)` within 2^-16."""
    z = exp_half(-tl.abs(x))
    return z * polynomial(z, _LOG1P_UNIT)


@device
def log_sigmoid_half(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(x))` within 2^-16, also where it is tiny."""
    return log_sigmoid(x) if x.dtype == tl.float64 else tl.minimum(x, 0.0) - _log1p_exp_half(x)


@device
def log_sigmoid_neg_half(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(-x))` within 2^-16, also where it is tiny."""
    return log_sigmoid_neg(x) if x.dtype == tl.float64 else tl.minimum(-x, 0.0) - _log1p_exp_half(x)
