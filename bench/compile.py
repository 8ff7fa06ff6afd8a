"""Where compiling a loss spends its time: trace, differentiate, lower, schedule, emit, and Triton for a real target.

    python -m bench.compile [--target sm_90]

Every loss is compiled cold, forward and backward, each in a process of its own, where what torch and Triton do once per
process is paid before; importing our own compiler is not. Then other processes find plan and kernels on disk: what they
import of ours, once, what they take from the call to both kernels, and the sum, which is that of a process's first loss
(medians of five processes). Without `TRITON_INTERPRET=1`, and without a GPU. Times are CPU time, that of `ptxas`
included.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import resource
import statistics
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
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        start = cpu_time()
        result = work()
        seconds[stage] = cpu_time() - start
        return result

    timed("import", lambda: importlib.import_module("autogen.compiler"))
    from autogen.aot import specialize
    from autogen.lowering import decompositions, lower
    from autogen.runtime.launch import Launcher
    from autogen.scheduling.kernel import Kernel
    from autogen.scheduling.schedule import backward_of, schedule
    from autogen.tracing.tracer import _Tracing, trace

    differentiate = _Tracing.backward
    _Tracing.backward = lambda *args: timed("differentiate", lambda: differentiate(*args))  # type: ignore[method-assign]
    binding, needs = bound(loss, tensors)
    tensors = binding.tensors
    traced = timed("trace", lambda: trace(binding.replay, binding.names, tensors, needs, decompositions()))
    _Tracing.backward = differentiate  # type: ignore[method-assign]
    seconds["trace"] -= seconds["differentiate"]
    program = timed("lower", lambda: lower(traced, "loss"))
    sizes = traced.domain.sizes(tensors)

    def planned() -> list[Launcher]:
        plan = schedule(program, "loss", sizes, training=True)
        found = (*plan.forward, *backward_of(plan))
        return [Launcher(each, plan.provenance) for each in found if isinstance(each, Kernel)]

    launchers = timed("schedule", planned)
    kernels = timed("emit", lambda: [specialize(launcher, sizes, "loss", "forward") for launcher in launchers])
    timed("triton", lambda: compile_all(kernels, target))
    return seconds


def keep(loss: nn.Module, tensors: tuple[torch.Tensor, ...]) -> None:
    """Leave on disk what a process that has compiled the loss leaves there."""
    from autogen.compiler import compile_loss

    binding, needs = bound(loss, tensors)
    shelf(binding).keep(compile_loss("loss", binding, needs))


def found(loss: nn.Module, tensors: tuple[torch.Tensor, ...], target: str) -> tuple[float, float]:
    """Seconds for our imports, and then until both kernels are there, in a process that finds them on disk."""
    start = cpu_time()
    for name in ("autogen.dispatch.stored", "autogen.runtime.compiled"):
        importlib.import_module(name)
    imported = cpu_time()
    binding, _ = bound(loss, tensors)
    plan = shelf(binding).find(binding)
    assert plan is not None, "the plan of another process is not found"
    compiled, call = plan
    from autogen.aot.kernels import specialize

    compile_all([specialize(each, call.sizes, "loss", "forward") for each in compiled.launchers], target)
    return imported - start, cpu_time() - imported


def bound(loss: nn.Module, tensors: tuple[torch.Tensor, ...]) -> tuple[Any, list[bool]]:
    """A call, taken apart, and which gradients it asks for."""
    from autogen.calls.binding import bind

    forward = type(loss).forward
    binding = bind(forward, inspect.signature(forward), loss, tensors, {})
    return binding, [tensor.requires_grad for tensor in binding.tensors]


def shelf(binding: Any) -> Any:
    """Where the plan of a call is kept on disk."""
    from autogen.dispatch.compilations import key_of
    from autogen.dispatch.stored import shelf_of
    from autogen.options import PLAIN

    return shelf_of("loss", key_of(binding, binding.tensors), binding, PLAIN)


def compile_all(kernels: list[Any], target: str) -> None:
    """Triton's part."""
    from autogen.aot import TARGETS
    from autogen.aot.compilation import triton_kernel

    for kernel in kernels:
        triton_kernel(kernel, TARGETS[target])


def cpu_time() -> float:
    """Seconds of CPU time of this process and of those that it has started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


LATER = 5  # processes that find the loss on disk
STAGES = ("import", "trace", "differentiate", "lower", "schedule", "emit", "triton")


def import_lazily() -> None:
    """What torch and Triton import at the first call of a compiled loss."""
    import torch._decomp.decompositions
    import torch._dynamo.source
    import torch._subclasses.fake_tensor
    import torch.fx.experimental.symbolic_shapes
    import triton.compiler.code_generator

    import autogen.aot
    import autogen.losses  # noqa: F401  # what `import autogen` takes is measured elsewhere

    mode = torch._subclasses.fake_tensor.FakeTensorMode(
        shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv(), allow_non_fake_inputs=True
    )
    fake = mode.from_tensor(torch.ones(3, 4, requires_grad=True))
    with mode:
        fake.exp().sum().backward()
    backend = triton.compiler.make_backend(triton.backends.compiler.GPUTarget("cuda", 90, 32))
    backend.hash()  # asks ptxas for its version
    backend.parse_options({}).hash()  # reads NVIDIA's library
    triton.runtime.cache.triton_key()  # reads all of Triton's own files, once per process


def run_one(name: str, target: str, *, is_warm: bool) -> None:
    """Compile one loss; prints milliseconds per stage, or those of a process that finds it on disk."""
    from autogen.locks import without_collections

    import_lazily()
    loss, make = LOSSES[name]
    tensors = make()
    with without_collections():
        if is_warm:
            print(*(1000 * each for each in found(loss, tensors, target)))
            return
        seconds = stages(loss, tensors, target)
    keep(loss, tensors)
    print(*(1000 * seconds[stage] for stage in STAGES))


def measure(name: str, target: str, bytecode: str, cache: str) -> tuple[list[float], list[float]]:
    """Milliseconds per stage of a first process, and of later ones: for imports, for all else, and for both."""
    folders = {"TRITON_CACHE_DIR": cache, "AUTOGEN_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": bytecode}
    environment = {**os.environ, **folders, "TRITON_INTERPRET": "0"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has been compiled to bytecode
    for variable in ("AUTOGEN_PLANS", "AUTOGEN_RETRACE"):  # later processes are to find plans
        environment.pop(variable, None)
    modules = "autogen.compiler, autogen.dispatch.stored, autogen.aot, jinja2, bench.compile"
    program = f"import {modules}; bench.compile.import_lazily()"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    command = [sys.executable, "-m", "bench.compile", "--target", target, "--loss", name]

    def numbers(*more: str) -> list[float]:
        run = subprocess.run([*command, *more], env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return [float(each) for each in run.stdout.split()]

    cold = numbers()
    later = [numbers("--warm") for _ in range(LATER)]
    return cold, [statistics.median(each) for each in zip(*((*pair, sum(pair)) for pair in later), strict=True)]


def main() -> None:
    from autogen.aot import TARGETS

    parser = argparse.ArgumentParser(
        prog="python -m bench.compile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="sm_90", choices=TARGETS, help="what Triton compiles for")
    parser.add_argument("--loss", help="only this one, in this process, and print nothing but its numbers")
    parser.add_argument("--warm", action="store_true", help="with --loss: it has been compiled before")
    options = parser.parse_args()
    if options.loss:
        run_one(options.loss, options.target, is_warm=options.warm)
        return
    print(f"milliseconds of CPU time, forward + backward, Triton for {options.target}")
    print(f"{'loss':<24}" + "".join(f"{name:>14}" for name in (*STAGES, "cold", "import", "from disk", "first")))
    with tempfile.TemporaryDirectory() as bytecode:
        for name in LOSSES:
            with tempfile.TemporaryDirectory() as cache:
                cold, warm = measure(name, options.target, bytecode, cache)
            print(f"{name:<24}" + "".join(f"{value:>14.1f}" for value in (*cold, sum(cold), *warm)))


if __name__ == "__main__":
    main()
