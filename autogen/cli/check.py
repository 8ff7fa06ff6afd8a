"""`autogen check`: compare a loss on kernels with eager, on inputs of given shapes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from autogen.cli.output import complain, say, table
from autogen.cli.targets import add_call, calling, device_of, target_of
from autogen.cli.usage import UsageError

_TEXT = "compare value and gradients with eager, both against eager in double precision"
_MORE = """
The error of a kernel's result may be twice the largest error of eager over five draws of such inputs, and two ulp of
the result's largest number; if it is more, the exit status is 1. Without a GPU, kernels run in Triton's interpreter, on
the CPU."""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """The command's arguments."""
    parser = commands.add_parser("check", help=_TEXT, description=f"{_TEXT[0].upper()}{_TEXT[1:]}.{_MORE}")
    add_call(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default: 0)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _interpret_without_gpu()
    from autogen.cli.judging import judge
    from autogen.report import explain_call

    target, device = target_of(options), device_of(options)
    with calling(target):
        args, named = target.arguments(device, options.seed)
        report = explain_call(target.loss, args, named)
        say(f"{report.loss}: {report.path}, as {report.reason}")
        verdicts = judge(target, device, options.seed)
    rows = [
        (each.what, f"{each.ours:.2e}", f"{each.torch:.2e}", f"{each.allowed:.2e}", each.fault or _word(each.holds))
        for each in verdicts
    ]
    table(("result", "our error", "torch's error", "allowed", ""), rows)
    bad = [each.what for each in verdicts if not each.holds]
    if bad:
        complain(f"{target.name}: more wrong than allowed: {', '.join(bad)}")
    return int(bool(bad))


def _word(holds: bool) -> str:
    return "ok" if holds else "too wrong"


def _interpret_without_gpu() -> None:
    """Have Triton interpret kernels where there is no GPU, which it decides when it is imported.

    Raises:
        UsageError: it is too late for that.
    """
    import torch

    if torch.cuda.is_available():
        return
    if "triton" not in sys.modules:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    from autogen.runtime.availability import has_interpreter, has_triton

    if not has_triton():
        raise UsageError("there are no kernels to check, as Triton is not installed; install the package triton")
    if not has_interpreter():
        raise UsageError("there is no GPU, and Triton's interpreter is off; set TRITON_INTERPRET=1 and run it again")
