"""The error function and the gamma functions.

The contract is that of `autogen.device_math`. The gamma functions compute in fp64 for fp32 too, and the error of
`lgamma` and `digamma` near a zero is measured in ulps of 1, not of the result.
"""

import math

import triton
import triton.language as tl

from autogen.device_math.basic import copysign, polynomial
from autogen.device_math.exponentials import exp, expm1, sqrt
from autogen.device_math.logarithms import log
from autogen.device_math.special import high_half

# (1 + 2x) e^(x^2) erfc(x) as a polynomial in (x - 4) / (x + 4), for x >= 1/2 until erfc(x) is 0
_ERFC_32 = tl.constexpr((
    0.005274692944, -0.01657270628, 0.03699239628, -0.06626258212, 0.09376781303, -0.1010442956,
    0.06809455051, 0.01537981092, -0.1396210693, 1.232995118,
))  # fmt: skip
_ERFC_64 = tl.constexpr((
    -1.01548112625134987e-8, -1.22046305185695590e-8, 1.04669763992222821e-7, 6.69687344076240495e-8,
    -8.21202045931153417e-7, 2.99624910918603230e-7, 5.70762335442438309e-6, -1.12247760152246971e-5,
    -2.43985149254917178e-5, 0.000150622512061573476, -0.000199256849497859099, -0.000757773452640120103,
    0.00503197000033564955, -0.0161977340377174204, 0.0371675155354904899, -0.0663303658136490254,
    0.0937328349984492972, -0.101039066036252213, 0.0680970542546903512, 0.0153796521026190064,
    -0.139621116840562497, 1.23299511862555251,
))  # fmt: skip
# With w = -log(1 - x^2): erfinv(x) / x as a polynomial in w - 2.5 for w < 5, and
# erfinv(x) / (x sqrt(w)) as a polynomial in w / (w + 10) - 0.56 for 5 <= w <= 37.5
_ERFINV_CENTRE = tl.constexpr((
    -8.7910253119e-9, 2.3232635016e-8, 4.6617027729e-7, -3.4627046038e-6, -4.9633463574e-6, 0.00021834443866,
    -0.0012527418803, -0.0041773867800, 0.24664028615, 1.5014093593,
))  # fmt: skip
_ERFINV_TAIL = tl.constexpr((
    17.791440695, 7.2974778805, -14.055046593, 6.4336270312, -1.5722053212, 0.29255369604, 0.0070396853221,
    -0.041690339776, 0.10908061002, 0.95402915623,
))  # fmt: skip
# lgamma(2 + t) / t for |t| <= 1/2
_LGAMMA = tl.constexpr((
    -1.43280975477350242e-7, 2.78496394998538447e-7, -4.20058857898542392e-7, 9.20312403571203545e-7,
    -2.04974694182946184e-6, 4.38459085998013442e-6, -9.43723859279226889e-6, 2.05056171045786270e-5,
    -4.49265308564896506e-5, 9.94576700760727565e-5, -0.000223154735189521963, 0.000509669515672583652,
    -0.00119275391275720455, 0.00289051033102388877, -0.00738555102864974046, 0.0205808084277805654,
    -0.0673523010531983120, 0.322467033424113235, 0.422784335098467140,
))  # fmt: skip
# Stirling's series and its derivatives: Bernoulli numbers as B(2k) / (2k (2k - 1)), B(2k) / 2k,
# B(2k) and (2k + 1) B(2k), k = 8 ... 1
_STIRLING = tl.constexpr((-3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12))
_STIRLING_SLOPE = tl.constexpr((-3617 / 8160, 1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12))
_STIRLING_CURVE = tl.constexpr((-3617 / 510, 7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6))
_STIRLING_TWIST = tl.constexpr((
    -17 * 3617 / 510, 15 * 7 / 6, -13 * 691 / 2730, 11 * 5 / 66, -9 / 30, 7 / 42, -5 / 30, 3 / 6,
))  # fmt: skip
# e^(x^2) erfc(x) sqrt(pi) x as a series in 1 / (2 x^2): (-1)^k (2k - 1)!!, k = 7 ... 0
_ERFCX_FAR = tl.constexpr((-135135, 10395, -945, 105, -15, 3, -1, 1))
# sin(y) / y and cos(y) as their series in y^2, until |y| = pi / 4
_SINE = tl.constexpr(tuple((-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(9))))
_COSINE = tl.constexpr(tuple((-1) ** k / math.factorial(2 * k) for k in reversed(range(9))))


# Error and gamma functions.


@triton.jit
def _erfcx_near(x: tl.tensor) -> tl.tensor:
    """`e^(x^2) erfc(x)` for x >= 1/2, until erfc(x) is 0."""
    t = (x - 4.0) / (x + 4.0)
    scaled = polynomial(t, _ERFC_64) if x.dtype == tl.float64 else polynomial(t, _ERFC_32)
    return scaled / (1.0 + 2.0 * x)


@triton.jit
def erfc(x: tl.tensor) -> tl.tensor:
    """`1 - erf(x)` within 9 ulp, also where it is tiny."""
    # e^(-x^2) needs more digits of x^2 than a number has: x^2 = x1^2 + (x - x1) (x + x1), the first exact.
    x1 = high_half(x)
    e = exp(-x1 * x1)
    e = e + e * expm1((x1 - x) * (x1 + x))
    far = e * _erfcx_near(x)
    far = tl.where(x < 30, far, 0.0)
    return tl.where(x >= 0.5, far, 1.0 - tl.erf(x))


@triton.jit
def erfcx(x: tl.tensor) -> tl.tensor:
    """`e^(x^2) erfc(x)` within 9 ulp."""
    # Beyond this erfc(x) is 0, and a few terms of the asymptotic series are enough.
    last: tl.constexpr = 26.0 if x.dtype == tl.float64 else 10.0
    inverse = 1.0 / x
    far = inverse * 0.5641895835477563 * polynomial(0.5 * inverse * inverse, _ERFCX_FAR)
    right = tl.where(x > last, far, _erfcx_near(x))
    # On the left e^(x^2) is most of it. As in erfc, x^2 = x1^2 + (x - x1) (x + x1).
    y = tl.maximum(x, -30.0)
    x1 = high_half(y)
    e = exp(x1 * x1)
    e = tl.where(e < float("inf"), e + e * expm1((y - x1) * (y + x1)), e)
    return tl.where(x >= 0.5, right, e * (1.0 - tl.erf(x)))


@triton.jit
def erfinv(x: tl.tensor) -> tl.tensor:
    """The inverse of erf within 4 ulp."""
    a = tl.abs(x)
    w = -log((1.0 - a) * (1.0 + a))
    root = sqrt(w) * polynomial(w / (w + 10.0) - 0.56, _ERFINV_TAIL)
    y = a * tl.where(w < 5, polynomial(w - 2.5, _ERFINV_CENTRE), root)
    if x.dtype == tl.float64:
        # The polynomials are good for fp32; one step of Halley's method triples their digits.
        excess = tl.where(a < 0.5, tl.erf(y) - a, (1.0 - a) - erfc(y))
        step = excess * 0.8862269254527580 * exp(y * y)
        y = y - step / (1.0 + y * step)
    return copysign(tl.where(a == 1, float("inf"), tl.where(a < 1, y, float("nan"))), x)


@triton.jit
def _sin_cos_pi(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Sine and cosine of `pi * x` for fp64 `x` in [0, 1)."""
    # Not CUDA's: their way for large arguments takes memory, on a thread's stack.
    # By symmetry about 1/2 and 1/4; 1 - x and 1/2 - x are exact where they are used.
    near = tl.where(x > 0.5, 1.0 - x, x)
    y = tl.where(near > 0.25, 0.5 - near, near) * 3.141592653589793
    sine, cosine = y * polynomial(y * y, _SINE), polynomial(y * y, _COSINE)
    of_x = tl.where(near > 0.25, sine, cosine)
    return tl.where(near > 0.25, cosine, sine), tl.where(x > 0.5, -of_x, of_x)


@triton.jit
def _lgamma_positive(x: tl.tensor) -> tl.tensor:
    """`log(gamma(x))` for positive fp64 `x`."""
    # gamma(x + 1) = x gamma(x) moves an argument below 10 to [1.5, 2.5), with the factors in `product`.
    y = x
    product = tl.where(x == x, 1.0, x)
    for _ in tl.static_range(2):
        product = tl.where(y < 1.5, product * y, product)
        y = tl.where(y < 1.5, y + 1.0, y)
    for _ in tl.static_range(8):
        move = (y >= 2.5) & (x < 10)
        y = tl.where(move, y - 1.0, y)
        product = tl.where(move, product * y, product)
    t = tl.where(x < 1.5, x - 1.0, y - 2.0)
    t = tl.where(x < 0.5, x, t)
    near = t * polynomial(t, _LGAMMA) + tl.where(x < 1.5, -tl.log(product), tl.log(product))
    log_x = tl.log(x)
    far = (x - 0.5) * log_x - x + (0.9189385332046728 + polynomial(1.0 / (x * x), _STIRLING) / x)
    far = tl.where(x > 1e17, x * (log_x - 1.0), far)
    return tl.where(x < 10, near, far)


@triton.jit
def lgamma(x: tl.tensor) -> tl.tensor:
    """`log(|gamma(x)|)` within 8 ulp, of 1 where the result is smaller."""
    z = x.to(tl.float64)
    a = tl.abs(z)
    positive = _lgamma_positive(tl.where(z < 0, 1.0 - z, z))
    # |gamma(-a) gamma(1 + a)| = pi / |sin(pi a)|, by the fraction of a
    fraction = a - tl.floor(a)
    sine, _ = _sin_cos_pi(fraction)
    result = tl.where(z < 0, -tl.log(sine * 0.3183098861837907) - positive, positive)
    result = tl.where((fraction == 0) & (z <= 0) | (a == float("inf")), float("inf"), result)
    return result.to(x.dtype)


@triton.jit
def digamma(x: tl.tensor) -> tl.tensor:
    """The derivative of `lgamma` within 8 ulp, of 1 where the result is smaller."""
    z = x.to(tl.float64)
    y = tl.where(z < 0, 1.0 - z, z)
    # digamma(y + 1) = digamma(y) + 1 / y moves the argument to where Stirling's series is accurate.
    moved = tl.zeros_like(y)
    for _ in tl.static_range(10):
        moved = tl.where(y < 10, moved - 1.0 / y, moved)
        y = tl.where(y < 10, y + 1.0, y)
    inverse = 1.0 / y
    series = polynomial(inverse * inverse, _STIRLING_SLOPE)
    result = tl.log(y) + (moved - inverse * (0.5 + inverse * series))
    # digamma(-a) = digamma(1 + a) + pi / tan(pi a), by the fraction of a
    fraction = -z - tl.floor(-z)
    sine, cosine = _sin_cos_pi(fraction)
    result = tl.where(z < 0, result + 3.141592653589793 * cosine / sine, result)
    result = tl.where((fraction == 0) & (z < 0), float("nan"), result)
    return tl.where(z == 0, -1.0 / z, result).to(x.dtype)


@triton.jit
def trigamma(x: tl.tensor) -> tl.tensor:
    """The derivative of `digamma` within 8 ulp."""
    z = x.to(tl.float64)
    y = tl.where(z < 0, 1.0 - z, z)
    # trigamma(y) = trigamma(y + 1) + 1 / y^2 moves the argument to where Stirling's series is accurate.
    moved = tl.zeros_like(y)
    for _ in tl.static_range(10):
        moved = tl.where(y < 10, moved + 1.0 / (y * y), moved)
        y = tl.where(y < 10, y + 1.0, y)
    inverse = 1.0 / y
    square = inverse * inverse
    series = polynomial(square, _STIRLING_CURVE)
    result = moved + inverse * (1.0 + 0.5 * inverse + square * series)
    # trigamma(-a) = (pi / sin(pi a))^2 - trigamma(1 + a), by the fraction of a
    fraction = -z - tl.floor(-z)
    sine, _ = _sin_cos_pi(fraction)
    reflected = 3.141592653589793 / sine
    result = tl.where(z < 0, reflected * reflected - result, result)
    result = tl.where((fraction == 0) & (z <= 0), float("inf"), result)
    return tl.where(z == float("inf"), 0.0, result).to(x.dtype)


@triton.jit
def tetragamma(x: tl.tensor) -> tl.tensor:
    """The derivative of `trigamma` within 8 ulp."""
    z = x.to(tl.float64)
    y = tl.where(z < 0, 1.0 - z, z)
    # tetragamma(y) = tetragamma(y + 1) - 2 / y^3 moves the argument to where Stirling's series is accurate.
    moved = tl.zeros_like(y)
    for _ in tl.static_range(10):
        moved = tl.where(y < 10, moved - 2.0 / (y * y * y), moved)
        y = tl.where(y < 10, y + 1.0, y)
    inverse = 1.0 / y
    square = inverse * inverse
    result = moved - square * (1.0 + inverse + square * polynomial(square, _STIRLING_TWIST))
    # tetragamma(-a) = tetragamma(1 + a) + 2 pi^3 cos(pi a) / sin(pi a)^3, by the fraction of a
    fraction = -z - tl.floor(-z)
    sine, cosine = _sin_cos_pi(fraction)
    reflected = 3.141592653589793 / sine
    result = tl.where(z < 0, result + 2.0 * cosine * (reflected * reflected * reflected), result)
    result = tl.where((fraction == 0) & (z <= 0), float("-inf"), result)
    return tl.where(z == float("inf"), 0.0, result).to(x.dtype)
