"""Choosing, rounding, remainders, roots, exponentials and logarithms, sigmoid and tanh."""

import triton
import triton.language as tl

# The interpreter walks a custom combine function element by element, a hundred times slower than its own max, and
# NumPy's functions in single precision, on which it builds, are biased; its logarithm is wrong by up to 4 ulp.
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)

# (expm1(r) - r) / r^2 for |r| <= ln(2) / 2
_EXPM1_32 = tl.constexpr((0.0001991427951, 0.001394103618, 0.008333272840, 0.04166635434, 0.1666666682, 0.5000000046))
_EXPM1_64 = tl.constexpr((
    2.09244774230766026e-9, 2.51090748330184098e-8, 2.75572426349295629e-7, 2.75572441032156796e-6,
    2.48015873607295499e-5, 0.000198412698862289396, 0.00138888888888667277, 0.00833333333332159139,
    0.0416666666666667017, 0.166666666666666766, 0.5,
))  # fmt: skip
# (log1p(m) - m) / m^2 for -1/4 <= m <= 1/2
_LOG1P_32 = tl.constexpr((
    -0.04490847000, 0.1044823007, -0.1316223898, 0.1448208696, -0.1664777056, 0.1999060507, -0.2500005429,
    0.3333345448, -0.5000000083,
))  # fmt: skip
# (tanh(x) / x - 1) / x^2 as a polynomial in x^2, for |x| <= 0.55
_TANH_32 = tl.constexpr((-0.006274217732, 0.02107166662, -0.05385230823, 0.1333258615, -0.3333331756))
_TANH_64 = tl.constexpr((
    -1.94946570070810730e-5, 8.33163966271066599e-5, -0.000233381528109350162, 0.000588444470519365855,
    -0.00145554284155679901, 0.00359209202970242841, -0.00886323260135792404, 0.0218694883858499345,
    -0.0539682539637603738, 0.133333333333266204, -0.333333333333332984,
))  # fmt: skip


@triton.jit
def polynomial(x: tl.tensor, coefficients: tl.constexpr) -> tl.tensor:
    """Horner's rule, highest power first."""
    y = x * coefficients.value[0] + coefficients.value[1]
    for i in tl.static_range(2, len(coefficients.value)):
        y = y * x + coefficients.value[i]
    return y


@triton.jit
def signbit(x: tl.tensor) -> tl.tensor:
    """Whether the sign bit is set, as it is in -0.0."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def copysign(magnitude: tl.tensor, x: tl.tensor) -> tl.tensor:
    """`|magnitude|` with the sign of `x`, also if 0; Triton's negation is `0 - x`, which makes no -0.0."""
    magnitude, x = tl.broadcast(tl.to_tensor(magnitude), tl.to_tensor(x))
    if magnitude.dtype == tl.float64:
        bits = magnitude.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
        sign_bit = x.to(tl.int64, bitcast=True) & -0x8000000000000000
        return (bits | sign_bit).to(tl.float64, bitcast=True)
    else:
        bits = magnitude.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        sign_bit = x.to(tl.int32, bitcast=True) & -0x80000000
        return (bits | sign_bit).to(tl.float32, bitcast=True)


# Choosing and rounding: exact.


@triton.jit
def maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The greater number; nan if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The lesser number; nan if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max_over(x: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """The maximum over an axis; nan if there is one."""
    if not _INTERPRETED:
        return tl.reduce(x, axis, maximum)
    elif x.dtype.is_floating():
        has_nan = tl.max((x != x).to(tl.int32), axis)
        greatest = tl.max(tl.where(x != x, float("-inf"), x), axis)
        return tl.where(has_nan > 0, float("nan"), greatest)
    else:
        return tl.max(x, axis)


@triton.jit
def min_over(x: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """The minimum over an axis; nan if there is one."""
    if not _INTERPRETED:
        return tl.reduce(x, axis, minimum)
    elif x.dtype.is_floating():
        has_nan = tl.max((x != x).to(tl.int32), axis)
        least = tl.min(tl.where(x != x, float("inf"), x), axis)
        return tl.where(has_nan > 0, float("nan"), least)
    else:
        return tl.min(x, axis)


@triton.jit
def one_condition(x: tl.tensor) -> tl.tensor:
    """A condition that there is one of, beside many: the interpreter makes floats of the result of comparing floats."""
    if _INTERPRETED:
        return x.to(tl.int32) != 0
    else:
        return x


@triton.jit
def round_to_float16(x: tl.tensor) -> tl.tensor:
    """`x`, rounded to single and then to half precision, ties to even."""
    return x.to(tl.float32).to(tl.float16).to(x.dtype)


@triton.jit
def round_to_bfloat16(x: tl.tensor) -> tl.tensor:
    """`x`, rounded to single precision and then to bfloat16, ties to even: on the bits, as the interpreter cuts."""
    single = x.to(tl.float32)
    bits = single.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return tl.where(single != single, single, rounded.to(tl.float32, bitcast=True)).to(x.dtype)


@triton.jit
def relu(x: tl.tensor) -> tl.tensor:
    """`maximum(x, 0)`."""
    return maximum(x, 0).to(x.dtype)


@triton.jit
def sign(x: tl.tensor) -> tl.tensor:
    """-1, 0 or 1; 0 for nan, as in torch."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def isnan(x: tl.tensor) -> tl.tensor:
    """Whether `x` is nan."""
    # The interpreter forgets that a comparison of scalars is a bool.
    return tl.where(x != x, True, False) if _INTERPRETED else x != x


@triton.jit
def isinf(x: tl.tensor) -> tl.tensor:
    """Whether `x` is infinite."""
    return tl.abs(x) == float("inf")


@triton.jit
def isfinite(x: tl.tensor) -> tl.tensor:
    """Whether `x` is neither infinite nor nan."""
    return tl.abs(x) < float("inf")


@triton.jit
def floor(x: tl.tensor) -> tl.tensor:
    """The greatest integer that is not greater."""
    below = tl.floor(x)
    # NVIDIA's instruction takes a negative denormal for 0.
    return tl.where(below > x, -1.0, below)


@triton.jit
def ceil(x: tl.tensor) -> tl.tensor:
    """The least integer that is not less."""
    above = tl.ceil(x)
    # NVIDIA's instruction takes a positive denormal for 0.
    return tl.where(above < x, 1.0, above)


@triton.jit
def trunc(x: tl.tensor) -> tl.tensor:
    """The integer part."""
    return copysign(tl.floor(tl.abs(x)), x)


@triton.jit
def round(x: tl.tensor) -> tl.tensor:
    """The nearest integer, the even one of two."""
    # From 2^23 (2^52) on all numbers are integers; added to a smaller one, it leaves no place for a fraction.
    integers: tl.constexpr = 4503599627370496.0 if x.dtype == tl.float64 else 8388608.0
    magnitude = tl.abs(x)
    return tl.where(magnitude < integers, copysign((magnitude + integers) - integers, x), x)


# Division with a remainder.


@triton.jit
def _exponent(x: tl.tensor) -> tl.tensor:
    """`floor(log2(x))` of a positive number."""
    if x.dtype == tl.float64:
        denormal = x < 2.2250738585072014e-308
        bits = tl.where(denormal, x * 18014398509481984.0, x).to(tl.int64, bitcast=True)
        return (bits >> 52).to(tl.int32) - tl.where(denormal, 1023 + 54, 1023)
    else:
        denormal = x < 1.1754943508222875e-38
        bits = tl.where(denormal, x * 16777216.0, x).to(tl.int32, bitcast=True)
        return (bits >> 23) - tl.where(denormal, 127 + 24, 127)


@triton.jit
def _times_power_of_two(x: tl.tensor, n: tl.tensor) -> tl.tensor:
    """`x * 2^n`, in three steps as `2^n` itself may overflow."""
    third = n // 3
    if x.dtype == tl.float64:
        step = ((third + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
        last = ((n - 2 * third + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)
    else:
        step = ((third + 127) << 23).to(tl.float32, bitcast=True)
        last = ((n - 2 * third + 127) << 23).to(tl.float32, bitcast=True)
    return x * step * step * last


@triton.jit
def _any(condition: tl.tensor) -> tl.tensor:
    """Whether a condition holds anywhere in a block."""
    if condition.type.is_block():
        return tl.max(condition.to(tl.int32)) > 0
    else:
        return condition


@triton.jit
def fmod(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """`a - b * trunc(a / b)`, with the sign of `a`. Exact."""
    if (a + b).dtype.is_floating():
        rest, divisor = tl.broadcast(tl.abs(a), tl.abs(b))
        valid = (rest < float("inf")) & (divisor > 0)
        unfinished = valid & (rest >= divisor)
        # Binary long division: divisor * 2^n in (rest / 2, rest] can be subtracted without rounding.
        while _any(unfinished):
            n = tl.where(unfinished, _exponent(rest) - _exponent(divisor), 0)
            multiple = _times_power_of_two(divisor, n)
            multiple = tl.where(multiple > rest, multiple * 0.5, multiple)
            rest = tl.where(unfinished, rest - multiple, rest)
            unfinished = valid & (rest >= divisor)
        return tl.where(valid, copysign(rest, tl.to_tensor(a)), float("nan"))
    else:
        return a % b


@triton.jit
def remainder(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """`a - b * floor(a / b)`, with the sign of `b`. Rounded once."""
    rest = fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def floor_divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """`floor(a / b)`, of the quotient before it is rounded."""
    rest = fmod(a, b)
    down = (rest != 0) & ((rest < 0) != (b < 0))
    if rest.dtype.is_floating():
        quotient = (a - rest) / b if rest.dtype == tl.float64 else tl.div_rn(a - rest, b)
        quotient = tl.where(down, quotient - 1.0, quotient)
        return tl.where(b == 0, a / b, round(quotient))
    else:
        return a // b - down.to(rest.dtype)


# Roots, exponentials and logarithms.


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
def nearest_power_of_two(t: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The integer nearest to `t` and 2 to its power, for integers that are exponents of normal numbers."""
    # 1.5 * 2^23 (2^52) added, the integer is in the low bits, from where it is shifted into an exponent.
    if t.dtype == tl.float64:
        shifted = t + 6755399441055744.0
        power = ((shifted.to(tl.int64, bitcast=True) << 52) + 0x3FF0000000000000).to(tl.float64, bitcast=True)
        return shifted - 6755399441055744.0, power
    else:
        shifted = t + 12582912.0
        power = ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F800000).to(tl.float32, bitcast=True)
        return shifted - 12582912.0, power


@triton.jit
def _minus_ln2(x: tl.tensor, n: tl.tensor) -> tl.tensor:
    """`x - n ln(2)` for integers `n`; ln(2) is in two parts, the first short enough for an exact product."""
    if x.dtype == tl.float64:
        return (x - n * 0.6931471805598903) - n * 5.497923018708371e-14
    else:
        return (x - n * 0.693145751953125) - n * 1.4286068203094173e-06


@triton.jit
def _exp2_fraction(x: tl.tensor) -> tl.tensor:
    """`2^x` of a small number."""
    return tl.exp2(x.to(tl.float64)).to(x.dtype) if _INTERPRETED else tl.exp2(x)


@triton.jit
def exp_factors(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Two factors of `e^x`, the second a power of 2."""
    # What is beyond the normal powers of 2 stays in the first factor.
    limit: tl.constexpr = 708.0 if x.dtype == tl.float64 else 87.0
    n, power = nearest_power_of_two(tl.minimum(tl.maximum(x, -limit), limit) * 1.4426950408889634)
    return _exp2_fraction(_minus_ln2(x, n) * 1.4426950408889634), power


@triton.jit
def exp(x: tl.tensor) -> tl.tensor:
    """`e^x` within 3 ulp."""
    fraction, power = exp_factors(x)
    return fraction * power


@triton.jit
def exp2(x: tl.tensor) -> tl.tensor:
    """`2^x` within 2 ulp."""
    limit: tl.constexpr = 1022.0 if x.dtype == tl.float64 else 126.0
    n, power = nearest_power_of_two(tl.minimum(tl.maximum(x, -limit), limit))
    return _exp2_fraction(x - n) * power


@triton.jit
def expm1(x: tl.tensor) -> tl.tensor:
    """`e^x - 1` within 2 ulp."""
    # Below -50 the result is -1, above 710 (89) infinite.
    top: tl.constexpr = 710.0 if x.dtype == tl.float64 else 89.0
    x = maximum(minimum(x, top), -50.0)
    # Half of 2^n, as 2^n may overflow where the result does not.
    n, half = nearest_power_of_two(x * 1.4426950408889634 - 1.0)
    r = _minus_ln2(x, n + 1.0)
    series = polynomial(r, _EXPM1_64) if x.dtype == tl.float64 else polynomial(r, _EXPM1_32)
    return 2.0 * (half * (r + r * r * series) + (half - 0.5))


@triton.jit
def log(x: tl.tensor) -> tl.tensor:
    """Natural logarithm within 1 ulp."""
    return tl.log(x.to(tl.float64)).to(x.dtype) if _INTERPRETED else tl.log(x)


@triton.jit
def log2(x: tl.tensor) -> tl.tensor:
    """Logarithm to base 2 within 1 ulp."""
    return tl.log2(x.to(tl.float64)).to(x.dtype) if _INTERPRETED else tl.log2(x)


@triton.jit
def log1p_finite(x: tl.tensor) -> tl.tensor:
    """`log(1 + x)` within 2 ulp for finite `x > -1`."""
    u = 1.0 + x
    if x.dtype == tl.float64:
        # The logarithm of the rounded sum, and what the rounding lost.
        return log(u) + (x - (u - 1.0)) / u
    else:
        # 1 + x = 2^e (1 + m), where 1 + m in [0.75, 1.5); 4 * 2^-e is a normal number even if 2^-e is not.
        e_bits = (u.to(tl.int32, bitcast=True) - 0x3F400000) & -0x00800000
        scale = (0x40800000 - e_bits).to(tl.float32, bitcast=True)
        m = x * scale * 0.25 + (scale * 0.25 - 1.0)
        e = e_bits.to(tl.float32) * 1.1920928955078125e-07
        return e * 0.6931471805599453 + (m + m * m * polynomial(m, _LOG1P_32))


@triton.jit
def log1p(x: tl.tensor) -> tl.tensor:
    """`log(1 + x)` within 2 ulp."""
    result = tl.where(x < float("inf"), log1p_finite(x), x)
    return tl.where(x > -1.0, result, tl.where(x == -1.0, float("-inf"), float("nan")))


@triton.jit
def log10(x: tl.tensor) -> tl.tensor:
    """Logarithm to base 10 within 3 ulp."""
    return log2(x) * 0.30102999566398120


@triton.jit
def logaddexp(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """`log(e^a + e^b)` within 2 ulp, of 1 where the result is smaller."""
    distance = tl.where(a == b, 0.0, tl.abs(a - b))  # also between two infinities
    return maximum(a, b) + log1p_finite(exp(-distance))


@triton.jit
def xlogy(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x log(y)` within 3 ulp; 0 for `x = 0`, unless `y` is nan."""
    x, y = tl.broadcast(tl.to_tensor(x), tl.to_tensor(y))
    return tl.where((x == 0) & (y == y), 0.0, x * log(y))


@triton.jit
def xlog1py(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x log(1 + y)` within 3 ulp; 0 for `x = 0`, unless `y` is nan."""
    x, y = tl.broadcast(tl.to_tensor(x), tl.to_tensor(y))
    return tl.where((x == 0) & (y == y), 0.0, x * log1p(y))


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """`1 / (1 + e^-x)` within 7 ulp, also where it is tiny."""
    z = exp(-tl.abs(x))
    return tl.where(x < 0, z, 1.0) / (1.0 + z)


@triton.jit
def log_sigmoid(x: tl.tensor) -> tl.tensor:
    """`log(sigmoid(x))` within 4 ulp, also where it is tiny."""
    return tl.minimum(x, 0.0) - log1p_finite(exp(-tl.abs(x)))


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic tangent within 3 ulp."""
    a = tl.abs(x)
    z = x * x
    series = polynomial(z, _TANH_64) if x.dtype == tl.float64 else polynomial(z, _TANH_32)
    far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0)
    return tl.where(a < 0.55, x + x * z * series, copysign(far, x))
