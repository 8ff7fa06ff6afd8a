"""Format numbers for the terminal, the page and the README."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import torch

from examples.demo.compiling import Verdict
from examples.demo.walking import Row


def device_sentence(device: torch.device) -> str:
    """Where the demo runs."""
    if device.type == "cuda":
        return f"Running on the GPU: {torch.cuda.get_device_name()}."
    return (
        "No GPU is used: every kernel runs in Triton's interpreter, on the CPU. "
        "Launches and errors are measured there; times would mean nothing."
    )


def versions() -> str:
    """The software it runs with."""
    import triton

    from autogen import __version__

    return (
        f"autogen-loss {__version__}, torch {torch.__version__}, triton {triton.__version__}, "
        f"Python {platform.python_version()}"
    )


def launches_text(row: Row) -> str:
    """Launches, forward + backward."""
    return "{} + {}".format(*row.launches)


def error_text(error: float) -> str:
    """An error, such as 1.2e-7."""
    mantissa, exponent = f"{error:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}" if error else "0"


def traffic_text(row: Row) -> str:
    """Bytes moved over the minimum, forward + backward."""
    forward, backward = row.traffic
    return f"{forward:.2f} + {backward:.2f}" if row.report.forward else "-"


def verdict_text(verdict: Verdict) -> str:
    """The name of a target, and what is not as it should be there."""
    if not verdict.kernels:
        return "-"
    if not verdict.good:
        return f"{verdict.target} ({verdict.kernels - verdict.compiled} failed)"
    return f"{verdict.target} (spills {verdict.spilled} B)" if verdict.spilled else verdict.target


def shape_text(shape: Sequence[int]) -> str:
    """A shape, as 64 x 128."""
    return " x ".join(map(str, shape))
