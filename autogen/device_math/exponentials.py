"""Square roots, exponentials, sigmoid and tanh."""

import triton
import triton.language as tl

from autogen.device_math.basic import (
    copysign,
    exp2_normal,
    fma,
    maximum,
    minimum,
    polynomial,
    product_plus,
    reciprocal_normal,
)

# (expm1(r) - r) / r^2 for |r| <= ln(2) / 2
_EXPM1_32 = tl.constexpr((0.0001991427951, 0.001394103618, 0.008333272840, 0.04166635434, 0.1666666682, 0.5000000046))
_EXPM1_64 = tl.constexpr((
    2.09244774230766026e-9, 2.51090748330184098e-8, 2.75572426349295629e-7, 2.75572441032156796e-6,
    2.48015873607295499e-5, 0.000198412698862289396, 0.00138888888888667277, 0.00833333333332159139,
    0.0416666666666667017, 0.166666666666666766, 0.5,
))  # fmt: skip
# (tanh(x) / x - 1) / x^2 as a polynomial in x^2, for |x| <= 0.55
_TANH_32 = tl.constexpr((-0.006274217732, 0.02107166662, -0.05385230823, 0.1333258615, -0.3333331756))
_TANH_64 = tl.constexpr((
    -1.94946570070810730e-5, 8.33163966271066599e-5, -0.000233381528109350162, 0.000588444470519365855,
    -0.00145554284155679901, 0.00359209202970242841, -0.00886323260135792404, 0.0218694883858499345,
    -0.0539682539637603738, 0.133333333333266204, -0.333333333333332984,
))  # fmt: skip


@triton.jit
def sqrt(x: tl.tensor) -> tl.tensor:
    """Square root, correctly rounded."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def rsqrt(x: tl.tensor) -> tl.tensor:
    """`1 / sqrt(x)` within 2 ulp."""
    if x.dtype == tl.float64:
        return tl.rsqrt(x)
    else:
        # NVIDIA's instruction takes a denormal for 0.
        small = x < 1.1754943508222875e-38
        return tl.rsqrt(tl.where(small, x * 16777216.0, x)) * tl.where(small, 4096.0, 1.0)


@triton.jit
def nearest_power_of_two(x: tl.tensor, factor: tl.constexpr = 1.0) -> tuple[tl.tensor, tl.tensor]:
    """`-n` and `2^n` for the integer `n` nearest to `x * factor`, which is the exponent of a normal number."""
    # 1.5 * 2^23 (2^52) added, the integer is in the low bits, from where it is shifted into an exponent. It is negated
    # by a subtraction, as Triton's negation is one too.
    if x.dtype == tl.float64:
        shifted = x * factor + 6755399441055744.0
        power = ((shifted.to(tl.int64, bitcast=True) << 52) + 0x3FF0000000000000).to(tl.float64, bitcast=True)
        return 6755399441055744.0 - shifted, power
    else:
        shifted = product_plus(x, factor, 12582912.0)
        power = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
        return 12582912.0 - shifted, power


@triton.jit
def _plus_ln2(x: tl.tensor, n: tl.tensor) -> tl.tensor:
    """`x + n ln(2)` for integers `n`; ln(2) is in two parts, the first short enough for an exact product."""
    if x.dtype == tl.float64:
        return (x + n * 0.6931471805598903) + n * 5.497923018708371e-14
    else:
        return product_plus(n, 1.4286068203094173e-06, product_plus(n, 0.693145751953125, x))


@triton.jit
def _exp_fraction(x: tl.tensor, minus_n: tl.tensor) -> tl.tensor:
    """`e^x / 2^n`"""
    if x.dtype == tl.float64:
        return exp2_normal(_plus_ln2(x, minus_n) * 1.4426950408889634)
    else:
        # log2(e) in two numbers
        return exp2_normal(fma(x, 1.925963033500011e-08, fma(x, 1.4426950216293335, minus_n)))


@triton.jit
def exp_factors(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Two factors of `e^x`, the second a power of 2."""
    # What is beyond the normal powers of 2 stays in the first factor.
    limit: tl.constexpr = 708.0 if x.dtype == tl.float64 else 87.0
    minus_n, power = nearest_power_of_two(tl.minimum(tl.maximum(x, -limit), limit), 1.4426950408889634)
    return _exp_fraction(x, minus_n), power


@triton.jit
def exp(x: tl.tensor) -> tl.tensor:
    """`e^x` within 3 ulp."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        fraction, power = exp_factors(x)
        return fraction * power


@triton.jit
def exp_nonpositive(x: tl.tensor) -> tl.tensor:
    """`e^x` within 3 ulp for `x <= 0`, and rounding errors above."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        minus_n, power = nearest_power_of_two(tl.maximum(x, -87.0), 1.4426950408889634)
        return _exp_fraction(x, minus_n) * power


@triton.jit
def exp_summand(x: tl.tensor) -> tl.tensor:
    """`e^x` for `x <= 0` within 3 ulp of 1, for sums of at least 1: to round `x log2(e)` costs `2^-24 |x| e^x`."""
    return tl.exp(x) if x.dtype == tl.float64 else exp2_normal(x * 1.4426950408889634)


@triton.jit
def exp2(x: tl.tensor) -> tl.tensor:
    """`2^x` within 3 ulp."""
    if x.dtype == tl.float64:
        return tl.exp2(x)
    else:
        minus_n, power = nearest_power_of_two(tl.minimum(tl.maximum(x, -126.0), 126.0))
        return exp2_normal(x + minus_n) * power


@triton.jit
def expm1(x: tl.tensor) -> tl.tensor:
    """`e^x - 1` within 2 ulp."""
    # Below -50 the result is -1, above 710 (89) infinite.
    top: tl.constexpr = 710.0 if x.dtype == tl.float64 else 89.0
    x = maximum(minimum(x, top), -50.0)
    # Half of 2^n, as 2^n may overflow where the result does not.
    minus_n, half = nearest_power_of_two(x * 1.4426950408889634 - 1.0)
    r = _plus_ln2(x, minus_n - 1.0)
    series = polynomial(r, _EXPM1_64) if x.dtype == tl.float64 else polynomial(r, _EXPM1_32)
    return 2.0 * product_plus(half, product_plus(r * r, series, r), half - 0.5)


@triton.jit
def _sigmoid_of(x: tl.tensor, is_tail: tl.tensor) -> tl.tensor:
    """`e^-|x| / (1 + e^-|x|)` where that is what is wanted, else `1 / (1 + e^-|x|)`."""
    z = exp_nonpositive(-tl.abs(x))
    return tl.where(is_tail, z, 1.0) * reciprocal_normal(1.0 + z)


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """`1 / (1 + e^-x)` within 7 ulp, also where it is tiny."""
    return _sigmoid_of(x, x < 0)


@triton.jit
def sigmoid_neg(x: tl.tensor) -> tl.tensor:
    """`sigmoid(-x)` within 7 ulp, with the exponential of `sigmoid(x)`."""
    return _sigmoid_of(x, x > 0)


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic tangent within 3 ulp."""
    a = tl.abs(x)
    z = x * x
    series = polynomial(z, _TANH_64) if x.dtype == tl.float64 else polynomial(z, _TANH_32)
    far = 1.0 - 2.0 * reciprocal_normal(exp(2.0 * a) + 1.0)
    return tl.where(a < 0.55, product_plus(x * z, series, x), copysign(far, x))
