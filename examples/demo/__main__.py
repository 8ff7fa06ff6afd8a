"""`python -m examples.demo`: train a model and run every loss, on kernels and in torch, and write a page about it."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

import torch

STEPS, QUICK_STEPS = 300, 30


def main() -> None:
    """The command."""
    options = _parser().parse_args()
    device = prepare()

    # These import Triton, and so need what was chosen above.
    from examples.demo import console
    from examples.demo.page import write_page
    from examples.demo.tour import explore

    console.greet(device)
    findings = explore(device, options.steps or (QUICK_STEPS if options.quick else STEPS), options.quick)
    console.show(findings)
    console.tell_page(write_page(findings, options.output))
    if not findings.good:
        raise SystemExit("\nNot all is well; see above.")


def prepare() -> torch.device:
    """Make the process ready for a demo; returns the device to run on.

    Raises:
        SystemExit: a package is missing; the message says how to install it.
    """
    _require("triton", "The demo needs Triton, which is made for Linux: pip install triton")
    for package, project in (("rich", "rich"), ("matplotlib", "matplotlib"), ("sklearn", "scikit-learn")):
        _require(package, f'The demo needs {project}: pip install "autogen-loss[demo]", or -e ".[demo]" in a checkout')
    # Compilers keep the other cores busy, and torch's threads would wait for theirs.
    torch.set_num_threads(1)
    return choose_device()


def choose_device() -> torch.device:
    """The GPU, if there is one; else the CPU, with Triton told to interpret kernels before it is imported."""
    if os.environ.get("TRITON_INTERPRET") != "1" and torch.cuda.is_available():
        return torch.device("cuda")
    os.environ["TRITON_INTERPRET"] = "1"
    return torch.device("cpu")


def _require(package: str, message: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise SystemExit(message)


def _parser() -> argparse.ArgumentParser:
    description = "Train with torch and with generated kernels, run every loss, write a page about it."
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=description)
    parser.add_argument("--output", type=Path, default=Path("build/demo.html"), help="the page (default: %(default)s)")
    parser.add_argument("--steps", type=int, help=f"steps of training (default: {STEPS})")
    parser.add_argument(
        "--quick", action="store_true", help=f"small inputs, {QUICK_STEPS} steps, compiled for sm_90 only"
    )
    return parser


if __name__ == "__main__":
    main()
