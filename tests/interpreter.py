"""Triton's interpreter as tests need it: it converts to and from bfloat16 as hardware does, in a third of the time.

Of itself it cuts bits off where hardware rounds to the nearest, and takes denormals for other numbers. With each call
of a device function it puts its own functions into `triton.language` once more, which takes as long as all the rest.
Of what remains, half is for what each operation describes of its result anew, and for a check whose result it drops.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have both, from now on."""
    _convert_as_hardware(monkeypatch)
    _patch_once_a_launch(monkeypatch)
    _describe_once(monkeypatch)
    _drop_unused_checks(monkeypatch)


def _convert_as_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = interpreter._convert_float

    def converted(input: np.ndarray, input_dtype: tl.dtype, output_dtype: tl.dtype, rounding: Any) -> np.ndarray:
        match input_dtype, output_dtype:
            case tl.float32, tl.bfloat16:
                return torch.from_numpy(np.asarray(input, np.float32)).bfloat16().view(torch.uint16).numpy()
            case tl.bfloat16, tl.float32:
                return np.asarray(input, np.uint16).astype(np.uint32) << 16
        return convert(input, input_dtype, output_dtype, rounding)

    monkeypatch.setattr(interpreter, "_convert_float", converted)


def _patch_once_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, patch_language = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched: set[int] = set()  # in this launch, the globals of functions by identity; one launch runs at a time

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    def patch_language_once(function: Any) -> Any:
        if id(function.__globals__) in patched:
            return None  # only launches undo what they have patched, and they come first
        patched.add(id(function.__globals__))
        return patch_language(function)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched)
    monkeypatch.setattr(interpreter, "_patch_lang", patch_language_once)


def _describe_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what follows from a type: NumPy's dtype, and a tensor's shape."""
    numpy_dtype = interpreter._get_np_dtype
    of_scalars = functools.cache(numpy_dtype)

    def dtype_of(kind: Any) -> Any:
        scalar = kind.scalar
        return numpy_dtype(scalar) if scalar.is_ptr() else of_scalars(scalar)

    @functools.cache
    def shape_of(shape: tuple[int, ...]) -> tuple[tl.constexpr, tl.tuple]:
        return tl.constexpr(math.prod(shape)), tl.tuple([tl.constexpr(size) for size in shape])

    def initialised(self: tl.tensor, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        self.numel, self.shape = shape_of(tuple(kind.shape) if kind.is_block() else ())

    monkeypatch.setattr(interpreter, "_get_np_dtype", dtype_of)
    monkeypatch.setattr(tl.tensor, "__init__", initialised)


def _drop_unused_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do without the check of integers for overflow, which reports nothing unless Triton debugs."""
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        monkeypatch.setattr(builder, "options", dataclasses.replace(builder.options, sanitize_overflow=False))
