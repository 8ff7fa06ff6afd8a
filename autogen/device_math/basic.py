"""What the other functions are made of: polynomials, signs, the greater and the lesser number."""

import triton
import triton.language as tl
from triton.language import core  # Triton 3.6 has `to_tensor` only there

from autogen.device_math.device import device

# NumPy's functions in single precision, on which the interpreter builds, are biased, its logarithm by up to 4 ulp; a
# custom combine function it walks element by element, a hundred times slower than its own max.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@device
def polynomial(x: tl.tensor, coefficients: tl.constexpr) -> tl.tensor:
    """Horner's rule, highest power first."""
    y = x * coefficients.value[0] + coefficients.value[1]
    for i in tl.static_range(2, len(coefficients.value)):
        y = y * x + coefficients.value[i]
    return y


@device
def signbit(x: tl.tensor) -> tl.tensor:
    """Whether the sign bit is set, as it is in -0.0."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@device
def copysign(magnitude: tl.tensor, x: tl.tensor) -> tl.tensor:
    """`|magnitude|` with the sign of `x`, also if 0; Triton's negation is `0 - x`, which makes no -0.0."""
    magnitude, x = tl.broadcast(core.to_tensor(magnitude), core.to_tensor(x))
    if magnitude.dtype == tl.float64:
        bits = magnitude.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
        sign_bit = x.to(tl.int64, bitcast=True) & -0x8000000000000000
        return (bits | sign_bit).to(tl.float64, bitcast=True)
    else:
        bits = magnitude.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        sign_bit = x.to(tl.int32, bitcast=True) & -0x80000000
        return (bits | sign_bit).to(tl.float32, bitcast=True)


@device
def maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The greater number; nan if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@device
def minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The lesser number; nan if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
