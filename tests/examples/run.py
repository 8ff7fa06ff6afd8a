"""`python -m tests.examples.run examples.NAME ...`: run an example, whichever build of torchvision is installed.

That of PyPI for x86-64 is built for CUDA. Beside a torch built for CPUs its library cannot be loaded, and importing it
fails at two operators that no example calls. They are declared here.
"""

import importlib.util
import runpy
import sys
from pathlib import Path

import torch


def declare_operators() -> None:
    """Let torchvision be imported where its library cannot be loaded."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        for library in Path(found.origin).parent.glob("_C.*"):
            torch.ops.load_library(library)
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    declare_operators()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
