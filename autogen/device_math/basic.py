"""What the other functions build on: polynomials, signs, minimum and maximum, and hardware instructions."""

from typing import Any

import triton
import triton.language as tl
from triton.language import core  # Triton 3.6 has `to_tensor` only there

# NumPy's functions in single precision, on which the interpreter builds, are biased, its logarithm by up to 4 ulp; a
# custom combine function it walks element by element, a hundred times slower than its own max.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@core.builtin
def is_nvidia(_semantic: Any = None) -> Any:
    """Whether the kernel is compiled for NVIDIA, whichever device is here."""
    return core.constexpr(_semantic.builder.options.backend_name == "cuda")


@triton.jit
def fma(x: tl.tensor, y: tl.tensor, z: tl.tensor) -> tl.tensor:
    """`x * y + z`, rounded once, in single precision. Python numbers must be such numbers."""
    return (x.to(tl.float64) * y + z).to(x.dtype) if INTERPRETED else tl.fma(x, y, z)


@triton.jit
def exp2_normal(x: tl.tensor) -> tl.tensor:
    """`2^x` within 2 ulp; in single precision a result that is no normal number may be 0."""
    if INTERPRETED:
        return tl.exp2(x.to(tl.float64)).to(x.dtype)
    elif x.dtype == tl.float32 and is_nvidia():
        # What `tl.exp2` becomes, without linking NVIDIA's library, which takes a tenth of a kernel's compile time.
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.exp2(x)


@triton.jit
def log2_far(x: tl.tensor) -> tl.tensor:
    """`log2(x)` in single precision, within 2^-22: of it where `x <= 1/2` or `x >= 2`, of 1 between."""
    if INTERPRETED:
        return tl.log2(x.to(tl.float64)).to(x.dtype)
    elif is_nvidia():
        return tl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return tl.log2(x)


@triton.jit
def reciprocal_normal(x: tl.tensor) -> tl.tensor:
    """`1 / x` within 1 ulp; in single precision a result that is no normal number may be 0."""
    if not INTERPRETED and x.dtype == tl.float32 and is_nvidia():
        # A division would look out for results that are no normal numbers, by five instructions more.
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        return 1.0 / x


@triton.jit
def div_rn(x: tl.tensor, y: tl.tensor) -> tl.tensor:
    """`x / y`, correctly rounded."""
    quotient = x / y
    return quotient if quotient.dtype == tl.float64 else tl.div_rn(x, y)


@triton.jit
def product_plus(x: tl.tensor, y: tl.tensor, z: tl.tensor) -> tl.tensor:
    """`x * y + z` in one instruction, where it does not matter how often that is rounded; no Python numbers in fp64."""
    return x * y + z if INTERPRETED else tl.fma(x, y, z)


@triton.jit
def polynomial(x: tl.tensor, coefficients: tl.constexpr) -> tl.tensor:
    """Horner's rule, highest power first."""
    if INTERPRETED:  # where each call of a function takes as long as many operations
        y = x * coefficients.value[0] + coefficients.value[1]
        for i in tl.static_range(2, len(coefficients.value)):
            y = y * x + coefficients.value[i]
        return y
    else:
        y = tl.full((), coefficients.value[0], x.dtype)
        for i in tl.static_range(1, len(coefficients.value)):
            y = tl.fma(y, x, tl.full((), coefficients.value[i], x.dtype))
        return y


@triton.jit
def signbit(x: tl.tensor) -> tl.tensor:
    """Whether the sign bit is set, as it is in -0.0."""
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def neg(x: tl.tensor) -> tl.tensor:
    """`-x`, also of 0: Triton's own negation is `0 - x`, which makes no -0.0, and costs a GPU an instruction."""
    return x * -1.0 if x.dtype.is_floating() else -x


@triton.jit
def copysign(magnitude: tl.tensor, x: tl.tensor) -> tl.tensor:
    """`|magnitude|` with the sign of `x`, also if 0."""
    magnitude, x = tl.broadcast(core.to_tensor(magnitude), core.to_tensor(x))
    if magnitude.dtype == tl.float64:
        bits = magnitude.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
        sign_bit = x.to(tl.int64, bitcast=True) & -0x8000000000000000
        return (bits | sign_bit).to(tl.float64, bitcast=True)
    else:
        bits = magnitude.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        sign_bit = x.to(tl.int32, bitcast=True) & -0x80000000
        return (bits | sign_bit).to(tl.float32, bitcast=True)


@triton.jit
def maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The greater number; nan if either is."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The lesser number; nan if either is."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
