"""Exported kernels are compiled for a real target, with the launch parameters of the exported host code."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

import autogen
from autogen.aot import TARGETS, compile_kernel
from autogen.aot.kernels import Parameter, SpecializedKernel

POINTERS = {torch.float32: "*fp32", torch.int64: "*i64"}


def specialized(module: Any, text: str, plan: Any, tensors: list[torch.dtype]) -> SpecializedKernel:
    """A kernel of an exported module as Triton would specialise it for a launch."""
    function, programs, counts, arguments, num_warps = plan
    parameters = [Parameter(POINTERS[dtype], divisible=True) for dtype in tensors]
    parameters += [Parameter("*fp32", divisible=True)] * len(counts)
    parameters += [Parameter("*i32", divisible=True)] * bool(counts)
    kinds = list(function.fn.__annotations__)  # of those that are constants
    tiles = arguments[len(arguments) - len(kinds) :]
    parameters += [Parameter("i32", divisible=n % 16 == 0) for n in arguments[: len(arguments) - len(kinds)]]
    parameters += [Parameter("constexpr", tile) for tile in tiles]
    name = function.__name__
    return SpecializedKernel(module.__name__, "forward", name, text, tuple(parameters), num_warps, programs)


def test_exported_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    path = autogen.export(nn.CrossEntropyLoss(), [torch.randn(8, 6), torch.randint(6, (8,))], tmp_path, format="module")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    f32, i64 = torch.float32, torch.int64
    forward = [f32, i64, f32, f32, f32, f32]
    kernels = [
        specialized(module, path.read_text(), module.plan_cross_entropy_loss_forward(1000, 512), forward),
        specialized(module, path.read_text(), module.plan_cross_entropy_loss_forward(128256, 4096), forward),
        specialized(module, path.read_text(), module.plan_cross_entropy_loss_forward(1000, 2**20), forward),
        specialized(module, path.read_text(), module.plan_cross_entropy_loss_backward(1000, 4096), [*forward, f32]),
    ]
    assert len({each.name for each in kernels}) == 4
    for kernel in kernels:
        assert compile_kernel(kernel, TARGETS["sm_90"]).spilled == 0, kernel.name
