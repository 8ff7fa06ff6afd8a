"""Cheaper functions for results in half precision, whose rounding is much more than the errors of these.

They take a third of the instructions. What is no normal number is 0.
"""

import triton
import triton.language as tl
from triton.language import core  # Triton 3.6 has `to_tensor` only there

from autogen.device_math.basic import exp2_normal, log2_far, polynomial, reciprocal_normal
from autogen.device_math.logarithms import clamped_log, clamped_log1m, log, log_sigmoid, log_sigmoid_neg, times_log

# log1p(x) / x for 0 <= x <= 1, within 2^-16
_LOG1P_UNIT = tl.constexpr((-0.023869155, 0.101222292, -0.21004869, 0.325206667, -0.499361366, 0.999991596))
# log1p(m) / m for -1/4 <= m <= 1/4, within 2^-19: logarithms are subtracted
_LOG1P = tl.constexpr((-0.1809686848, 0.2141953344, -0.2495572917, 0.3329942172, -0.5000033130, 1.000001189))
# (log1p(m) - m) / m^2 for -1/2 <= m <= 0, so that log1p(m) is within 2^-17
_LOG1P_NEGATIVE = tl.constexpr((-0.8238963554, -0.2804432261, -0.3882232732, 0.3169210859, -0.5006147904))


@triton.jit
def exp_half(x: tl.tensor) -> tl.tensor:
    """`e^x` within 2^-17, by the rounding of `x log2(e)`."""
    return tl.exp(x) if x.dtype == tl.float64 else exp2_normal(x * 1.4426950408889634)


@triton.jit
def sigmoid_half(x: tl.tensor) -> tl.tensor:
    """`1 / (1 + e^-x)` within 2^-17, also where it is tiny."""
    return reciprocal_normal(1.0 + exp_half(-x))


@triton.jit
def sigmoid_neg_half(x: tl.tensor) -> tl.tensor:
    """`sigmoid(-x)` within 2^-17, also where it is tiny."""
    return reciprocal_normal(1.0 + exp_half(x))


@triton.jit
def _log1p_exp_half(x: tl.tensor) -> tl.tensor:
    """`log(1 + e^-|x|)` within 2^-16."""
    z = exp_half(-tl.abs(x))
    return z * polynomial(z, _LOG1P_UNIT)


@triton.jit
def log_sigmoid_half(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(x))` within 2^-16, also where it is tiny."""
    return log_sigmoid(x) if x.dtype == tl.float64 else tl.minimum(x, 0.0) - _log1p_exp_half(x)


@triton.jit
def log_sigmoid_neg_half(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(-x))` within 2^-16, also where it is tiny."""
    return log_sigmoid_neg(x) if x.dtype == tl.float64 else tl.minimum(-x, 0.0) - _log1p_exp_half(x)


@triton.jit
def log_half(x: tl.tensor) -> tl.tensor:
    """Natural logarithm within 2^-19, also near 1."""
    if x.dtype == tl.float64:
        return log(x)
    else:
        m = x - 1.0
        return tl.where(tl.abs(m) < 0.25, m * polynomial(m, _LOG1P), log2_far(x) * 0.6931471805599453)


@triton.jit
def xlogy_half(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x log(y)` within 2^-19; 0 for `x = 0`, unless `y` is nan."""
    x, y = tl.broadcast(core.to_tensor(x), core.to_tensor(y))
    return times_log(x, y, log_half(y))


@triton.jit
def clamped_log_half(x: tl.tensor) -> tl.tensor:
    """`max(log(x), -100)` within 2^-17 for `0 <= x <= 1`; nan for `x < 0`."""
    return clamped_log(x, _LOG1P_NEGATIVE)


@triton.jit
def clamped_log1m_half(x: tl.tensor) -> tl.tensor:
    """`max(log(1 - x), -100)` within 2^-17 for `0 <= x <= 1`; nan for `x > 1`."""
    return clamped_log1m(x, _LOG1P_NEGATIVE)
