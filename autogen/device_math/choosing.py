"""Exact functions: minimum and maximum, tests such as `isnan`, signs, and rounding to half precision."""

import triton
import triton.language as tl

from autogen.device_math.basic import INTERPRETED, maximum, minimum


@triton.jit
def max_over(x: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """The maximum over an axis; nan if there is one."""
    if not INTERPRETED:
        return tl.reduce(x, axis, maximum)
    elif x.dtype.is_floating():
        has_nan = tl.max((x != x).to(tl.int32), axis)
        greatest = tl.max(tl.where(x != x, float("-inf"), x), axis)
        return tl.where(has_nan > 0, float("nan"), greatest)
    else:
        return tl.max(x, axis)


@triton.jit
def _times(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return a * b


@triton.jit
def prod_over(x: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """The product over an axis."""
    return tl.reduce(x, axis, _times)


@triton.jit
def min_over(x: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """The minimum over an axis; nan if there is one."""
    if not INTERPRETED:
        return tl.reduce(x, axis, minimum)
    elif x.dtype.is_floating():
        has_nan = tl.max((x != x).to(tl.int32), axis)
        least = tl.min(tl.where(x != x, float("inf"), x), axis)
        return tl.where(has_nan > 0, float("nan"), least)
    else:
        return tl.min(x, axis)


@triton.jit
def narrow(x: tl.tensor) -> tl.tensor:
    """A number of 64 bits as one of 32, to be compared with places, which are at least 0; -1 if it is none of these."""
    return tl.where(x >> 32 == 0, x.to(tl.int32), -1)


@triton.jit
def one_condition(x: tl.tensor) -> tl.tensor:
    """A condition that there is one of, beside many: the interpreter makes floats of the result of comparing floats."""
    if INTERPRETED:
        return x.to(tl.int32) != 0
    else:
        return x


@triton.jit
def round_to_float16(x: tl.tensor) -> tl.tensor:
    """`x`, rounded to single and then to half precision, ties to even."""
    return x.to(tl.float32).to(tl.float16).to(x.dtype)


@triton.jit
def round_to_bfloat16(x: tl.tensor) -> tl.tensor:
    """`x`, rounded to single precision and then to bfloat16, ties to even."""
    return x.to(tl.float32).to(tl.bfloat16).to(x.dtype)


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
    return tl.where(x != x, True, False) if INTERPRETED else x != x


@triton.jit
def isinf(x: tl.tensor) -> tl.tensor:
    """Whether `x` is infinite."""
    return tl.abs(x) == float("inf")


@triton.jit
def isfinite(x: tl.tensor) -> tl.tensor:
    """Whether `x` is neither infinite nor nan."""
    return tl.abs(x) < float("inf")
