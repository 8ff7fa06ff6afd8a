"""Checks that torch makes of the arguments of an op, and its fake implementation does not.

Each is called with the arguments, and returns `NotImplemented`: the op itself is to be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false


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


def not_by_zero(dividend: Any, divisor: Any, *, rounding_mode: str | None = "floor") -> Any:
    """A check of a division of integers, where it does not wait for a device."""
    if isinstance(divisor, Tensor) and divisor.device.type == "cpu" and rounding_mode is not None:
        is_of_integers = not torch.result_type(dividend, divisor).is_floating_point
        is_empty = isinstance(dividend, Tensor) and guard_or_false(dividend.numel() == 0)
        refuse(is_of_integers and not is_empty and (divisor == 0).any(), "ZeroDivisionError")
    return NotImplemented


def positive_beta(input: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
    """A check of the threshold of `smooth_l1_loss`."""
    refuse(beta < 0, "smooth_l1_loss does not support negative values for beta.")
    return NotImplemented


def of_some_elements(input: Tensor, dim: int | None = None, *_: Any) -> Any:
    """A check that there are elements, over a dimension or all, of which one is the largest or smallest."""
    count = input.numel() if dim is None or not input.dim() else input.shape[dim]
    refuse(guard_or_false(count == 0), "the largest or smallest of no elements")
    return NotImplemented


def within(place: int, *others: int) -> Callable[..., Any]:
    """A check that tensors are broadcast to no more than the one at `place`, in whose like torch writes."""

    def check(*args: Any) -> Any:
        shapes = [args[k].shape for k in (place, *others) if k < len(args) and args[k] is not None]
        refuse(torch.broadcast_shapes(*shapes) != shapes[0], f"an output of {list(shapes[0])} for what is broadcast")
        return NotImplemented

    return check
