"""Scalar functions for generated kernels, as portable code for `@triton.jit`.

Kernels import them from here, where Triton reads those that they ask for (`autogen.device_math.device`).

Not libdevice: it exists for NVIDIA only and does not run in Triton's interpreter, where this project proves
its kernels. Nor Triton's own functions throughout. On NVIDIA, for fp32, `tl.exp(x)` is `ex2.approx` of the
rounded product `x * log2(e)`, whose relative error grows with `|x|`, and `tl.exp2`, `tl.sqrt` and `tl.rsqrt`
flush denormals. `tl.log`, `tl.log2`, `tl.sin`, `tl.cos` and `tl.erf`, and all of them for fp64, become
accurate library code on NVIDIA and AMD and are used as they are there.

The contract, for fp32 and fp64: the error is at most the ulps that a docstring states. The bounds grant 2 ulp
to an fp32 division, to `tl.exp2` and to `tl.rsqrt`, as NVIDIA specifies them. Infinities, nan and overflow
are torch's, and denormal results are kept. Two things are weaker: a result of 0 may lose its sign where the
function is not exact, and NVIDIA's fp32 library code takes a denormal argument for 0.

Nothing here needs `a * b + c` to be fused, as it is on a GPU, or not to be, as in the interpreter: where a
product must be exact, its factors are short. Coefficients are minimax fits of the relative error, by Remez
exchange. Of several arguments some may be Python numbers.
"""

import functools
import importlib
import re
from pathlib import Path
from typing import Any

from autogen.device_math.device import Device


@functools.cache
def _homes() -> dict[str, str]:
    """The file of each function."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {
        name: file.stem for file in files for name in re.findall(r"^def ([a-z]\w*)", file.read_text(), re.MULTILINE)
    }


def __getattr__(name: str) -> Any:
    if name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_homes()[name]}"), name)
    return found.read if isinstance(found, Device) else found
