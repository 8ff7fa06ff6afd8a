"""Measure where the first call of a loss spends its time: torch's capture, this package, and Triton.

    python -m bench.compile [--target sm_90]

Every loss is compiled cold, forward and backward, each in a process of its own, where what torch and Triton do once per
process is paid before; importing our own compiler is not. "torch" is Dynamo and AOTAutograd, with all that is in no
other column. A later process finds Triton's kernels on disk, and captures again: its columns are "again" (all but
imports and Triton) and "found" (Triton's part). Without `TRITON_INTERPRET=1`, and without a GPU. Times are CPU time,
that of `ptxas` included.

Of losses that are too much for one kernel (`bench.large`), what is printed is how many kernels there are, the seconds
that Triton takes for all of them and for the longest, and the most bytes that a thread of one spills.

Beside it, from a process of its own whose torch has compiled something before, is `torch.compile`: Dynamo, AOTAutograd
and Inductor ("inductor"), and, as there is no GPU, the compiler of C++ that Inductor calls in the place of Triton
("C++").
"""

from __future__ import annotations

import argparse
import gc
import importlib
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

from autogen.losses import GIoULoss
from bench import large

LOSSES: dict[str, tuple[nn.Module, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "BCEWithLogits": (nn.BCEWithLogitsLoss(), lambda: (logits(), torch.rand(512, 1000))),
    "SmoothL1": (nn.SmoothL1Loss(), lambda: (logits(), torch.rand(512, 1000))),
    "KLDiv": (nn.KLDivLoss(reduction="batchmean"), lambda: (logits(), torch.rand(512, 1000))),
    "CrossEntropy": (nn.CrossEntropyLoss(), lambda: (logits(), labels())),
    "CrossEntropy smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), lambda: (logits(), labels())),
    "TripletMargin": (nn.TripletMarginLoss(swap=True), lambda: (logits(), logits(), logits())),
    "GIoU": (GIoULoss(use_autogen=False), lambda: (boxes(), boxes().detach())),
}
LARGE: dict[str, Callable[[], large.Call]] = {
    "chain of 2000 operations": lambda: large.chain(2000, 512, 1000),
    "200 reductions": lambda: large.reductions(200, 512, 1000),
    "detector of 12 levels": lambda: large.detector(12, 64, 80),
}
STAGES = ("import", "torch", "joint", "lower", "schedule", "emit", "triton")
COLUMNS = (*STAGES, "cold", "again", "found", "inductor", "C++")


def logits() -> torch.Tensor:
    return torch.randn(512, 1000, requires_grad=True)


def labels() -> torch.Tensor:
    return torch.randint(0, 1000, (512,))


def boxes() -> torch.Tensor:
    """4,096 boxes, as corners."""
    corner = torch.rand(4096, 2)
    return torch.cat((corner, corner + torch.rand(4096, 2)), 1).requires_grad_()


def stages(loss: nn.Module, tensors: tuple[torch.Tensor, ...], target: str) -> dict[str, float]:
    """Seconds per stage for one loss, both directions."""
    seconds = dict.fromkeys(STAGES, 0.0)

    def timed(stage: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = cpu_time()
            try:
                return work(*args, **kwargs)
            finally:
                seconds[stage] += cpu_time() - start

        return run

    compiler = timed("import", importlib.import_module)("autogen.compiler")
    timed("import", importlib.import_module)("autogen.dispatch.site")
    from autogen.aot import TARGETS, kernels_of
    from autogen.aot.compilation import triton_kernel

    for stage, name in {"joint": "segment_of", "lower": "lower", "schedule": "schedule"}.items():
        setattr(compiler, name, timed(stage, getattr(compiler, name)))
    compiler._of_form = timed("emit", compiler._of_form)
    kernels = timed("torch", kernels_of)(loss, *tensors)
    seconds["emit"] -= seconds["lower"] + seconds["schedule"]
    seconds["torch"] -= sum(seconds[stage] for stage in ("joint", "lower", "schedule", "emit"))
    for kernel in kernels:
        timed("triton", triton_kernel)(kernel, TARGETS[target])
    return seconds


def cpu_time() -> float:
    """Seconds of CPU time of this process and of those that it has started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def import_lazily() -> None:
    """What torch and Triton import at the first call of a compiled loss."""
    import triton.compiler.code_generator

    import autogen.aot
    import autogen.losses  # noqa: F401  # what `import autogen` takes is measured elsewhere

    x = torch.ones(3, 4, requires_grad=True)
    torch.compile(lambda x: x.exp().sum(), backend="aot_eager", dynamic=True)(x).backward()
    backend = triton.compiler.make_backend(triton.backends.compiler.GPUTarget("cuda", 90, 32))
    backend.hash()  # asks ptxas for its version
    backend.parse_options({}).hash()  # reads NVIDIA's library
    triton.runtime.cache.triton_key()  # reads all of Triton's own files, once per process


def run_one(name: str, target: str) -> None:
    """Compile one loss; prints milliseconds per stage."""
    import_lazily()
    loss, make = LOSSES[name]
    tensors = make()
    gc.disable()  # whose times would be noise
    seconds = stages(loss, tensors, target)
    print(*(1000 * seconds[stage] for stage in STAGES))


def run_large(name: str, target: str) -> None:
    """Compile a loss of many kernels; prints their number, seconds of Triton's in all and at most, bytes spilled."""
    import_lazily()
    from autogen.aot import TARGETS, kernels_of
    from autogen.aot.compilation import compile_kernel

    loss, tensors = LARGE[name]()
    seconds: list[float] = []
    spilled = 0
    for kernel in kernels_of(loss, *tensors):
        start = cpu_time()
        spilled = max(spilled, compile_kernel(kernel, TARGETS[target]).spilled)
        seconds.append(cpu_time() - start)
    print(f"{len(seconds):>10}{sum(seconds):>10.1f}{max(seconds):>10.2f}{spilled:>10}")


def run_inductor(name: str) -> None:
    """Compile one loss with `torch.compile`; prints milliseconds of this process, and of those that it has started."""
    x = torch.ones(3, 4, requires_grad=True)
    torch.compile(lambda x: x.exp().sum())(x).backward()
    loss, make = LOSSES[name]
    tensors = make()
    gc.disable()
    before, whole = time.process_time(), cpu_time()
    torch.compile(loss)(*tensors).backward()
    own = time.process_time() - before
    print(1000 * own, 1000 * (cpu_time() - whole - own))


def _environment(bytecode: str, cache: str) -> dict[str, str]:
    names = ("TRITON_CACHE_DIR", "AUTOGEN_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    return {
        **os.environ,
        **dict.fromkeys(names, cache),
        "PYTHONPYCACHEPREFIX": bytecode,
        "TRITON_INTERPRET": "0",
    }


def measure(name: str, target: str, bytecode: str, cache: str) -> list[float]:
    """Milliseconds per stage of a first process, for capture and Triton of a later one, and of `torch.compile`."""
    environment = _environment(bytecode, cache)
    environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # whose time is that of the process
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has been compiled to bytecode
    program = (
        "import autogen.compiler, autogen.dispatch.site, autogen.aot, jinja2, bench.compile as b; b.import_lazily()"
    )
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    command = [sys.executable, "-m", "bench.compile", "--target", target, "--loss", name]

    def numbers(*more: str) -> list[float]:
        run = subprocess.run([*command, *more], env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return [float(each) for each in run.stdout.split()]

    cold, later = numbers(), numbers()
    return [*cold, sum(cold), sum(later[1:-1]), later[-1], *numbers("--inductor")]


def main() -> None:
    from autogen.aot import TARGETS

    parser = argparse.ArgumentParser(
        prog="python -m bench.compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="sm_90", choices=TARGETS, help="what Triton compiles for")
    parser.add_argument("--loss", help="only this one, in this process, and print nothing but its numbers")
    parser.add_argument("--inductor", action="store_true", help="with --loss: by torch.compile")
    options = parser.parse_args()
    if options.loss and options.inductor:
        run_inductor(options.loss)
        return
    if options.loss in LARGE:
        run_large(options.loss, options.target)
        return
    if options.loss:
        run_one(options.loss, options.target)
        return
    print(f"milliseconds of CPU time, forward + backward, Triton for {options.target}")
    print(f"{'loss':<24}" + "".join(f"{name:>10}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as bytecode:
        for name in LOSSES:
            with tempfile.TemporaryDirectory() as cache:
                found = measure(name, options.target, bytecode, cache)
            print(f"{name:<24}" + "".join(f"{value:>10.1f}" for value in found), flush=True)
        print(f"\n{'large losses':<24}{'kernels':>10}{'seconds':>10}{'longest':>10}{'spilled':>10}", flush=True)
        for name in LARGE:
            with tempfile.TemporaryDirectory() as cache:
                command = [sys.executable, "-m", "bench.compile", "--target", options.target, "--loss", name]
                print(f"{name:<24}", end="", flush=True)
                subprocess.run(command, env=_environment(bytecode, cache), check=True)


if __name__ == "__main__":
    main()
