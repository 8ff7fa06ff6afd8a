"""Where compiling a loss spends its time: trace, differentiate, lower, schedule, emit, and Triton for a real target.

    python -m bench.compile [--target sm_90]

Every loss is compiled cold, forward and backward, each in a process of its own, where what torch and Triton do once per
process is paid before. Then the same again in another process, with Triton's cache as the first has left it. Without
`TRITON_INTERPRET=1`, and without a GPU. Times are CPU time, that of `ptxas` included.
"""

from __future__ import annotations

import argparse
import inspect
import os
import resource
import subprocess
import sys
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
    from autogen.aot import TARGETS, specialize
    from autogen.aot.compilation import triton_kernel
    from autogen.binding import bind
    from autogen.launch import Launcher
    from autogen.lowering import decompositions, lower
    from autogen.schedule import schedule
    from autogen.tracing import _Tracing, trace

    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = cpu_time()
        result = work()
        seconds[stage] = cpu_time() - start
        return result

    differentiate = _Tracing.backward
    _Tracing.backward = lambda *args: timed("differentiate", lambda: differentiate(*args))  # type: ignore[method-assign]
    forward = type(loss).forward
    binding = bind(forward, inspect.signature(forward), loss, tensors, {})
    needs = [tensor.requires_grad for tensor in binding.tensors]
    table = decompositions()
    traced = timed("trace", lambda: trace(binding.replay, binding.names, binding.tensors, needs, table))
    _Tracing.backward = differentiate  # type: ignore[method-assign]
    seconds["trace"] -= seconds["differentiate"]
    program = timed("lower", lambda: lower(traced, "loss"))
    sizes = traced.domain.sizes(binding.tensors)

    def planned() -> list[Launcher]:
        plan = schedule(program, "loss", sizes, training=True)
        return [Launcher(kernel, plan.provenance) for kernel in (*plan.forward, *plan.backward())]

    launchers = timed("schedule", planned)
    kernels = timed("emit", lambda: [specialize(launcher, sizes, "loss", "forward") for launcher in launchers])
    timed("triton", lambda: [triton_kernel(kernel, TARGETS[target]) for kernel in kernels])
    return seconds


def cpu_time() -> float:
    """Seconds of CPU time of this process and of those that it has started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


STAGES = ("trace", "differentiate", "lower", "schedule", "emit", "triton")


def import_lazily() -> None:
    """What torch and Triton import at the first call of a compiled loss."""
    import torch._dynamo.source
    import torch._subclasses.fake_tensor
    import torch.fx.experimental.symbolic_shapes
    import triton.compiler.code_generator

    from autogen.lowering import decompositions

    decompositions()
    mode = torch._subclasses.fake_tensor.FakeTensorMode(
        shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv(), allow_non_fake_inputs=True
    )
    fake = mode.from_tensor(torch.ones(3, 4, requires_grad=True))
    with mode:
        fake.exp().sum().backward()
    triton.compiler.make_backend(triton.backends.compiler.GPUTarget("cuda", 90, 32))
    triton.runtime.cache.triton_key()  # reads all of Triton's own files, once per process


def run_one(name: str, target: str) -> None:
    """Compile one loss; prints milliseconds per stage."""
    from autogen.build import without_collections

    import_lazily()
    loss, tensors = LOSSES[name]
    with without_collections():
        seconds = stages(loss, tensors(), target)
    print(*(1000 * seconds[stage] for stage in STAGES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="sm_90", help="sm_80, sm_90, sm_100 or gfx942")
    parser.add_argument("--loss", help="only this one, in this process, and print nothing but its numbers")
    options = parser.parse_args()
    if options.loss:
        run_one(options.loss, options.target)
        return
    print(f"milliseconds of CPU time, forward + backward, Triton for {options.target}")
    print(f"{'loss':<24}" + "".join(f"{name:>14}" for name in (*STAGES, "total", "again")))
    for name in LOSSES:
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "bench.compile", "--target", options.target, "--loss", name]
            environment = {**os.environ, "TRITON_CACHE_DIR": cache, "AUTOGEN_CACHE_DIR": cache, "TRITON_INTERPRET": "0"}
            cold, warm = (
                list(
                    map(float, subprocess.run(command, env=environment, check=True, capture_output=True).stdout.split())
                )
                for _ in range(2)
            )
        print(f"{name:<24}" + "".join(f"{value:>14.1f}" for value in (*cold, sum(cold), sum(warm))))


if __name__ == "__main__":
    main()
