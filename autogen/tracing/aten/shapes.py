"""Results of ops whose fake implementations ask for sizes as integers, which would make a trace of each size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import corresponding_complex_dtype, corresponding_real_dtype

from autogen.tracing.symbols import NUMBERS

aten = torch.ops.aten


def _constant_pad_nd(input: Tensor, pad: Sequence[Any], value: float = 0) -> Any:
    # And not "channels last", as the result would be; of images of one pixel, the last stride tells.
    is_in_order = input.dim() not in (4, 5) or (input.is_contiguous() and input.stride(-1) == 1)
    if len(pad) % 2 or len(pad) > 2 * input.dim() or not is_in_order:
        return NotImplemented
    shape = list(input.shape)
    for place, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        shape[-1 - place] = shape[-1 - place] + before + after
    return input.new_empty(shape)


def _im2col(
    input: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Any:
    if input.dim() not in (3, 4) or any(len(each) != 2 for each in (kernel_size, dilation, padding, stride)):
        return NotImplemented
    *batch, channels, height, width = input.shape
    places = [
        (size + 2 * pad - step * (kernel - 1) - 1) // jump + 1
        for size, kernel, step, pad, jump in zip((height, width), kernel_size, dilation, padding, stride, strict=True)
    ]
    if any(each < 1 for each in places):  # which torch refuses
        return NotImplemented
    return input.new_empty((*batch, channels * math.prod(kernel_size), math.prod(places)))


def _col2im(input: Tensor, output_size: Sequence[Any], kernel_size: Sequence[int], *_: Any) -> Any:
    if input.dim() not in (2, 3) or len(output_size) != 2 or len(kernel_size) != 2:
        return NotImplemented
    *batch, rows, _places = input.shape
    in_patch = math.prod(kernel_size)
    if not in_patch or rows % in_patch:  # which torch refuses
        return NotImplemented
    return input.new_empty((*batch, rows // in_patch, *output_size))


def _resize_backward(grad: Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *_: Any) -> Any:
    return grad.new_empty(input_size) if grad.is_contiguous() else NotImplemented


def _along_last(input: Tensor, dims: Sequence[int]) -> bool:
    """Whether it is the places next to each other that are transformed: then the result is in the same order."""
    return [dim % input.dim() for dim in dims] == [input.dim() - 1] and input.is_contiguous()


def _fft_r2c(input: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Any:
    if not _along_last(input, dims):
        return NotImplemented
    *batch, size = input.shape
    return input.new_empty(
        (*batch, size // 2 + 1 if onesided else size), dtype=corresponding_complex_dtype(input.dtype)
    )


def _fft_c2c(input: Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Any:
    return input.new_empty(input.shape) if _along_last(input, dims) else NotImplemented


def _fft_c2r(input: Tensor, dims: Sequence[int], normalization: int, last: Any) -> Any:
    if not _along_last(input, dims):
        return NotImplemented
    return input.new_empty((*input.shape[:-1], last), dtype=corresponding_real_dtype(input.dtype))


def _complex(first: Tensor, second: Tensor) -> Any:
    if first.dtype != second.dtype or first.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return torch.empty_like(first * second, dtype=corresponding_complex_dtype(first.dtype))


_RESIZING = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "trilinear3d", "bicubic2d")

_SHAPES: dict[Any, Callable[..., Any]] = {
    aten.constant_pad_nd.default: _constant_pad_nd,
    aten._fft_r2c.default: _fft_r2c,
    aten._fft_c2c.default: _fft_c2c,
    aten._fft_c2r.default: _fft_c2r,
    aten.complex.default: _complex,
    aten.polar.default: _complex,
    aten.im2col.default: _im2col,
    aten.col2im.default: _col2im,
    **{getattr(aten, f"upsample_{name}_backward").default: _resize_backward for name in _RESIZING},
}


def shaped(func: Any, args: Sequence[Any]) -> Tensor | None:
    """The result of an op for a tensor of symbolic sizes; None where torch's fake implementation knows better."""
    shape_of = _SHAPES.get(func)
    if shape_of is None or not any(isinstance(size, NUMBERS) for size in args[0].shape):
        return None
    made = shape_of(*args)
    return None if made is NotImplemented else made
