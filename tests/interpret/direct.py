"""Triton's interpreter in the place of a GPU, launched directly after the first launch through Triton.

There is no launcher on the CPU. Here is one that takes addresses, as a GPU's does, sees to it that they and the numbers
are such as the kernel was compiled for, and interprets it. So tests run the host code that runs on a GPU.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from triton._C.libtriton import native_specialize_impl as specialize
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.interpreter import InterpretedFunction

from autogen.runtime import direct
from autogen.runtime.launch import device_context
from tests.held import memories, tensors_in

_CPU = torch.device("cpu")
_METADATA = ("what", "launchers", "want")

_interpret = InterpretedFunction.run


class Kernel:
    """What Triton has compiled for a launch: with tensors of these dtypes and alignments, and such numbers."""

    packed_metadata = _METADATA

    def __init__(self, interpreted: InterpretedFunction, arguments: Mapping[str, Any]) -> None:
        self.run = CudaLauncher()
        self.function = self
        self.interpreted = interpreted
        annotations = interpreted.fn.__annotations__
        self._constants = {name for name, kind in annotations.items() if "constexpr" in str(kind)}
        self._compiled_for = {name: self._kind(name, arguments[name]) for name in interpreted.arg_names}

    def _kind(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, direct.is_aligned(value)
        return value if name in self._constants else specialize(CUDABackend, value, False, True, True)

    def given(self, passed: Sequence[Any], held: Sequence[torch.Tensor]) -> Iterator[Any]:
        """The arguments of a launch, with tensors for addresses in memory that is `held`."""
        for (name, kind), value in zip(self._compiled_for.items(), passed, strict=True):
            if isinstance(kind, tuple) and isinstance(kind[0], torch.dtype):
                dtype, is_aligned = kind
                assert type(value) is int, f"{name} is no address: {value!r}"
                assert not (is_aligned and value % direct.ALIGNMENT), f"{name} is not aligned"
                yield _tensor_at(value, dtype, held)
            else:
                assert self._kind(name, value) == kind, f"{name} is {value!r}, compiled was {kind!r}"
                yield value


class CudaLauncher:
    """Triton's launcher of one kernel."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, gridX: int, gridY: int, gridZ: int, stream: int, function: Kernel, *args: Any) -> None:
        metadata, launch_metadata, enter, leave, *passed = args
        assert metadata is _METADATA and launch_metadata is enter is leave is None
        assert stream == threading.get_ident()
        # Only whoever launches knows what there is at an address.
        held = list(tensors_in(list(sys._getframe(1).f_locals.values())))
        DIRECT.count += 1
        with device_context(_CPU):
            given = function.given(passed, held)
            _interpret(function.interpreted, *given, grid=(gridX, gridY, gridZ), warmup=False)


def _tensor_at(address: int, dtype: torch.dtype, held: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor that begins at an address, and ends where the memory ends."""
    found = memories(held)
    for start, size in found.items():
        rest = start + size - address
        if 0 < rest <= size:
            return torch.frombuffer(
                (ctypes.c_byte * rest).from_address(address), dtype=dtype, count=rest // dtype.itemsize
            )
    assert any(address == start + size for start, size in found.items()), "an address in nobody's memory"
    return torch.empty(0, dtype=dtype)


class Direct:
    """How many launches were direct since the last look."""

    def __init__(self) -> None:
        self.count = 0

    def take(self) -> int:
        """The direct launches since the last call of this method."""
        count, self.count = self.count, 0
        return count

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Launch directly from now on."""
        streams = direct.Streams(lambda: None, lambda index: threading.get_ident(), lambda: False)
        monkeypatch.setattr(direct, "streams_of", lambda kind: streams)

        def run(function: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            _interpret(function, *args, grid=grid, warmup=warmup, **kwargs)
            return None if warmup else Kernel(function, dict(zip(function.arg_names, args, strict=False)) | kwargs)

        monkeypatch.setattr(InterpretedFunction, "run", run)


DIRECT = Direct()
