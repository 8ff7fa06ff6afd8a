"""Less common functions: powers, trigonometric and hyperbolic functions and their inverses, distances.

The contract is that of `autogen.device_math`.
"""

import triton
import triton.language as tl
from triton.language import core  # Triton 3.6 has `to_tensor` only there

from autogen.device_math.basic import copysign, polynomial, product_plus, signbit
from autogen.device_math.exponentials import exp_factors, expm1, nearest_power_of_two, sqrt
from autogen.device_math.logarithms import log, log1p
from autogen.device_math.rounding import floor

# (3 atanh(s) / s - 3 - s^2) / s^4 as a polynomial in s^2, for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)
_ATANH_32 = tl.constexpr((0.3512802750, 0.4282069416, 0.6000022832))
_ATANH_64 = tl.constexpr((
    0.197947871360495059, 0.198851946196894752, 0.230801373723789061, 0.272726765212791806,
    0.333333337802050410, 0.428571428551477597, 0.600000000000033865,
))  # fmt: skip
# (f(x) / x - 1) / x^2 as a polynomial in x^2: atan for |x| <= 1, asin for |x| <= 1/2
_ATAN_32 = tl.constexpr((
    0.002920731968, -0.01636811162, 0.04321220168, -0.07552246870, 0.1066602165, -0.1421106001, 0.1999377343,
    -0.3333315276,
))  # fmt: skip
_ATAN_64 = tl.constexpr((
    1.32251199737147343e-5, -0.000152161226089271922, 0.000831323094977148933, -0.00288492069205509814,
    0.00719650477463739079, -0.0139005580591053833, 0.0219848461921319764, -0.0299038481449046081,
    0.0366419011833347047, -0.0421917829928772640, 0.0472232188844146782, -0.0525351842980410467,
    0.0588052778014865667, -0.0666640405045630164, 0.0769227983823212429, -0.0909090700288166507,
    0.111111110070187543, -0.142857142825748185, 0.199999999999514552, -0.333333333333330680,
))  # fmt: skip
_ASIN_32 = tl.constexpr((0.04216574885, 0.02417984404, 0.04547030740, 0.07495298278, 0.1666675246))
_ASIN_64 = tl.constexpr((
    0.0326279295344831154, -0.0209979669305571487, 0.0217066836202576750, 0.00370671783669066484,
    0.0107801723389150165, 0.0113989262837226539, 0.0139808188738333291, 0.0173516121487314554,
    0.0223722149804195712, 0.0303819427080280588, 0.0446428571746070824, 0.0749999999997080441,
    0.166666666666667604,
))  # fmt: skip


# Powers: y log2(x) needs half as many digits again as the result, so it is carried as a sum of two numbers.


@triton.jit
def high_half(x: tl.tensor) -> tl.tensor:
    """The first half of the digits: the product of two such numbers is exact."""
    if x.dtype == tl.float64:
        return (x.to(tl.int64, bitcast=True) & -0x08000000).to(tl.float64, bitcast=True)
    else:
        return (x.to(tl.int32, bitcast=True) & -0x1000).to(tl.float32, bitcast=True)


@triton.jit
def _log2_in_two(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """`log2(x)` for positive `x` as a sum of two numbers, the first with half the digits."""
    # x = 2^e m with sqrt(1/2) <= m < sqrt(2)
    if x.dtype == tl.float64:
        denormal = x < 2.2250738585072014e-308
        bits = tl.where(denormal, x * 18014398509481984.0, x).to(tl.int64, bitcast=True)
        e_bits = (bits - 0x3FE6A09E667F3BCD) & -0x0010000000000000
        m = (bits - e_bits).to(tl.float64, bitcast=True)
        e = (e_bits >> 52).to(tl.float64) - tl.where(denormal, 54.0, 0.0)
    else:
        denormal = x < 1.1754943508222875e-38
        bits = tl.where(denormal, x * 16777216.0, x).to(tl.int32, bitcast=True)
        e_bits = (bits - 0x3F3504F3) & -0x00800000
        m = (bits - e_bits).to(tl.float32, bitcast=True)
        e = (e_bits >> 23).to(tl.float32) - tl.where(denormal, 24.0, 0.0)
    # log2(m) = 2 / ln(2) atanh(s) for s = (m - 1) / (m + 1) = s1 + s2
    s = (m - 1.0) / (m + 1.0)
    s1 = high_half(s)
    d1 = high_half(m + 1.0)
    d2 = m - (d1 - 1.0)
    s2 = (((m - 1.0) - s1 * d1) - s1 * d2) / (m + 1.0)
    # 3 atanh(s) / s = 3 + s^2 + s^4 (...) = t1 + t2
    z = s * s
    series = polynomial(z, _ATANH_64) if x.dtype == tl.float64 else polynomial(z, _ATANH_32)
    rest = z * z * series + s2 * (s1 + s)
    t1 = high_half(3.0 + s1 * s1 + rest)
    t2 = rest - ((t1 - 3.0) - s1 * s1)
    # 3 atanh(s) = p1 + p2, to be multiplied by 2 / (3 ln(2)) = c1 + c2
    rest = s2 * t1 + t2 * s
    p1 = high_half(s1 * t1 + rest)
    p2 = rest - (p1 - s1 * t1)
    c1: tl.constexpr = 0.9617966860532761 if x.dtype == tl.float64 else 0.961669921875
    c2: tl.constexpr = 7.872699542894897e-09 if x.dtype == tl.float64 else 0.0001267720509756049
    rest = p1 * c2 + p2 * 0.9617966939259756
    high = high_half((p1 * c1 + rest) + e)
    return high, rest - ((high - e) - p1 * c1)


@triton.jit
def pow(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x^y` within 4 ulp, with C's rules for signs, infinities and nan."""
    x, y = tl.broadcast(core.to_tensor(x), core.to_tensor(y))
    a = tl.abs(x)
    # Beyond this exponent every result but that of a = 1 is 0 or infinite.
    limit: tl.constexpr = 18446744073709551616.0 if x.dtype == tl.float64 else 4294967296.0
    b = tl.minimum(tl.maximum(y, -limit), limit)
    high, low = _log2_in_two(a)
    b1 = high_half(b)
    rest = (b - b1) * high + b * low
    exponent: tl.constexpr = 1022.0 if x.dtype == tl.float64 else 126.0
    minus_n, power = nearest_power_of_two(tl.minimum(tl.maximum(b1 * high + rest, -exponent), exponent))
    result = tl.exp2((b1 * high + minus_n) + rest) * power
    at_bound = tl.where((a == 0) == (y < 0), float("inf"), 0.0)
    result = tl.where((a == 0) | (a == float("inf")), at_bound, result)
    integer = floor(y) == y
    odd = integer & (floor(y * 0.5) != y * 0.5)
    result = tl.where(signbit(x) & odd, -result, result)
    undefined = (x < 0) & (a < float("inf")) & ~integer
    result = tl.where(undefined | (x != x) | (y != y), float("nan"), result)
    return tl.where((x == 1) | (y == 0), 1.0, result)


# Trigonometric and hyperbolic functions and their inverses.


@triton.jit
def tan(x: tl.tensor) -> tl.tensor:
    """Tangent within 8 ulp."""
    return tl.sin(x) / tl.cos(x)


@triton.jit
def _half_pi_minus(x: tl.tensor) -> tl.tensor:
    """`pi / 2 - x`, with pi to more digits than one number has."""
    low: tl.constexpr = 6.123233995736766e-17 if x.dtype == tl.float64 else -4.3711390001862426e-08
    return 1.5707963267948966 - (x - low)


@triton.jit
def _atan_unit(x: tl.tensor) -> tl.tensor:
    """`atan(x)` for `|x| <= 1`."""
    z = x * x
    series = polynomial(z, _ATAN_64) if x.dtype == tl.float64 else polynomial(z, _ATAN_32)
    return product_plus(x * z, series, x)


@triton.jit
def atan(x: tl.tensor) -> tl.tensor:
    """Inverse tangent within 2 ulp."""
    a = tl.abs(x)
    angle = _atan_unit(tl.where(a > 1, 1.0 / a, a))
    return copysign(tl.where(a > 1, _half_pi_minus(angle), angle), x)


@triton.jit
def atan2(y: tl.tensor, x: tl.tensor) -> tl.tensor:
    """The angle of the point (x, y) within 5 ulp."""
    x, y = tl.broadcast(core.to_tensor(x), core.to_tensor(y))
    a = tl.abs(x)
    b = tl.abs(y)
    # Zero over zero counts as 0, infinity over infinity as 1.
    quotient = tl.where(a == b, tl.where(a == 0, 0.0, 1.0), tl.minimum(a, b) / tl.maximum(a, b))
    angle = _atan_unit(quotient)
    angle = tl.where(b > a, _half_pi_minus(angle), angle)
    angle = tl.where(signbit(x), 2.0 * _half_pi_minus(angle * 0.5), angle)
    return copysign(tl.where((x != x) | (y != y), float("nan"), angle), y)


@triton.jit
def _asin_half(x: tl.tensor) -> tl.tensor:
    """`asin(x)` for `|x| <= 1/2`."""
    z = x * x
    series = polynomial(z, _ASIN_64) if x.dtype == tl.float64 else polynomial(z, _ASIN_32)
    return product_plus(x * z, series, x)


@triton.jit
def asin(x: tl.tensor) -> tl.tensor:
    """Inverse sine within 3 ulp."""
    a = tl.abs(x)
    angle = _asin_half(tl.where(a > 0.5, sqrt(0.5 - 0.5 * a), a))
    return copysign(tl.where(a > 0.5, _half_pi_minus(2.0 * angle), angle), x)


@triton.jit
def acos(x: tl.tensor) -> tl.tensor:
    """Inverse cosine within 3 ulp."""
    a = tl.abs(x)
    angle = _asin_half(tl.where(a > 0.5, sqrt(0.5 - 0.5 * a), x))
    large = 2.0 * tl.where(x < 0, _half_pi_minus(angle), angle)
    return tl.where(a > 0.5, large, _half_pi_minus(angle))


@triton.jit
def sinh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic sine within 6 ulp."""
    a = tl.abs(x)
    t = expm1(a)
    fraction, power = exp_factors(a)
    half = fraction * (power * 0.5)
    return copysign(tl.where(a < 1, 0.5 * (t + t / (t + 1.0)), half - 0.25 / half), x)


@triton.jit
def cosh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic cosine within 4 ulp."""
    fraction, power = exp_factors(tl.abs(x))
    half = fraction * (power * 0.5)
    return half + 0.25 / half


@triton.jit
def asinh(x: tl.tensor) -> tl.tensor:
    """Inverse hyperbolic sine within 3 ulp."""
    a = tl.abs(x)
    near = log1p(a + a * a / (1.0 + sqrt(1.0 + a * a)))
    return copysign(tl.where(a > 1e8, log(a) + 0.6931471805599453, near), x)


@triton.jit
def acosh(x: tl.tensor) -> tl.tensor:
    """Inverse hyperbolic cosine within 3 ulp."""
    t = x - 1.0
    near = log1p(t + sqrt(t * (x + 1.0)))
    near = tl.where(x >= 1, near, float("nan"))
    return tl.where(x > 1e8, log(x) + 0.6931471805599453, near)


@triton.jit
def atanh(x: tl.tensor) -> tl.tensor:
    """Inverse hyperbolic tangent within 5 ulp."""
    a = tl.abs(x)
    return copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x)


@triton.jit
def hypot(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`sqrt(x^2 + y^2)` within 5 ulp; infinite if either is, whatever the other."""
    x, y = tl.broadcast(core.to_tensor(x), core.to_tensor(y))
    a = tl.abs(x)
    b = tl.abs(y)
    large = tl.maximum(a, b)
    quotient = tl.where(large == 0, 0.0, tl.minimum(a, b) / large)
    length = large * sqrt(1.0 + quotient * quotient)
    length = tl.where((x != x) | (y != y), float("nan"), length)
    return tl.where((a == float("inf")) | (b == float("inf")), float("inf"), length)
