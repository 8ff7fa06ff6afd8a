"""An emulated GPU: Triton compiles and launches for sm_90, and the PTX runs on the CPU.

Tensors on the CPU pass for those of the device. What a test sees is what a GPU would give, from the trace to the text
of the kernels, their compilation, the host code of their launches and LLVM's PTX. Not run is what ptxas makes of that.
It fails on instructions that it does not know, on accesses outside of a launch's tensors, on misaligned ones, and on
barriers that some threads never reach.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.emulator.program import Program
from tests.held import memories, tensors_in
from tests.ptx import driver
from tests.ptx.launching import pretend

_GRID = ctypes.POINTER(ctypes.c_uint)
_VALUES = ctypes.POINTER(ctypes.c_void_p)
_LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _GRID, ctypes.c_uint, ctypes.c_uint, _VALUES)


class Device:
    """The device of this process. `launched` is called with the name of each kernel that is launched."""

    def __init__(self, folder: Path, launched: Callable[[str], None]) -> None:
        self._folder = folder
        self._launched = launched
        self._texts: dict[int, tuple[str, Path]] = {}
        self._programs: dict[int, Program] = {}
        self._seed = 0
        self._launcher = _LAUNCHER(self._launch)  # which C does not keep alive
        self._driver: Any = None

    def install(self) -> None:
        """Be the device that Triton finds. To be called before Triton asks for one; there is no way back."""
        library = driver.build(self._folder)
        os.environ["TRITON_LIBCUDA_PATH"] = str(self._folder)
        self._driver = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        self._driver.launch_by(self._launcher)
        pretend()
        from triton import knobs

        knobs.runtime.kernel_load_end_hook = self._loaded

    def _loaded(self, module: int, function: int, name: str, files: dict[str, str], hash: str) -> None:
        self._texts[function] = name, Path(files[f"{name}.ptx"])

    def _launch(self, function: int, grid: Any, threads: int, shared: int, values: Any) -> int:
        """Run a kernel; 0, or 1 if it failed."""
        name, text = self._texts[function]
        self._launched(name)
        try:
            if function not in self._programs:
                self._programs[function] = Program(text.read_text(), self._folder)
            self._seed += 1
            spans = [(start, start + size) for start, size in memories(_tensors_of_launch()).items()]
            self._programs[function].run(grid[:3], threads, shared, values, spans, self._seed)
        except Exception as error:  # which would be lost in C
            self._driver.say_failed(f"{name}: {type(error).__name__}: {error}".encode())
            return 1
        return 0


def _tensors_of_launch() -> Sequence[torch.Tensor]:
    """The tensors at hand where the launch was made: only who launches knows what there is at an address."""
    frame = sys._getframe(2)
    while frame is not None:
        found = list(tensors_in(list(frame.f_locals.values())))
        if found:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return []
