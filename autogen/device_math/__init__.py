"""Scalar functions for generated kernels, as `@triton.jit` code for every backend and the interpreter.

Kernels import them from here. They are plain Triton functions.

Not libdevice: it exists for NVIDIA only and does not run in Triton's interpreter, where this project proves
its kernels. Nor Triton's own functions throughout. On NVIDIA, for fp32, `tl.exp(x)` is `ex2.approx` of the
rounded product `x * log2(e)`, whose relative error grows with `|x|`, and `tl.exp2`, `tl.sqrt` and `tl.rsqrt`
flush denormals. `tl.log`, `tl.log2`, `tl.sin`, `tl.cos` and `tl.erf`, and all of them for fp64, become
accurate library code on NVIDIA and AMD and are used as they are there.

The contract, for fp32 and fp64: the error is at most the ulps that a docstring states. The bounds grant 2 ulp
to an fp32 division, to `tl.exp2` and to `tl.rsqrt`, and 2^-22 to `lg2`, as NVIDIA specifies them. Infinities,
nan and overflow are torch's, and denormal results are kept, but for `exp_summand`; `halves`, for results in
half precision, are less exact. Two things are weaker: a result of 0 may lose its sign where the function is
not exact, and NVIDIA's fp32 library code takes a denormal argument for 0.

A sum is fused with a product only where `fma` or `product_plus` says so: Triton is told not to do so by itself
(`autogen.runtime.build.OPTIONS`). No bound needs what `product_plus` does: where a product must be exact, its
factors are short. Coefficients are minimax fits of the relative error, by Remez
exchange. Of several arguments some may be Python numbers.
"""

import importlib
from typing import Any

_FUNCTIONS = {
    "basic": "copysign div_rn exp2_normal fma is_nvidia log2_far maximum minimum neg polynomial product_plus "
    "reciprocal_normal signbit",
    "choosing": "isfinite isinf isnan max_over min_over narrow one_condition prod_over relu round_to_bfloat16 "
    "round_to_float16 sign",
    "exponentials": "exp exp2 exp_factors exp_nonpositive exp_summand expm1 nearest_power_of_two rsqrt sigmoid "
    "sigmoid_neg sqrt tanh",
    "gamma": "digamma erfc erfcx erfinv lgamma tetragamma trigamma",
    "groups": "columns_per_group in_groups per_column",
    "halves": "clamped_log1m_half clamped_log_half exp_half log_half log_sigmoid_half log_sigmoid_neg_half "
    "sigmoid_half sigmoid_neg_half xlogy_half",
    "logarithms": "clamped_log clamped_log1m log log10 log1p log1p_finite log1p_unit log2 log_sigmoid "
    "log_sigmoid_neg logaddexp logcumsumexp times_log xlog1py xlogy",
    "records": "parts_of_2 parts_of_4 record_of_2 record_of_4",
    "rounding": "ceil floor floor_divide fmod remainder round trunc",
    "searching": "count_at_most",
    "special": "acos acosh asin asinh atan atan2 atanh cosh high_half hypot pow sinh tan",
}
_HOMES = {name: file for file, names in _FUNCTIONS.items() for name in names.split()}

NAMES = frozenset(_HOMES)
"""What a kernel may import from here."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
