"""Compile a kernel's PTX into a C library, and run it on the CPU's memory."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.emulator.translate import translate
from tests.ptx import driver

_FLAGS = ("-O1", "-shared", "-fPIC", "-w", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing")
_HEADERS = Path(__file__).parent
_COUNT = itertools.count()


class EmulationError(Exception):
    """What a kernel did that it must not do, or that would never end on a GPU."""


class _Region(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("end", ctypes.c_uint64))


class Program:
    """The kernel of a module of PTX, as a library in a folder.

    Raises:
        UnknownInstructionError: an instruction that the emulator does not know.
    """

    def __init__(self, text: str, folder: Path) -> None:
        source = folder / f"kernel_{next(_COUNT)}.c"
        source.write_text(translate(text))
        library = source.with_suffix(".so")
        command = [driver.compiler(), *_FLAGS, f"-I{_HEADERS}", "-o", library, source, "-lm"]
        subprocess.run(command, check=True)
        self._library = ctypes.CDLL(str(library))

    def run(
        self,
        grid: Sequence[int],
        threads: int,
        shared: int,
        values: Any,
        memories: Iterable[tuple[int, int]],
        seed: int,
    ) -> None:
        """Launch the kernel.

        Args:
            grid: how many programs there are, along three axes.
            threads: how many a program has, a multiple of 32.
            shared: bytes of a program's shared memory.
            values: the addresses of the parameters, as `cuLaunchKernel` takes them.
            memories: where what it may reach begins and ends.
            seed: draws the order of programs and of warps.

        Raises:
            EmulationError: what the kernel did wrong.
        """
        regions = [_Region(*each) for each in memories]
        message = ctypes.create_string_buffer(512)
        failed = self._library.run(
            *((ctypes.c_uint * 3)(*grid), threads, shared, values),
            *((_Region * len(regions))(*regions), len(regions), ctypes.c_uint64(seed), message, len(message)),
        )
        if failed:
            raise EmulationError(message.value.decode())
