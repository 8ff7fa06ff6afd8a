"""The kernels of MultiLabelMarginLoss: each target class against every other class of its row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from autogen.losses.handwritten._reduction import (
    Reduced,
    compute_dtype,
    described,
    sum_over_programs,
    upstream_arguments,
)
from autogen.losses.handwritten._rows import lanes_of, load_lanes, masks_of_lanes, start_of_lanes, store_lanes
from autogen.runtime.handwritten import Backward, Forward, Found, Launch, defaults_of

_MAX_CLASSES = 8192
# Pairs of a target and a class that a program looks at in one step, where there are few classes; then, how many targets
# it looks at all the same, up to 1024 classes and beyond.
_PAIRS, _LEAST_SLOTS = 2048, (4, 2)


@triton.jit
def _class_of(label: tl.tensor, n_classes: tl.tensor) -> tl.tensor:
    """Labels in 32 bits, -1 for those that are no class."""
    return tl.where((label >= 0) & (label < n_classes), label, -1).to(tl.int32)


@triton.jit
def mark_targets(
    target_ptr: tl.tensor,
    stride: tl.tensor,
    classes: tl.tensor,
    n_classes: tl.tensor,
    COLS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Which classes are targets (COLS,); how many slots there are before the first -1; whether all are classes.

    target_ptr: int64 (C,), one row; what follows its first negative number is not read, but for the rest of a step
    classes: (COLS,)
    n_classes: C
    """
    hits = tl.zeros([COLS], tl.int32)
    greatest = tl.full([], -1, tl.int64)
    n_targets = tl.full([], 0, tl.int32)
    first_slot = tl.full([], 0, tl.int32)
    while first_slot < n_classes:
        slot = first_slot + tl.arange(0, SLOTS)
        label = tl.load(target_ptr + slot.to(tl.int64) * stride, mask=slot < n_classes, other=-1)
        n_targets = tl.min(tl.where(label < 0, slot, first_slot + SLOTS), 0)
        label = tl.where(slot < n_targets, label, -1)
        hits += tl.sum((_class_of(label, n_classes)[:, None] == classes[None, :]).to(tl.int32), 0)
        greatest = tl.maximum(greatest, tl.max(label, 0))
        # A step with an end of the targets in it is the last.
        first_slot = tl.where(n_targets < first_slot + SLOTS, n_classes, first_slot + SLOTS)
    return hits > 0, n_targets, greatest < n_classes


@triton.jit
def load_targets(
    input_ptr: tl.tensor,
    target_ptr: tl.tensor,
    input_stride: tl.tensor,
    target_stride: tl.tensor,
    slot: tl.tensor,
    n_targets: tl.tensor,
    n_classes: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """The targets in some slots, -1 where there is none, and the input at each, inf where there is none."""
    label = tl.load(target_ptr + slot.to(tl.int64) * target_stride, mask=slot < n_targets, other=-1)
    label = _class_of(label, n_classes)
    input = tl.load(input_ptr + label.to(tl.int64) * input_stride, mask=label >= 0, other=float("inf"))
    return label, input


@triton.jit
def multilabel_margin_loss_forward(
    input_ptr: tl.tensor,
    target_ptr: tl.tensor,
    loss_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    counter_ptr: tl.tensor,
    n_classes: tl.tensor,
    input_row_stride: tl.tensor,
    input_col_stride: tl.tensor,
    target_row_stride: tl.tensor,
    target_col_stride: tl.tensor,
    divisor: tl.tensor,
    DTYPE: tl.constexpr,
    ALIGN: tl.constexpr,
    GROUP: tl.constexpr,
    COLS: tl.constexpr,
    SLOTS: tl.constexpr,
    PARTIALS: tl.constexpr,
) -> None:
    """A row per program, of COLS classes or lanes (see `_rows`), SLOTS targets at a time.

    loss = sum over targets t and classes c that are no targets of max(0, 1 - input[t] + input[c]), divided by `divisor`

    input_ptr: (N, C), of any strides
    target_ptr: int64 (N, C), of any strides; the targets of a row end before its first negative number
    loss_ptr: (N,); with PARTIALS scalar, the sum over all rows (written)
    partials_ptr: DTYPE (N,), one partial result per program
    counter_ptr: int32 scalar, 0 before and after
    n_classes: C
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, COLS)
    skew = (row * input_row_stride % GROUP).to(tl.int32)
    mask, overlapping, _inside = masks_of_lanes(lane, skew, True, n_classes, ALIGN, GROUP)
    place = start_of_lanes(row, input_row_stride, ALIGN, GROUP) + lane.to(tl.int64) * input_col_stride
    is_last = True if GROUP == 1 else row + 1 == tl.num_programs(0)
    input = load_lanes(input_ptr, place, mask, overlapping, is_last).to(DTYPE)
    input_ptr += row * input_row_stride
    target_ptr += row * target_row_stride
    is_target, n_targets, is_valid = mark_targets(target_ptr, target_col_stride, lane - skew, n_classes, COLS, SLOTS)
    # -inf makes up no pair, whatever the target.
    other = tl.where(mask & ~is_target, input, float("-inf"))

    # Per class, and compensated in single precision: there may be thousands of targets.
    hinges = tl.zeros([COLS], DTYPE)
    lost = tl.zeros([COLS], DTYPE)
    for first_slot in range(0, n_targets, SLOTS):
        slot = first_slot + tl.arange(0, SLOTS)
        _, at_target = load_targets(
            input_ptr, target_ptr, input_col_stride, target_col_stride, slot, n_targets, n_classes
        )
        hinge = (1.0 - at_target.to(DTYPE))[:, None] + other[None, :]
        step = tl.sum(tl.where(hinge > 0.0, hinge, 0.0), 0) - lost
        total = hinges + step
        if tl.float32 == DTYPE:
            # An infinite total has lost nothing that counts.
            lost = tl.where(total < float("inf"), (total - hinges) - step, 0.0)
        hinges = total
    # A target that is no class has no loss; on the CPU it is refused.
    loss = tl.where(is_valid, tl.sum(hinges, 0), float("nan"))
    if PARTIALS is None:
        tl.store(loss_ptr + row, loss / divisor)
    else:
        sum_over_programs(
            loss, loss_ptr, partials_ptr, counter_ptr, divisor, PARTIALS, tl.program_id(0), tl.num_programs(0)
        )


@triton.jit
def multilabel_margin_loss_backward(
    input_ptr: tl.tensor,
    target_ptr: tl.tensor,
    grad_loss_ptr: tl.tensor,
    grad_input_ptr: tl.tensor,
    n_classes: tl.tensor,
    input_row_stride: tl.tensor,
    input_col_stride: tl.tensor,
    target_row_stride: tl.tensor,
    target_col_stride: tl.tensor,
    grad_loss_stride: tl.tensor,
    grad_row_stride: tl.tensor,
    divisor: tl.tensor,
    DTYPE: tl.constexpr,
    ALIGN: tl.constexpr,
    GROUP: tl.constexpr,
    COLS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    """A row per program, of COLS classes or lanes (see `_rows`), SLOTS targets at a time.

    Every pair of a target t and another class c with 1 - input[t] + input[c] > 0 adds grad_loss / divisor
    to grad_input[c] and takes it from grad_input[t]

    input_ptr: (N, C), of any strides
    target_ptr: int64 (N, C), of any strides; the targets of a row end before its first negative number
    grad_loss_ptr: (N,), of any stride
    grad_input_ptr: (N, C), contiguous (written)
    n_classes: C
    """
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, COLS)
    skew = (row * input_row_stride % GROUP).to(tl.int32)
    mask, overlapping, inside = masks_of_lanes(lane, skew, True, n_classes, ALIGN, GROUP)
    place = start_of_lanes(row, input_row_stride, ALIGN, GROUP) + lane.to(tl.int64) * input_col_stride
    is_last = True if GROUP == 1 else row + 1 == tl.num_programs(0)
    input = load_lanes(input_ptr, place, mask, overlapping, is_last).to(DTYPE)
    input_ptr += row * input_row_stride
    target_ptr += row * target_row_stride
    classes = lane - skew
    is_target, n_targets, is_valid = mark_targets(target_ptr, target_col_stride, classes, n_classes, COLS, SLOTS)
    other = tl.where(mask & ~is_target, input, float("-inf"))

    pairs = tl.zeros([COLS], tl.int32)
    for first_slot in range(0, n_targets, SLOTS):
        slot = first_slot + tl.arange(0, SLOTS)
        label, at_target = load_targets(
            input_ptr, target_ptr, input_col_stride, target_col_stride, slot, n_targets, n_classes
        )
        is_pair = ((1.0 - at_target.to(DTYPE))[:, None] + other[None, :] > 0.0).to(tl.int32)
        pairs += tl.sum(is_pair, 0)
        pairs -= tl.sum(tl.where(label[:, None] == classes[None, :], tl.sum(is_pair, 1)[:, None], 0), 0)

    grad_loss = tl.load(grad_loss_ptr + row * grad_loss_stride).to(DTYPE) / divisor
    grad_input = pairs.to(DTYPE) * tl.where(is_valid, grad_loss, float("nan"))
    grad_input_ptr += start_of_lanes(row, grad_row_stride, ALIGN, GROUP)
    store_lanes(grad_input_ptr, lane, grad_input, mask, inside, GROUP > 1)


class MultiLabelMargin(Reduced):
    """`sum of max(0, 1 - x[t] + x[c]) / C` over targets `t` and the classes `c` that are no targets."""

    defaults = defaults_of(torch.nn.functional.multilabel_margin_loss)
    gradient_format = torch.contiguous_format
    checks_values = True  # on the CPU, as torch does

    def reads(self, arguments: Mapping[str, Any]) -> tuple[str, ...] | None:
        """See `Handwritten.reads`: labels on the CPU are looked at."""
        return () if self.checks_values and arguments["target"].device.type == "cpu" else None

    def read(self, arguments: Mapping[str, Any]) -> Found | str:
        """See `Handwritten.read`."""
        least, greatest = arguments["target"].aminmax()
        is_known = least >= -1 and greatest < _sizes(arguments["input"])[1]
        return Found({}) if is_known else "targets that are no classes"

    def inputs(self, arguments: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        """See `Reduced.inputs`."""
        return [arguments["input"]]

    def shape(self, arguments: Mapping[str, Any]) -> Sequence[int]:
        """See `Reduced.shape`."""
        return arguments["input"].shape[:-1]

    def misfit(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Reduced.misfit`."""
        input, target = arguments["input"], arguments["target"]
        if target.dtype != torch.int64:
            return "targets that are not int64"
        if input.dim() > 2:
            return f"an input of {input.dim()} dimensions"
        if not input.numel():
            return "an empty input"
        if input.shape != target.shape and (input.dim() == 2 or target.dim() > 1 or target.numel() != input.numel()):
            return "targets of another shape than the input"
        if _sizes(input)[1] > _MAX_CLASSES:
            return f"more than {_MAX_CLASSES} classes"
        return None

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        n_rows, _ = _sizes(arguments["input"])
        loss, _ = self.results(arguments)
        own = {**self._common(arguments, []), **self.summing(arguments, n_rows), "loss_ptr": loss}
        return Forward(loss, (), (Launch(multilabel_margin_loss_forward, (n_rows,), own, _num_warps(own)),))

    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """See `Handwritten.backward`."""
        gradients = self.gradients(arguments, wanted)
        n_rows, n_classes = _sizes(arguments["input"])
        own = {**self._common(arguments, gradients.values()), **upstream_arguments(upstream)}
        own |= {"grad_input_ptr": gradients["input"], "grad_row_stride": n_classes}
        return Backward(gradients, (Launch(multilabel_margin_loss_backward, (n_rows,), own, _num_warps(own)),))

    def _common(self, arguments: Mapping[str, Any], gradients: Iterable[torch.Tensor]) -> dict[str, Any]:
        """What forward and backward both take, by the names of the kernels' parameters."""
        input = arguments["input"]
        n_rows, n_classes = shape = _sizes(input)
        cols = triton.next_power_of_2(n_classes)
        lanes = lanes_of([each.expand(n_rows, n_classes) for each in (input, *gradients)])
        if n_classes + lanes["GROUP"] - 1 > cols:  # more lanes would be idle than columns are gained
            lanes["GROUP"] = 1
        common = {**self.shared(arguments, ()), "n_classes": n_classes}
        common["divisor"] *= n_classes
        for name in ("input", "target"):
            common |= described(name, arguments[name], ("row", "col"), shape)
        common["DTYPE"] = tl.float64 if compute_dtype(input) == torch.float64 else tl.float32
        return {**common, **lanes, "COLS": cols, "SLOTS": min(cols, 16, max(_LEAST_SLOTS[cols > 1024], _PAIRS // cols))}


def _sizes(input: torch.Tensor) -> tuple[int, int]:
    """Rows and classes."""
    return (input.shape[0], input.shape[1]) if input.dim() == 2 else (1, input.numel())


def _num_warps(common: Mapping[str, Any]) -> int:
    """Warps of a program: at most 32 pairs per thread in single precision, 16 in double."""
    pairs = common["COLS"] * common["SLOTS"]
    return max(4, min(16, pairs * common["DTYPE"].primitive_bitwidth // 2**15))
