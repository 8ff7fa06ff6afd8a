"""Ahead-of-time compilation itself: arguments are specialised as Triton does, results come back from everywhere."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from triton._C.libtriton import native_specialize_impl
from triton.backends.amd.compiler import HIPBackend

from autogen.aot import TARGETS, CompiledKernel, Parameter, SpecializedKernel, compile_all, compile_kernel, kernels_of
from autogen.aot.compilation import triton_kernel
from autogen.aot.kernels import _number, _pointer
from autogen.errors import CompileError, RefusedError
from autogen.losses import AdaptiveLogSoftmaxWithLoss, InfoNCELoss, MSELoss
from bench.assembly import accesses, accesses_of

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
NUMBERS = [0, 1, 2, 15, 16, 1000, 2**31 - 16, 2**31 - 1, 2**31, 2**40 + 1, 0.5, 1.0, 16.0]


def small() -> torch.Tensor:
    return torch.ones(37, 5, requires_grad=True)


@pytest.fixture
def kernel() -> SpecializedKernel:
    return kernels_of(MSELoss(), small(), small())[0]


def as_triton(value: object) -> Parameter:
    kind, found = native_specialize_impl(HIPBackend, value, False, True, True)
    if kind == "constexpr":
        return Parameter(kind, found)
    return Parameter(kind, divisible="D" in (found or ""), short="S" in (found or ""))


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
def test_a_program_has_no_more_threads_than_it_may(kernel: SpecializedKernel, target: str) -> None:
    _, many = triton_kernel(replace(kernel, num_warps=32), TARGETS[target])
    assert many.metadata.num_warps * TARGETS[target].warp_size == 1024


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_are_specialized_as_triton_does(number: float) -> None:
    assert _number(number) == as_triton(number)


def test_a_number_is_given_in_the_precision_of_what_it_meets() -> None:
    def single(a: torch.Tensor) -> torch.Tensor:
        return (a * (1 / a.shape[0])).sum()

    def both(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * (1 / a.shape[0])).exp().sum() + (b.double() * (1 / a.shape[0])).sum()  # two parts, in one launch

    for loss, inputs, expected in ((single, [small()], "fp32"), (both, [small(), small()[:3].detach()], "fp64")):
        forward, *_ = kernels_of(loss, *inputs)
        assert [each.type for each in forward.parameters if each.type.startswith("fp")] == [expected]
        for target in TARGETS.values():
            assert compile_kernel(forward, target).spilled == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pointers_are_specialized_as_triton_does(dtype: torch.dtype) -> None:
    tensor = torch.zeros(17, dtype=dtype)
    assert _pointer(dtype) == as_triton(tensor)
    assert _pointer(dtype, divisible=tensor[1:].data_ptr() % 16 == 0) == as_triton(tensor[1:])


def test_a_tensor_beyond_2_gib_is_not_short() -> None:
    large = torch.empty(2**29 + 1, device="meta", requires_grad=True)
    inputs, target, *_ = kernels_of(MSELoss(), large, torch.empty_like(large))[0].parameters
    assert not inputs.short and not target.short


def test_kernels_of_takes_what_can_be_decorated() -> None:
    def squared(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((a - b) ** 2).mean()

    for loss in (MSELoss(), nn.MSELoss(), squared):
        kernels = kernels_of(loss, small(), small())
        assert [each.direction for each in kernels] == ["forward", "backward"]
        with torch.no_grad():
            assert [each.direction for each in kernels_of(loss, small(), small())] == ["forward"]
    plain = nn.MSELoss()
    kernels_of(plain, small(), small())
    assert "forward" not in vars(plain)


def test_kernels_of_a_loss_around_a_fused_call() -> None:
    loss = AdaptiveLogSoftmaxWithLoss(6, 30, [10, 20])
    labels = torch.arange(30)
    kernels = kernels_of(loss, torch.ones(30, 6), labels)
    assert [each.direction for each in kernels] == ["forward", "backward"]
    with pytest.raises(ValueError, match="do not fit"):
        kernels_of(loss, torch.ones(30, 6), labels + 1)


def test_accesses_are_found_where_triton_knows_the_functions_of_another_text(kernel: SpecializedKernel) -> None:
    both = (kernel, replace(kernel, text=f"{kernel.text}\n# another"))
    loads = [[each.widths for each in accesses_of(one, compile_kernel(one, TARGETS["sm_90"]))] for one in both]
    assert loads[0] == loads[1] and any(loads[0])


LOADS = """def k(x_ptr, y_ptr, n):
    x = tl.load(x_ptr + n)
    if n > 0:
        y = tl.load(y_ptr + n)
    else:
        y = tl.load(y_ptr)
"""
FILE = '\t.file 1 "/" "k_0123456789abcdef.py"\n'


def widths_of(assembly: str, backend: str) -> dict[int, tuple[int, ...]]:
    """The bytes of the instructions of each line of `LOADS`, or of none."""
    return {each.line: each.widths for each in accesses(FILE + assembly, backend, LOADS, "k", {}, {})}


def test_lines_of_inline_assembly_are_no_positions() -> None:
    """As of Triton 3.8; before, there were none."""
    lines = """
    .loc 1 2 9
    // begin inline asm
    .loc 1 2 9
    mov.u32 %r1, 0;
    .loc 1 3 9
    .loc 1 4 13
    ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    // end inline asm
    .loc 1 4 13
    // begin inline asm
    .loc 1 4 13
    .loc 1 6 13
    ld.global.b32 { %r5 }, [ %rd2 + 0 ];
    // end inline asm
    .loc 1 6 13
    ld.global.v2.b32 { %r6, %r7 }, [ %rd2 + 0 ];
"""
    assert widths_of(lines, "cuda") == {2: (16,), 4: (4,), 6: (8,)}


HELPER = """def helper(z_ptr, ROWS):
    z = tl.load(z_ptr + ROWS)
    tl.store(z_ptr, z)
"""


def test_loads_of_imported_functions_are_their_own() -> None:
    lines = """
    .file 2 "/helpers" "helpers.py"
    .loc 1 2 9
    ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    .loc 2 2 9
    ld.global.b32 { %r5 }, [ %rd2 + 0 ];
    .loc 2 3 5
    st.global.v2.b32 [ %rd2 + 0 ], { %r5, %r6 };
"""
    found = accesses(FILE + lines, "cuda", LOADS, "k", {"x_ptr": 4}, {"helpers.py": HELPER})
    assert [(each.function, each.parameters, each.line, each.kind, each.widths) for each in found] == [
        ("k", ("x_ptr", "y_ptr", "n"), 2, "load", (16,)),
        ("k", ("x_ptr", "y_ptr", "n"), 4, "load", ()),
        ("k", ("x_ptr", "y_ptr", "n"), 6, "load", ()),
        ("helper", ("z_ptr", "ROWS"), 2, "load", (4,)),
        ("helper", ("z_ptr", "ROWS"), 3, "store", (8,)),
    ]


def test_a_kernel_is_compiled_with_what_it_imports() -> None:
    x, y = (torch.ones(64, 128, requires_grad=True) for _ in range(2))
    for kernel in kernels_of(InfoNCELoss(), x, y):
        found = accesses_of(kernel, compile_kernel(kernel, TARGETS["sm_90"]))
        helper = "_store_factors" if kernel.name == "contrastive_loss_factors" else "factors"
        tiles = [each for each in found if each.function == helper and re.search(r"place|factor", each.address)]
        assert {width for each in tiles for width in each.widths} == {16}


def test_loads_of_other_memory_than_the_first_at_a_position_were_moved_there() -> None:
    lines = """
    .loc 1 4 13
    buffer_load_dwordx4 v[0:3], v20, s[44:47], 0 offen
    buffer_load_dwordx4 v[4:7], v26, s[44:47], 0 offen
    buffer_load_dword v20, v28, s[4:7], 0 offen
    .loc 1 6 13
    buffer_load_dword v0, v27, s[40:43], 0 offen
"""
    assert widths_of(lines, "hip") == {0: (4,), 2: (), 4: (16, 16), 6: (4,)}


def test_everything_pickles(kernel: SpecializedKernel) -> None:
    result = compile_kernel(kernel, TARGETS["sm_90"])
    assert pickle.loads(pickle.dumps((kernel, result))) == (kernel, result)


def test_a_kernel_that_does_not_compile(kernel: SpecializedKernel) -> None:
    broken = replace(kernel, text=kernel.text.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)"))
    with pytest.raises(CompileError, match=kernel.name):
        compile_kernel(broken, TARGETS["sm_90"])


def test_compile_all(kernel: SpecializedKernel) -> None:
    broken = replace(kernel, text=kernel.text.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)"))
    targets = [TARGETS["sm_90"], TARGETS["gfx942"]]
    results = {(each, target): result for each, target, result in compile_all([kernel, broken], targets, processes=1)}
    assert len(results) == 4
    for target in targets:
        result = results[kernel, target]
        assert isinstance(result, CompiledKernel) and result.target == target.name
        error = results[broken, target]
        assert isinstance(error, str) and kernel.name in error


def test_a_handwritten_kernel_that_is_not_made_for_a_target() -> None:
    kernels = kernels_of(InfoNCELoss(), torch.randn(4, 8, requires_grad=True), torch.randn(4, 8))
    for each in kernels:
        with pytest.raises(RefusedError, match="InfoNCELoss is not made for gfx942"):
            compile_kernel(each, TARGETS["gfx942"])
    (result,) = [result for *_, result in compile_all(kernels[:1], [TARGETS["gfx942"]], processes=1)]
    assert isinstance(result, str) and "is not made for gfx942" in result


def test_compile_all_of_nothing() -> None:
    assert not list(compile_all([]))


def test_compile_all_can_be_left_early(kernel: SpecializedKernel) -> None:
    for _, _, result in compile_all([kernel], processes=1):
        assert isinstance(result, CompiledKernel)
        break


def test_compile_all_from_a_process_that_interprets() -> None:
    # Without the guard around its main part that multiprocessing asks of a script.
    script = """
import torch, triton
from autogen.aot import TARGETS, compile_all, compile_kernel, kernels_of
from autogen.losses import AdaptiveLogSoftmaxWithLoss, InfoNCELoss, MSELoss

kernels = kernels_of(MSELoss(), torch.ones(7, requires_grad=True), torch.ones(7))
try:
    compile_kernel(kernels[0], TARGETS["sm_90"])
except RuntimeError as error:
    print(error)
for kernel, target, result in compile_all(kernels, [TARGETS["sm_90"]], processes=1):
    print(result.kernel, result.target, result.spilled)
"""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    refused, *lines = done.stdout.splitlines()
    assert "compile_all" in refused
    assert sorted(lines) == ["mse_loss_backward sm_90 0", "mse_loss_forward sm_90 0"]
