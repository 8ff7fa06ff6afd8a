"""Where compiling a loss spends its time: trace, lower, schedule, emit, and Triton for a real target.

    python bench/compile.py [--target sm_90]

Every loss is compiled cold, forward and backward, in one process; torch's own lazy imports are paid before. Without
`TRITON_INTERPRET=1`, and without a GPU. Triton's cache is emptied by pointing it at a new folder.
"""

from __future__ import annotations

import argparse
import inspect
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LOSSES: dict[str, tuple[nn.Module, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "BCEWithLogits": (nn.BCEWithLogitsLoss(), lambda: (logits(), torch.rand(512, 1000))),
    "SmoothL1": (nn.SmoothL1Loss(), lambda: (logits(), torch.rand(512, 1000))),
    "KLDiv": (nn.KLDivLoss(reduction="batchmean"), lambda: (logits(), torch.rand(512, 1000))),
    "CrossEntropy": (nn.CrossEntropyLoss(), lambda: (logits(), labels())),
    "CrossEntropy smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), lambda: (logits(), labels())),
    "TripletMargin": (nn.TripletMarginLoss(swap=True), lambda: (logits(), logits(), logits())),
}


def logits() -> torch.Tensor:
    return torch.randn(512, 1000, requires_grad=True)


def labels() -> torch.Tensor:
    return torch.randint(0, 1000, (512,))


def stages(loss: nn.Module, tensors: tuple[torch.Tensor, ...], target: str) -> dict[str, float]:
    """Seconds per stage for one loss, both directions."""
    from autogen.aot import TARGETS, compile_kernel, specialize
    from autogen.binding import bind
    from autogen.launch import Launcher
    from autogen.lowering import decompositions, lower
    from autogen.schedule import schedule
    from autogen.tracing import trace

    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        seconds[stage] = time.perf_counter() - start
        return result

    forward = type(loss).forward
    binding = bind(forward, inspect.signature(forward), loss, tensors, {})
    needs = [tensor.requires_grad for tensor in binding.tensors]
    table = decompositions()
    traced = timed("trace", lambda: trace(binding.replay, binding.names, binding.tensors, needs, table))
    program = timed("lower", lambda: lower(traced, "loss"))
    sizes = traced.domain.sizes(binding.tensors)

    def planned() -> list[Launcher]:
        plan = schedule(program, "loss", sizes, training=True)
        return [Launcher(kernel, plan.provenance) for kernel in (*plan.forward, *plan.backward())]

    launchers = timed("schedule", planned)
    kernels = timed("emit", lambda: [specialize(launcher, sizes, "loss", "forward") for launcher in launchers])
    timed("triton", lambda: [compile_kernel(kernel, TARGETS[target]) for kernel in kernels])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_90", help="sm_80, sm_90, sm_100 or gfx942")
    target = parser.parse_args().target
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    warm_up = LOSSES["SmoothL1"]
    stages(warm_up[0], warm_up[1](), target)
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()

    names = ("trace", "lower", "schedule", "emit", "triton")
    print(f"milliseconds, forward + backward, Triton for {target}")
    print(f"{'loss':<24}" + "".join(f"{name:>10}" for name in (*names, "total")))
    for name, (loss, tensors) in LOSSES.items():
        seconds = stages(loss, tensors(), target)
        row = [1000 * seconds[stage] for stage in names]
        print(f"{name:<24}" + "".join(f"{value:>10.1f}" for value in (*row, sum(row))))


if __name__ == "__main__":
    main()
