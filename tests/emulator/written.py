"""Kernels in handwritten PTX, of 32 threads or more, on the emulated GPU."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path

import numpy as np

from tests.emulator.program import Program

_FOLDER = tempfile.TemporaryDirectory()
_KERNEL = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.global .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0,
	.param .u64 .ptr .global .align 1 kernel_param_1
)
.reqntid 128
{
	.local .align 4 .b8 own[16];
	.reg .pred %p<4>;
	.reg .b16 %rs<8>;
	.reg .b32 %r<80>;
	.reg .b64 %rd<16>;
	ld.param.b64 	%rd1, [kernel_param_0];
	ld.param.b64 	%rd2, [kernel_param_1];
	mov.u32 	%r1, %tid.x;
	mov.u32 	%r2, %ctaid.x;
"""


@functools.cache
def program(body: str) -> Program:
    """A kernel of two pointers, given what it does with them, its thread in r1 and its program in r2; it has a table of
    1 and 2, and each thread 16 bytes of its own.
    """
    return Program(f"{_KERNEL}\t{body}\n\tret;\n}}\n", Path(_FOLDER.name))


def run(
    body: str, x: np.ndarray, out: np.ndarray, threads: int = 32, grid: int = 1, seed: int = 0, shared: int = 1024
) -> np.ndarray:
    """Launch a kernel; what it has written."""
    pointers = [ctypes.c_uint64(each.ctypes.data) for each in (x, out)]
    values = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in pointers))
    memories = [(each.ctypes.data, each.ctypes.data + each.nbytes) for each in (x, out)]
    program(body).run((grid, 1, 1), threads, shared, values, memories, seed)
    return out
