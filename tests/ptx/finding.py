"""Compile a loss for sm_90 by way of plans on disk; prints what of it had to be made anew, as JSON.

python -m tests.ptx.finding
"""

from __future__ import annotations

import json
import sys

from autogen import device_math
from autogen.aot import TARGETS
from autogen.aot.compilation import triton_kernel
from autogen.aot.kernels import specialize
from autogen.device_math.device import Unread
from autogen.runtime import build
from bench.compile import LOSSES, bound, keep, shelf

PASSES = ("autogen.tracing.tracer", "autogen.lowering", "autogen.scheduling.schedule", "autogen.emission.emit")


def main() -> None:
    loss, make = LOSSES["CrossEntropy"]
    tensors = make()
    binding, _ = bound(loss, tensors)
    is_first = shelf(binding).find(binding) is None
    if is_first:
        keep(loss, tensors)
    plan = shelf(binding).find(binding)
    assert plan is not None
    compiled, call = plan
    kernels = [specialize(launcher, call.sizes, "loss", "forward") for launcher in compiled.launchers]
    for kernel in kernels:
        triton_kernel(kernel, TARGETS["sm_90"])
    modules = [module for name, module in sys.modules.items() if name.startswith(device_math.__name__)]
    functions = {name: each for module in modules for name, each in vars(module).items() if type(each) is Unread}
    found = {
        "is_first": is_first,
        "called": len(functions),
        "read": sorted(name for name, each in functions.items() if "_unread" not in vars(each)),
        "imported": sorted({*PASSES, "autogen.ops", "jinja2"} & sys.modules.keys()),
        "kept": [kernel.key for kernel in kernels],
    }
    build._functions.clear()
    found["computed"] = [build.key_of(kernel.name, kernel.text) for kernel in kernels]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
