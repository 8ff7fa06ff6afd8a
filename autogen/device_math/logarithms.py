"""Logarithms, and functions that are computed from them."""

import triton
import triton.language as tl
from triton.language import core  # Triton 3.6 has `to_tensor` only there

from autogen.device_math.basic import INTERPRETED, log2_far, maximum, neg, polynomial, product_plus
from autogen.device_math.exponentials import exp_nonpositive

# (log1p(m) - m) / m^2 for -1/4 <= m <= 1/2, for 0 <= m <= 1, and for -1/2 <= m <= 0
_LOG1P_32 = tl.constexpr((
    -0.04490847000, 0.1044823007, -0.1316223898, 0.1448208696, -0.1664777056, 0.1999060507, -0.2500005429,
    0.3333345448, -0.5000000083,
))  # fmt: skip
_LOG1P_UNIT_32 = tl.constexpr((
    -0.003318473912, 0.02020458879, -0.05766444660, 0.1068055519, -0.1535539572, 0.1969540018, -0.2495858731,
    0.3333051131, -0.4999993276,
))  # fmt: skip
_LOG1P_NEGATIVE_32 = tl.constexpr((
    -1.745938321, -2.482310888, -1.976703777, -0.5953625844, -0.3410459246, 0.1756902851, -0.2518885191,
    0.3332621518, -0.5000009169,
))  # fmt: skip


@triton.jit
def _exponent_bits(x: tl.tensor) -> tl.tensor:
    """`e`, where the exponent of a number is, for a normal number `x = 2^e (1 + m)` with `1 + m` in [0.75, 1.5)."""
    return (x.to(tl.int32, bitcast=True) - 0x3F400000) & -0x00800000


@triton.jit
def _log_of_parts(e_bits: tl.tensor, m: tl.tensor) -> tl.tensor:
    """`log(2^e (1 + m))`"""
    log2_of_bit = 8.262958294867817e-08  # log(2) / 2^23
    return product_plus(e_bits.to(tl.float32), log2_of_bit, product_plus(m * m, polynomial(m, _LOG1P_32), m))


@triton.jit
def _or_special(result: tl.tensor, x: tl.tensor) -> tl.tensor:
    """The logarithm of x: `result` for a finite `x > 0`."""
    is_finite = x.to(tl.uint32, bitcast=True) < 0x7F800000  # and no sign bit
    result = tl.where(is_finite, result, tl.where(x < 0, float("nan"), x))
    return tl.where(x == 0, float("-inf"), result)


@triton.jit
def log(x: tl.tensor) -> tl.tensor:
    """Natural logarithm within 2 ulp."""
    if x.dtype == tl.float64:
        return tl.log(x)
    else:
        small = x < 1.1754943508222875e-38
        normal = tl.where(small, x * 8388608.0, x)
        e_bits = _exponent_bits(normal)
        m = (normal.to(tl.int32, bitcast=True) - e_bits).to(tl.float32, bitcast=True) - 1.0
        return _or_special(_log_of_parts(tl.where(small, e_bits - 23 * 0x00800000, e_bits), m), x)


@triton.jit
def log2(x: tl.tensor) -> tl.tensor:
    """Logarithm to base 2 within 1 ulp."""
    return tl.log2(x.to(tl.float64)).to(x.dtype) if INTERPRETED else tl.log2(x)


@triton.jit
def log1p_finite(x: tl.tensor) -> tl.tensor:
    """`log(1 + x)` within 2 ulp for finite `x > -1`."""
    u = 1.0 + x
    if x.dtype == tl.float64:
        # The logarithm of the rounded sum, and what the rounding lost.
        return log(u) + (x - (u - 1.0)) / u
    else:
        e_bits = _exponent_bits(u)
        scale = (0x40800000 - e_bits).to(tl.float32, bitcast=True)  # 4 * 2^-e, normal even if 2^-e is not
        return _log_of_parts(e_bits, product_plus(x * scale, 0.25, product_plus(scale, 0.25, -1.0)))


@triton.jit
def log1p_unit(x: tl.tensor) -> tl.tensor:
    """`log(1 + x)` within 2 ulp for `0 <= x <= 1`, and nan."""
    if x.dtype == tl.float64:
        return log1p_finite(x)
    else:
        return product_plus(x * x, polynomial(x, _LOG1P_UNIT_32), x)


@triton.jit
def log1p(x: tl.tensor) -> tl.tensor:
    """`log(1 + x)` within 2 ulp."""
    if x.dtype == tl.float64:
        result = tl.where(x < float("inf"), log1p_finite(x), x)
        return tl.where(x > -1.0, result, tl.where(x == -1.0, float("-inf"), float("nan")))
    else:
        return _or_special(log1p_finite(x), 1.0 + x)


@triton.jit
def _log_pair(x: tl.tensor, coefficients: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """`max(log(q), -100)` within 5 ulp, nan for `q < 0`, and `log(1 - q)` of the lesser `q` of `x` and `1 - x`.

    coefficients: of `(log1p(m) - m) / m^2` for `-1/2 <= m <= 0`.
    """
    q = tl.minimum(x, 1.0 - x)
    m = neg(q)
    log_q = log2_far(q) * 0.6931471805599453
    return maximum(log_q, -100.0), product_plus(m * m, polynomial(m, coefficients), m)


@triton.jit
def clamped_log(x: tl.tensor, coefficients: tl.constexpr = _LOG1P_NEGATIVE_32) -> tl.tensor:
    """`max(log(x), -100)` within 5 ulp for `0 <= x <= 1`; nan for `x < 0`."""
    if x.dtype == tl.float64:
        return maximum(log(x), -100.0)
    else:
        log_lesser, log_greater = _log_pair(x, coefficients)
        return tl.where(x > 0.5, log_greater, log_lesser)


@triton.jit
def clamped_log1m(x: tl.tensor, coefficients: tl.constexpr = _LOG1P_NEGATIVE_32) -> tl.tensor:
    """`max(log(1 - x), -100)` within 5 ulp for `0 <= x <= 1`, by what `clamped_log(x)` computes; nan for `x > 1`."""
    if x.dtype == tl.float64:
        return maximum(log1p(-x), -100.0)
    else:
        log_lesser, log_greater = _log_pair(x, coefficients)
        return tl.where(x > 0.5, log_lesser, log_greater)


@triton.jit
def log10(x: tl.tensor) -> tl.tensor:
    """Logarithm to base 10 within 3 ulp."""
    return log2(x) * 0.30102999566398120


@triton.jit
def logaddexp(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """`log(e^a + e^b)` within 2 ulp, of 1 where the result is smaller."""
    distance = tl.where(a == b, 0.0, tl.abs(a - b))  # also between two infinities
    return maximum(a, b) + log1p_unit(exp_nonpositive(-distance))


@triton.jit
def logcumsumexp(x: tl.tensor, axis: tl.constexpr, reverse: tl.constexpr = False) -> tl.tensor:
    """`log(sum(e^x))` over the places of an axis up to each, or from each on."""
    return tl.associative_scan(x, axis, logaddexp, reverse=reverse)


@triton.jit
def times_log(x: tl.tensor, y: tl.tensor, log_y: tl.tensor) -> tl.tensor:
    """`x log_y`; 0 for `x = 0`, unless `y` is nan."""
    return tl.where((x == 0) & (y == y), 0.0, x * log_y)


@triton.jit
def xlogy(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x log(y)` within 3 ulp; 0 for `x = 0`, unless `y` is nan."""
    x, y = tl.broadcast(core.to_tensor(x), core.to_tensor(y))
    return times_log(x, y, log(y))


@triton.jit
def xlog1py(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x log(1 + y)` within 3 ulp; 0 for `x = 0`, unless `y` is nan."""
    x, y = tl.broadcast(core.to_tensor(x), core.to_tensor(y))
    return times_log(x, y, log1p(y))


@triton.jit
def _log1p_exp(x: tl.tensor) -> tl.tensor:
    """`log(1 + e^-|x|)`"""
    return log1p_unit(exp_nonpositive(-tl.abs(x)))


@triton.jit
def log_sigmoid(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(x))` within 4 ulp, also where it is tiny."""
    return tl.minimum(x, 0.0) - _log1p_exp(x)


@triton.jit
def log_sigmoid_neg(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(-x))` within 4 ulp, with the exponential and the logarithm of `log(sigmoid(x))`."""
    return tl.minimum(-x, 0.0) - _log1p_exp(x)
