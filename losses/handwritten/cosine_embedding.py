"""The kernels of CosineEmbeddingLoss, whose backward needs only three sums over a row.

Forward saves these for rows that are longer than a tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from autogen import compat
from autogen.device_math import maximum, sqrt
from autogen.losses.handwritten._reduction import (
    Reduced,
    compute_dtype,
    described,
    reduction_of,
    sum_over_programs,
    upstream_arguments,
)
from autogen.losses.handwritten._rows import lanes_of, load_lanes, masks_of_lanes, start_of_lanes, store_lanes
from autogen.runtime.handwritten import Backward, Forward, Launch, defaults_of
from autogen.tiling.tiler import strided

# torch's 1e-12, a C++ float there.
_EPSILON = tl.constexpr(9.999999960041972e-13)
_IS_TIE_CLAMPED = tl.constexpr(compat.CLAMPS_TIES)  # has no gradient at its bound, as torch's clamp has not
_INPUTS, _SUMS = ("input1", "input2"), ("dot_ptr", "square1_ptr", "square2_ptr")
# Elements of each input that a program holds at a time, and columns of a row up to which it is as many.
_TILE, _SHORT = 2048, 128
# Of rows that a warp or more share, so many per thread; half of that where sums are kept for each, or in doubles.
_HELD = 16
# Columns of a tile that are not made less to have fewer idle lanes.
_LEAST_COLS = 128


@triton.jit
def _sums(input1: tl.tensor, input2: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of whole rows, `dot`, `square1` and `square2`."""
    return (
        tl.sum(input1 * input2, 1),
        tl.sum(input1 * input1, 1) + _EPSILON,
        tl.sum(input2 * input2, 1) + _EPSILON,
    )


@triton.jit
def cosine_embedding_loss_forward(
    input1_ptr: tl.tensor,
    input2_ptr: tl.tensor,
    target_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    dot_ptr: tl.tensor,
    square1_ptr: tl.tensor,
    square2_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_cols: tl.tensor,
    input1_row_stride: tl.tensor,
    input1_col_stride: tl.tensor,
    input2_row_stride: tl.tensor,
    input2_col_stride: tl.tensor,
    target_stride: tl.tensor,
    divisor: tl.tensor,
    MARGIN: tl.constexpr,
    ALIGN: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PARTIALS: tl.constexpr,
) -> None:
    """ROWS rows at a time, COLS columns of them, or as many lanes (see `_rows`), in some programs.

    cos = dot / sqrt(square1 * square2)
    loss = 1 - cos where target == 1, max(0, cos - MARGIN) where target == -1, else 0

    input1_ptr, input2_ptr: (N, D), of any strides
    target_ptr: (N,)
    loss_ptr: (N,); with PARTIALS scalar, the sum over all rows divided by `divisor` (written)
    dot_ptr, square1_ptr, square2_ptr: float32 or float64 (N,), the squares plus epsilon, or None if COLS columns are
        whole rows (written)
    partials_ptr: (programs,), one partial result each
    counter_ptr: int32 scalar, 0 before and after
    n_rows: N
    n_cols: D
    """
    has_doubles: tl.constexpr = input1_ptr.dtype.element_ty == tl.float64 or input2_ptr.dtype.element_ty == tl.float64
    dtype: tl.constexpr = tl.float64 if has_doubles else tl.float32  # half precision is for storage only
    n_tiles = tl.cdiv(n_rows, ROWS)
    total = tl.zeros([ROWS], dtype)
    for tile in range(tl.program_id(0), n_tiles, tl.num_programs(0)):
        row = tl.cast(tile, tl.int64) * ROWS + tl.arange(0, ROWS)
        row_mask = row < n_rows
        start1 = start_of_lanes(row, input1_row_stride, ALIGN, GROUP)[:, None]
        start2 = start_of_lanes(row, input2_row_stride, ALIGN, GROUP)[:, None]
        skew = (row * input1_row_stride % GROUP).to(tl.int32)[:, None]
        is_last = True if GROUP == 1 else tile + 1 == n_tiles
        if dot_ptr is None:
            lane = tl.arange(0, COLS)[None, :]
            mask, overlapping, _inside = masks_of_lanes(lane, skew, row_mask[:, None], n_cols, ALIGN, GROUP)
            lane = lane.to(tl.int64)
            place1, place2 = start1 + lane * input1_col_stride, start2 + lane * input2_col_stride
            input1 = load_lanes(input1_ptr, place1, mask, overlapping, is_last)
            input2 = load_lanes(input2_ptr, place2, mask, overlapping, is_last)
            dot, square1, square2 = _sums(input1.to(dtype), input2.to(dtype))
        else:
            # Lane by lane, so that nothing is exchanged between threads before the end of the row.
            dots = tl.zeros([ROWS, COLS], dtype)
            squares1 = tl.zeros([ROWS, COLS], dtype)
            squares2 = tl.zeros([ROWS, COLS], dtype)
            for first_lane in range(0, n_cols + GROUP - 1, COLS):
                lane = (first_lane + tl.arange(0, COLS))[None, :]
                mask, overlapping, _inside = masks_of_lanes(lane, skew, row_mask[:, None], n_cols, ALIGN, GROUP)
                lane = lane.to(tl.int64)
                place1, place2 = start1 + lane * input1_col_stride, start2 + lane * input2_col_stride
                input1 = load_lanes(input1_ptr, place1, mask, overlapping, is_last)
                input2 = load_lanes(input2_ptr, place2, mask, overlapping, is_last)
                input1 = input1.to(dtype) if GROUP == 1 else tl.where(mask, input1.to(dtype), 0.0)
                input2 = input2.to(dtype) if GROUP == 1 else tl.where(mask, input2.to(dtype), 0.0)
                dots += input1 * input2
                squares1 += input1 * input1
                squares2 += input2 * input2
            dot = tl.sum(dots, 1)
            square1 = tl.sum(squares1, 1) + _EPSILON
            square2 = tl.sum(squares2, 1) + _EPSILON
            tl.store(dot_ptr + row, dot, mask=row_mask)
            tl.store(square1_ptr + row, square1, mask=row_mask)
            tl.store(square2_ptr + row, square2, mask=row_mask)

        cos = dot / sqrt(square1 * square2)
        # Rows beyond the last have target 0, and so loss 0.
        target = tl.load(target_ptr + row * target_stride, mask=row_mask, other=0)
        loss = tl.where(target == 1, 1.0 - cos, tl.where(target == -1, maximum(cos - MARGIN, 0.0), 0.0))
        if PARTIALS is None:
            tl.store(loss_ptr + row, loss, mask=row_mask)
        total += loss
    if PARTIALS is not None:
        sum_over_programs(
            tl.sum(total, 0),
            loss_ptr,
            partials_ptr,
            counter_ptr,
            divisor,
            PARTIALS,
            tl.program_id(0),
            tl.num_programs(0),
        )


@triton.jit
def cosine_embedding_loss_backward(
    input1_ptr: tl.tensor,
    input2_ptr: tl.tensor,
    target_ptr: tl.tensor,
    dot_ptr: tl.tensor,
    square1_ptr: tl.tensor,
    square2_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_input1_ptr: tl.tensor,
    grad_input2_ptr: tl.tensor,
    n_rows: tl.tensor,
    n_cols: tl.tensor,
    input1_row_stride: tl.tensor,
    input1_col_stride: tl.tensor,
    input2_row_stride: tl.tensor,
    input2_col_stride: tl.tensor,
    target_stride: tl.tensor,
    grad_loss_stride: tl.tensor,
    grad_input1_row_stride: tl.tensor,
    grad_input1_col_stride: tl.tensor,
    grad_input2_row_stride: tl.tensor,
    grad_input2_col_stride: tl.tensor,
    divisor: tl.tensor,
    MARGIN: tl.constexpr,
    ALIGN: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
) -> None:
    """A tile of ROWS x COLS elements per program, or as many lanes (see `_rows`).

    grad_input1 = grad_cos * (input2 / sqrt(square1 * square2) - input1 * cos / square1), and likewise grad_input2

    input1_ptr, input2_ptr: (N, D), of any strides
    target_ptr: (N,)
    dot_ptr, square1_ptr, square2_ptr: float32 or float64 (N,), the squares plus epsilon, or None if COLS columns are
        whole rows
    grad_loss_ptr: (N,), of any stride; its gradient is divided by `divisor`
    grad_input1_ptr, grad_input2_ptr: (N, D), of any strides, or None if it is not wanted (written)
    n_rows: N
    n_cols: D
    """
    has_doubles: tl.constexpr = input1_ptr.dtype.element_ty == tl.float64 or input2_ptr.dtype.element_ty == tl.float64
    dtype: tl.constexpr = tl.float64 if has_doubles else tl.float32  # half precision is for storage only
    program = tl.program_id(0)
    col_tiles = tl.cdiv(n_cols + GROUP - 1, COLS)
    row = (program // col_tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_mask = row < n_rows
    skew = (row * input1_row_stride % GROUP).to(tl.int32)[:, None]
    first_lane = (program % col_tiles) * COLS
    lane = (first_lane + tl.arange(0, COLS))[None, :]
    mask, overlapping, inside = masks_of_lanes(lane, skew, row_mask[:, None], n_cols, ALIGN, GROUP)
    is_last = True if GROUP == 1 else program // col_tiles == tl.cdiv(n_rows, ROWS) - 1
    is_edge = False if GROUP == 1 else (first_lane == 0) | (first_lane + COLS > n_cols)

    lane = lane.to(tl.int64)
    place1 = start_of_lanes(row, input1_row_stride, ALIGN, GROUP)[:, None] + lane * input1_col_stride
    place2 = start_of_lanes(row, input2_row_stride, ALIGN, GROUP)[:, None] + lane * input2_col_stride
    input1 = load_lanes(input1_ptr, place1, mask, overlapping, is_last)
    input2 = load_lanes(input2_ptr, place2, mask, overlapping, is_last)
    input1 = input1.to(dtype)
    input2 = input2.to(dtype)
    target = tl.load(target_ptr + row * target_stride, mask=row_mask, other=0)
    if dot_ptr is None:
        dot, square1, square2 = _sums(input1, input2)
    else:
        dot = tl.load(dot_ptr + row, mask=row_mask, other=0.0)
        square1 = tl.load(square1_ptr + row, mask=row_mask, other=1.0)
        square2 = tl.load(square2_ptr + row, mask=row_mask, other=1.0)
    grad_loss = tl.load(grad_loss_ptr + row * grad_loss_stride, mask=row_mask, other=0.0).to(dtype) / divisor

    norms = sqrt(square1 * square2)
    cos = dot / norms
    beyond = cos - MARGIN
    has_gradient = beyond > 0.0 if _IS_TIE_CLAMPED else beyond >= 0.0
    grad_cos = tl.where(target == 1, -grad_loss, tl.where((target == -1) & has_gradient, grad_loss, 0.0))
    grad_dot = (grad_cos / norms)[:, None]
    if grad_input1_ptr is not None:
        grad_input1 = grad_dot * input2 - (grad_cos * cos / square1)[:, None] * input1
        place = start_of_lanes(row, grad_input1_row_stride, ALIGN, GROUP)[:, None] + lane * grad_input1_col_stride
        store_lanes(grad_input1_ptr, place, grad_input1, mask, inside, is_edge)
    if grad_input2_ptr is not None:
        grad_input2 = grad_dot * input1 - (grad_cos * cos / square2)[:, None] * input2
        place = start_of_lanes(row, grad_input2_row_stride, ALIGN, GROUP)[:, None] + lane * grad_input2_col_stride
        store_lanes(grad_input2_ptr, place, grad_input2, mask, inside, is_edge)


class CosineEmbedding(Reduced):
    """`1 - cos(input1, input2)` where target is 1, `max(0, cos - margin)` where it is -1."""

    defaults = defaults_of(torch.nn.functional.cosine_embedding_loss)
    constant = frozenset({"target"})

    def inputs(self, arguments: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        """See `Reduced.inputs`."""
        return [arguments[name] for name in _INPUTS]

    def shape(self, arguments: Mapping[str, Any]) -> Sequence[int]:
        """See `Reduced.shape`."""
        return _matrices(arguments)[0].shape[: arguments["target"].dim()]

    def kept(self, arguments: Mapping[str, Any]) -> Mapping[str, tuple[torch.dtype, int]]:
        """See `Reduced.kept`: three sums of each row, unless a program has whole rows."""
        matrices = _matrices(arguments)
        n_rows, n_cols = matrices[0].shape
        each = compute_dtype(*matrices), n_rows
        return {} if _is_whole(_lanes(matrices), n_cols) else dict.fromkeys(_SUMS, each)

    def misfit(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Reduced.misfit`."""
        input1, input2, target = (arguments[name] for name in (*_INPUTS, "target"))
        if not isinstance(arguments["margin"], (int, float)):
            return "a margin that is no number"
        if target.dim() > 1 or input1.dim() != target.dim() + 1 or input2.dim() != input1.dim():
            return f"inputs of {input1.dim()} and {input2.dim()} dimensions, a target of {target.dim()}"
        if input1.shape[-1] != input2.shape[-1]:
            return "rows of different lengths"
        if not (input1.numel() and input2.numel() and target.numel()):
            return "empty inputs"
        if target.dim() == 1:
            counts = {input1.shape[0], input2.shape[0], target.shape[0]} - {1}
            if len(counts) > 1:
                return "different numbers of rows"
            for name, tensor in zip(_INPUTS, (input1, input2), strict=True):
                if name in needs_gradient and counts and tensor.shape[0] == 1:
                    return "the gradient of an input with one row for all rows of the other"
        if "target" in needs_gradient and not {*_INPUTS} & {*needs_gradient}:
            return "the gradient of the target, which has none"
        return None

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        matrices = _matrices(arguments)
        tile, num_warps = _tile(matrices)
        loss, saved = self.results(arguments)
        programs = triton.cdiv(len(matrices[0]), tile["ROWS"])
        if reduction_of(arguments) != "none":
            programs = strided(programs, num_warps)
        both, summing = self._common(arguments, saved), self.summing(arguments, programs)
        own = {**both, "loss_ptr": loss, **summing, **tile}
        return Forward(loss, saved, (Launch(cosine_embedding_loss_forward, (programs,), own, num_warps),))

    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """See `Handwritten.backward`."""
        matrices = _matrices(arguments)
        n_rows, n_cols = matrices[0].shape
        own = {**self._common(arguments, saved), **upstream_arguments(upstream)}
        gradients = self.gradients(arguments, wanted)
        for name in _INPUTS:
            own |= described(f"grad_{name}", gradients.get(name), ("row", "col"), (n_rows, n_cols))
        matrices += [each.expand(n_rows, n_cols) for each in gradients.values()]
        tile, num_warps = _tile(matrices, is_whole=not saved)
        grid = (triton.cdiv(n_rows, tile["ROWS"]) * triton.cdiv(n_cols + tile["GROUP"] - 1, tile["COLS"]),)
        return Backward(gradients, (Launch(cosine_embedding_loss_backward, grid, {**own, **tile}, num_warps),))

    def _common(self, arguments: Mapping[str, Any], saved: Sequence[torch.Tensor]) -> dict[str, Any]:
        """What forward and backward both take, by the names of the kernels' parameters."""
        n_rows, n_cols = shape = _matrices(arguments)[0].shape
        target = arguments["target"]
        if target.dtype in (torch.bool, torch.uint8):
            target = target.view(torch.int8)  # where 255 is -1, as it is for torch
        common = {**dict.fromkeys(_SUMS), **self.shared(arguments, saved), "n_rows": n_rows, "n_cols": n_cols}
        for name in _INPUTS:
            common |= described(name, arguments[name], ("row", "col"), shape)
        common |= {"target_ptr": target, "target_stride": target.expand(n_rows).stride(0)}
        return {**common, "MARGIN": float(arguments["margin"])}


def _matrices(arguments: Mapping[str, Any]) -> list[torch.Tensor]:
    """Both inputs, as matrices of the same shape."""
    inputs = [arguments[name] for name in _INPUTS]
    n_cols = inputs[0].shape[-1]
    n_rows = max(arguments["target"].numel(), *(each.numel() // n_cols for each in inputs))
    return [each.expand(n_rows, n_cols) for each in inputs]


def _lanes(matrices: Sequence[torch.Tensor], *, is_whole: bool = False) -> dict[str, int]:
    """The lanes of a row, by the names of the kernels' parameters: the fewest that are idle, or all that it takes."""
    lanes = lanes_of(matrices)
    if is_whole:
        lanes["GROUP"] = 1
    n_lanes = matrices[0].shape[1] + lanes["GROUP"] - 1
    row_stride, col_stride = matrices[0].stride()
    # A transposed input is read in runs of one column.
    most = min(triton.next_power_of_2(n_lanes), 32 if row_stride == 1 < col_stride else _TILE)
    choices = [most, *(most >> k for k in range(1, 5) if most >> k >= _LEAST_COLS and not is_whole)]
    return {**lanes, "COLS": min(choices, key=lambda each: triton.cdiv(n_lanes, each) * each)}


def _is_whole(lanes: Mapping[str, int], n_cols: int) -> bool:
    """Whether lanes are of whole rows, and nothing of others."""
    return lanes["GROUP"] == 1 and lanes["COLS"] >= n_cols


def _tile(matrices: Sequence[torch.Tensor], *, is_whole: bool = False) -> tuple[dict[str, int], int]:
    """The tile of a program, by the names of the kernels' parameters, and its warps; of whole rows, if these fit."""
    lanes = _lanes(matrices, is_whole=is_whole)
    n_rows, n_cols = matrices[0].shape
    is_double = any(each.dtype == torch.float64 for each in matrices)
    held = _HELD if _is_whole(lanes, n_cols) and not is_double else _HELD // 2
    rows = max((_TILE if lanes["COLS"] <= _SHORT else 32 * held) // lanes["COLS"], 1)
    tile = {**lanes, "ROWS": min(rows, triton.next_power_of_2(n_rows))}
    return tile, max(tile["ROWS"] * tile["COLS"] // (32 * held), 1)
