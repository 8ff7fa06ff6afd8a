"""Checks that torch makes of the arguments of an op, and its fake implementation does not.

Each is called with the arguments, and returns `NotImplemented`: the op itself is to be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils._python_dispatch import _disable_current_modes


def refuse(condition: Any, message: str, error: type[Exception] = RuntimeError) -> None:
    """Raise on a condition that torch raises on: the call then runs in torch, which says it in its own words."""
    if condition:
        raise error(message)


def of_one_dtype(*positions: int) -> Callable[..., Any]:
    """A check that the given arguments, where they are tensors, have the dtype of the first of them."""

    def check(*args: Any) -> Any:
        first, *others = [args[k] for k in positions if k < len(args) and args[k] is not None]
        for other in others:
            refuse(other.dtype != first.dtype, f"expected {first.dtype} but found {other.dtype}")
        return NotImplemented

    return check


def in_unit_interval(input: Tensor, target: Tensor, *_: Any) -> Any:
    """A check of probabilities, where it does not wait for a device."""
    if input.device.type == "cpu":
        are_probabilities = (input >= 0) & (input <= 1) & (target >= 0) & (target <= 1)
        refuse(not are_probabilities.all(), "all elements of input and target should be between 0 and 1")
    return NotImplemented


def of_class_index(*dtypes: torch.dtype) -> Callable[..., Any]:
    """A check of the targets of `nll_loss_forward(input, target, weight, reduction, ignore_index)`."""

    def check(input: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Any:
        refuse(target.dtype not in dtypes, f"expected a target of one of {dtypes}, but got {target.dtype}")
        if weight is not None:
            classes = input.shape[min(1, input.dim() - 1)]
            refuse(weight.dim() != 1 or weight.shape[0] != classes, "a weight tensor that is not one per class")
        if target.device.type == "cpu":
            outside = (target < 0) | (target >= input.shape[min(1, input.dim() - 1)])
            refuse((outside & (target != ignore_index)).any(), "a target is out of bounds", IndexError)
        return NotImplemented

    return check


def of_each_place(input: Tensor, target: Tensor, *_: Any) -> Any:
    """A check of the sizes of the targets of `nll_loss2d_forward`."""
    if input.dim() == 4:
        refuse(target.shape != (input.shape[0], *input.shape[2:]), "targets of other sizes than the input's")
    return NotImplemented


def not_by_zero(dividend: Any, divisor: Any, *, rounding_mode: str | None = "floor") -> Any:
    """A check of a division of integers, where it does not wait for a device."""
    if isinstance(divisor, Tensor) and divisor.device.type == "cpu" and rounding_mode is not None:
        is_of_integers = not torch.result_type(dividend, divisor).is_floating_point
        is_empty = isinstance(dividend, Tensor) and guard_or_false(dividend.numel() == 0)
        refuse(is_of_integers and not is_empty and (divisor == 0).any(), "ZeroDivisionError")
    return NotImplemented


def were_factorised(info: Tensor, name: str, *, is_matrix: bool) -> None:
    """A check that matrices could be factorised or inverted, where it does not wait for a device."""
    if info.device.type == "cpu" and (info != 0).any():
        with _disable_current_modes():  # torch says it of a matrix of its own, as the loss may catch the error
            torch.ops.aten._linalg_check_errors(torch.ones(1, dtype=torch.int32), name, is_matrix=is_matrix)


def is_asserted(condition: Tensor, *_: str) -> None:
    """A check of what `torch._assert_async` is told, where it does not wait for a device."""
    if condition.device.type == "cpu":
        refuse(not condition, "an assertion has failed")


def positive_beta(input: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
    """A check of the threshold of `smooth_l1_loss`."""
    refuse(beta < 0, "smooth_l1_loss does not support negative values for beta.")
    return NotImplemented


def along_dimension(input: Tensor, dim: int, *_: Any) -> Any:
    """A check that a dimension is one of a tensor's; a single number has its dimensions 0 and -1 in words only."""
    rank = max(1, input.dim())
    message = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
    refuse(not -rank <= dim < rank, message, IndexError)
    return NotImplemented


def of_mask(input: Tensor, mask: Tensor, *_: Any) -> Any:
    """A check that what tells where a tensor is filled are truth values."""
    refuse(mask.dtype != torch.bool, f"expected a boolean mask but found {mask.dtype}")
    return NotImplemented


def of_some_elements(input: Tensor, dim: int | None = None, *_: Any) -> Any:
    """A check that there are elements, over a dimension or all, of which one is the largest or smallest."""
    count = input.numel() if dim is None or not input.dim() else input.shape[dim]
    refuse(guard_or_false(count == 0), "the largest or smallest of no elements")
    return NotImplemented


def within(place: int, *others: int) -> Callable[..., Any]:
    """A check that tensors are broadcast to no more than the one at `place`, in whose like torch writes."""

    def check(*args: Any) -> Any:
        _fit(args[place].shape, *(args[k].shape for k in others if k < len(args) and args[k] is not None))
        return NotImplemented

    return check


def within_first(first: Tensor, *others: Any) -> None:
    """Raise if tensors are broadcast to more than the first, to which an op writes."""
    _fit(first.shape, *(each.shape for each in others if isinstance(each, Tensor)))


def _fit(room: Sequence[Any], *shapes: Sequence[Any]) -> None:
    refuse(torch.broadcast_shapes(room, *shapes) != tuple(room), f"an output of {list(room)} for what is broadcast")


def of_product(bias: Tensor, first: Tensor, second: Tensor, **_: Any) -> Any:
    """A check that what is added to a product of matrices is broadcast to no more than that."""
    _fit((*first.shape[:-1], *second.shape[first.dim() - 1 :]), bias.shape)
    return NotImplemented


def of_part(part: Callable[..., Tensor]) -> Callable[..., Any]:
    """A check that what is written to a `part` of a tensor has the part's shape."""

    def check(input: Tensor, source: Tensor, *args: Any) -> Any:
        shape = part(input, *args).shape
        refuse(source.shape != shape, f"{list(source.shape)} for a part of {list(shape)}")
        return NotImplemented

    return check


def at_indices(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, *_: Any) -> Any:
    """A check that what is written at indices is broadcast to no more than their places; masks are not indices."""
    places = [k for k, each in enumerate(indices) if each is not None]
    given = [each for each in indices if each is not None]
    refuse(any(each.is_floating_point() for each in given), "an index that is no integer", IndexError)
    if places and not any(each.dtype in (torch.bool, torch.uint8) for each in given):
        found = torch.broadcast_shapes(*(each.shape for each in given))
        rest = [size for k, size in enumerate(input.shape) if k not in places]
        first = places[0] if places[-1] - places[0] == len(places) - 1 else 0
        _fit((*rest[:first], *found, *rest[first:]), values.shape)
    return NotImplemented
