"""Compile one kernel for one target."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from autogen import compat
from autogen.aot.kernels import Parameter, SpecializedKernel
from autogen.errors import CompileError, RefusedError
from autogen.runtime import build


@dataclass(frozen=True)
class Target:
    """What to compile for, in Triton's words: backend "cuda" or "hip", architecture 90 or "gfx942"."""

    name: str
    backend: str
    arch: int | str
    warp_size: int


TARGETS = {
    target.name: target
    for target in (
        Target("sm_80", "cuda", 80, 32),
        Target("sm_90", "cuda", 90, 32),
        Target("sm_100", "cuda", 100, 32),
        Target("gfx942", "hip", "gfx942", 64),
    )
}


@dataclass(frozen=True)
class CompiledKernel:
    """What a kernel became on a target.

    Attributes:
        kernel: the name of the kernel.
        target: the name of the target.
        registers: vector registers per thread.
        spilled: bytes per thread kept in memory for want of registers, or in any other stack.
        shared: bytes of shared memory per program.
        seconds: time that compiling took; next to nothing if Triton had it in its cache.
        ttir: Triton's own representation, before anything is decided for a target.
        llir: LLVM's, after that.
        asm: PTX, or AMD's assembly.
    """

    kernel: str
    target: str
    registers: int
    spilled: int
    shared: int
    seconds: float
    ttir: str
    llir: str
    asm: str


def function_of(kernel: SpecializedKernel) -> Any:
    """A kernel's Triton function.

    Raises:
        RuntimeError: Triton was imported as an interpreter.
    """
    import triton

    function = build.load_function(kernel.name, kernel.text)
    if not isinstance(function, triton.JITFunction):
        raise RuntimeError("Triton interprets in this process; use autogen.aot.compile_all")
    return function


def triton_kernel(kernel: SpecializedKernel, target: Target) -> tuple[Any, Any]:
    """A kernel's Triton function, and what Triton makes of it. Needs a process without `TRITON_INTERPRET=1`.

    Raises:
        CompileError: Triton or the target's assembler refused the kernel.
        RefusedError: the kernel is a handwritten one that is not made for the target.
        RuntimeError: Triton was imported as an interpreter.
    """
    if target.backend not in kernel.backends:
        raise RefusedError(kernel.loss, target.name)
    function = function_of(kernel)
    named = dict(zip(function.arg_names, kernel.parameters, strict=True))
    try:
        return function, compat.compiled_for(
            (target.backend, target.arch, target.warp_size),
            function,
            {"num_warps": build.warps_within(kernel.num_warps, target.warp_size), **build.OPTIONS},
            signature={name: parameter.type for name, parameter in named.items()},
            constexprs={name: p.value for name, p in named.items() if p.type == "constexpr"},
            attrs={(k,): _attributes(p, target) for k, p in enumerate(named.values()) if p.type != "constexpr"},
        )
    except Exception as error:
        raise CompileError(kernel.name, cause=error) from error


def compile_kernel(kernel: SpecializedKernel, target: Target) -> CompiledKernel:
    """Compile a kernel, and read what became of it; see `triton_kernel`."""
    started = time.perf_counter()
    _, compiled = triton_kernel(kernel, target)
    seconds = time.perf_counter() - started
    text = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    registers, spilled = _nvidia_registers(compiled.asm["cubin"]) if target.backend == "cuda" else _amd_registers(text)
    return CompiledKernel(
        kernel=kernel.name,
        target=target.name,
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        seconds=seconds,
        ttir=compiled.asm["ttir"],
        llir=compiled.asm["llir"],
        asm=text,
    )


def _attributes(parameter: Parameter, target: Target) -> list[list[Any]]:
    attributes: list[list[Any]] = [["tt.divisibility", 16]] if parameter.divisible else []
    if parameter.short and target.backend == "hip":
        attributes.append(["tt.pointer_range", 32])
    return attributes


def _nvidia_registers(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, per thread."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage)}
    return counts["REG"], counts["STACK"] + counts["LOCAL"]


def _amd_registers(text: str) -> tuple[int, int]:
    """Vector registers, and bytes of scratch memory, per thread."""
    counts = {key: int(value) for key, value in re.findall(r"^\s*\.(\w+):\s+(\d+)$", text, re.MULTILINE)}
    # Scalar registers (`sgpr_spill_count`) are spilled to lanes of vector registers, not to memory.
    return counts["vgpr_count"], max(4 * counts["vgpr_spill_count"], counts["private_segment_fixed_size"])
