"""Triton's interpreter for tests: faster, and strict about what later versions refuse.

With each call of a device function it puts its own functions into `triton.language` once more, which takes as long as
all the rest. Of what remains, half is for what each operation describes of its result anew, and for a check whose
result it drops.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it so, from now on."""
    _patch_once_a_launch(monkeypatch)
    _read_once(monkeypatch)
    _describe_once(monkeypatch)
    _drop_unused_checks(monkeypatch)
    _refuse_other_masks(monkeypatch)
    _refuse_subscripts_of_numbers(monkeypatch)


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


def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the text of a function to rewrite it, but not again to know where it is."""

    def place(self: Any) -> tuple[str, int]:
        return self.fn.__code__.co_filename, self.fn.__code__.co_firstlineno

    monkeypatch.setattr(interpreter.FunctionRewriter, "_get_jit_fn_file_line", place)


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


def _refuse_other_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Triton 3.9 on, a mask that is one number and many, which is of integers here, is an error."""
    for name, place in {"create_masked_load": 1, "create_masked_store": 2}.items():
        access = getattr(interpreter.InterpreterBuilder, name)

        def checked(self: Any, *args: Any, access: Any = access, place: int = place) -> Any:
            if args[place].data.dtype != bool:
                raise ValueError("mask has unsupported dtype")
            return access(self, *args)

        monkeypatch.setattr(interpreter.InterpreterBuilder, name, checked)


def _refuse_subscripts_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Triton 3.9 on, `[:, None]` of one number is an error, compiled or not."""
    subscript = tl.tensor.__getitem__

    @functools.wraps(subscript)
    def checked(self: tl.tensor, slices: Any, **kwargs: Any) -> Any:
        indices = slices if isinstance(slices, (tuple, tl.tuple)) else (slices,)
        if sum(isinstance(each, slice) for each in indices) > len(self.shape):
            raise ValueError(f"too many indices for tensor of rank {len(self.shape)}")
        return subscript(self, slices, **kwargs)

    monkeypatch.setattr(tl.tensor, "__getitem__", checked)
