"""Variable-length sequences in one tensor, packed one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.errors import DataError

_DTYPES = (torch.int64, torch.int32)


def ragged(
    values: Tensor,
    offsets: Tensor | Sequence[int] | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    *,
    check: bool = False,
) -> Tensor:
    """Make a jagged `NestedTensor` (`torch.jagged`) of B sequences; the k-th is `values[offsets[k] : offsets[k + 1]]`.

    It is a view of `values`, so gradients flow to it, and `.values()` and `.offsets()` are what was given. torch can
    combine two jagged tensors only if both were made with the same tensor of offsets. B may be 0, and so may a length.

    Offsets or lengths on the host (a list, or a tensor on the CPU) are always checked, and tell torch the greatest
    length, for which torch would otherwise wait for the GPU (`torch.nested.to_padded_tensor`). Those on a device are
    read only with `check=True`, which waits for the device; else errors in them are not noticed. Inside `torch.compile`
    none are read. torch is not told the least length: no loss needs it, and `torch.compile` would recompile where it
    becomes 0 or 1.

    Args:
        values: (T, ...), of any dtype, on any device: all sequences, one after the other.
        offsets: (B + 1) int64 or int32, on the device of `values`, or a list: where each sequence begins, and T.
        lengths: (B) likewise, instead of `offsets`: the length of each sequence. A new tensor of offsets is made.
        check: whether to check offsets or lengths on a device, too, which waits for the device.

    Returns:
        (B, *, ...), where * is the length of each sequence.

    Raises:
        DataError: a ValueError. Both or none of `offsets` and `lengths` are given, with the wrong dtype, number of
            dimensions or device; offsets do not begin at 0, decrease, or do not end at T; a length is negative, or all
            together are not T. torch would take offsets that end before T, but the elements behind them belong to no
            sequence, and count in a sum all the same.
    """
    if not isinstance(values, Tensor) or values.is_nested or values.dim() == 0:
        what = f"{values.dim()}-dimensional tensor" if isinstance(values, Tensor) else type(values).__name__
        raise DataError(f"values is a {what}", "Pass all sequences in one tensor (T, ...), as torch.cat joins them.")
    if (offsets is None) == (lengths is None):
        found = "neither offsets nor lengths" if offsets is None else "both offsets and lengths"
        raise DataError(f"ragged was given {found}", "Pass exactly one of the two.")
    name, given = ("lengths", lengths) if offsets is None else ("offsets", offsets)
    numbers = _numbers(name, given, values)
    longest: int | None = None
    if (check or numbers.device.type == "cpu") and not torch.compiler.is_compiling():
        longest = _longest(name, numbers.cpu(), len(values))
    if offsets is None:
        numbers = F.pad(numbers.cumsum(0), (1, 0))
    if numbers.device != values.device:  # a list
        pinned = numbers.pin_memory() if values.is_cuda else numbers
        numbers = pinned.to(values.device, non_blocking=True)
    return torch.nested.nested_tensor_from_jagged(values, numbers, max_seqlen=longest)


def _numbers(name: str, given: Tensor | Sequence[int] | None, values: Tensor) -> Tensor:
    """What was given as a tensor: on the device of `values`, or on the host if it is no tensor."""
    if isinstance(given, Tensor):
        numbers = given
    else:
        listed = list(given or ())
        numbers = torch.tensor(listed, device="cpu") if listed else torch.empty(0, dtype=torch.int64, device="cpu")
    if numbers.dim() != 1 or (name == "offsets" and not len(numbers)):
        shape = "(B)" if name == "lengths" else "(B + 1), which is [0] for no sequences"
        raise DataError(f"{name} has the shape {tuple(numbers.shape)}", f"Pass numbers in the shape {shape}.")
    if numbers.dtype not in _DTYPES:
        raise DataError(f"{name} is {str(numbers.dtype)[6:]}", "Pass integers, int64 or int32.")
    if numbers is given and numbers.device != values.device:
        raise DataError(
            f"{name} is on {numbers.device}, and values on {values.device}",
            f"Move {name} to {values.device}, or pass a list, which is copied without a synchronisation.",
        )
    return numbers


def _longest(name: str, numbers: Tensor, total: int) -> int:
    """The greatest length of sequences with these offsets or lengths, which are checked."""
    lengths = numbers if name == "lengths" else numbers.diff()
    if name == "offsets" and numbers[0] != 0:
        raise DataError(f"offsets[0] is {numbers[0]}", "Begin offsets with 0, where the first sequence begins.")
    if len(lengths) and lengths.min() < 0:
        k = int((lengths < 0).nonzero()[0])
        if name == "lengths":
            raise DataError(f"lengths[{k}] is {lengths[k]}", "Pass lengths of 0 or more.")
        raise DataError(
            f"offsets decrease: offsets[{k}] is {numbers[k]}, and offsets[{k + 1}] is {numbers[k + 1]}",
            "Pass offsets in ascending order: each sequence ends where the next begins.",
        )
    end = int(numbers.sum() if name == "lengths" else numbers[-1])
    if end != total and name == "lengths":
        raise DataError(
            f"lengths add up to {end}, and values has {total} rows",
            "Pass the length of each sequence, and values without padding.",
        )
    if end != total:
        where = "past" if end > total else "before the end of"
        raise DataError(
            f"offsets end {where} values: offsets[{len(numbers) - 1}] is {end}, and values has {total} rows",
            "End offsets at the number of rows; pass values[:n] to leave out what comes after row n.",
        )
    return int(lengths.max()) if len(lengths) else 0
