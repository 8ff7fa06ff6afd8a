"""Rounding to integers, and division with a remainder: all exact."""

import triton
import triton.language as tl
from triton.language import core  # Triton 3.6 has `to_tensor` only there

from autogen.device_math.basic import copysign


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
        return tl.where(valid, copysign(rest, core.to_tensor(a)), float("nan"))
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
