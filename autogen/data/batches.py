"""Collate functions for variable-length samples, and `to_device`, which copies a batch of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate, default_convert

from autogen.compat import jagged_extras, places_of, pytree
from autogen.errors import DataError

_Join = Callable[[str, list[Tensor]], Any]


class Padded(NamedTuple):
    """A batch of variable-length sequences, padded to one length.

    Attributes:
        values: (B, L, ...), of the dtype of the sequences.
        lengths: (B) int64, the length of each sequence without padding.
    """

    values: Tensor
    lengths: Tensor

    def unbind(self) -> tuple[Tensor, ...]:
        """The sequences without padding, as views. On a GPU this waits for their lengths."""
        return tuple(row[:length] for row, length in zip(self.values, self.lengths.tolist(), strict=True))


def ragged_collate(samples: Sequence[Any], fields: Collection[str | int] | None = None) -> Any:
    """Collate samples into a batch whose variable-length fields are jagged tensors, without padding.

    The `.values()` (T, ...) of a jagged tensor are the sequences one after the other, its `.unbind()` the tensors of
    the samples. Fields of the same lengths share their offsets, so that torch can combine them: boxes with labels.

    Args:
        samples: the samples, as a `DataLoader` passes them; at least one.
        fields: the names of variable-length fields, such as "target.boxes"; see `autogen.data`.

    Returns:
        The batch, in the containers of a sample.

    Raises:
        DataError: a ValueError. Samples have other fields than the first one; a field has another dtype, number of
            dimensions or size than in the first sample, of which only the length of those in `fields` may differ; a
            name in `fields` is of no field.
    """
    offsets: dict[tuple[int, ...], Tensor] = {}

    def join(_: str, tensors: list[Tensor]) -> Tensor:
        lengths = tuple(map(len, tensors))
        if lengths not in offsets:
            offsets[lengths] = torch.tensor([0, *accumulate(lengths)])
        return torch.nested.nested_tensor_from_jagged(torch.cat(tensors), offsets[lengths])

    return _collated(samples, fields, join)


def padded_collate(
    samples: Sequence[Any],
    fields: Collection[str | int] | None = None,
    *,
    length: int | None = None,
    value: float = 0.0,
) -> Any:
    """Collate samples into a batch whose variable-length fields are `Padded`: a tensor (B, L, ...) and the lengths.

    Args:
        samples: the samples, as a `DataLoader` passes them; at least one.
        fields: the names of variable-length fields, such as "target.boxes"; see `autogen.data`.
        length: L, for batches of one shape; by default the length of the longest sequence in this batch.
        value: the value of the padding.

    Returns:
        The batch, in the containers of a sample.

    Raises:
        DataError: a ValueError, as from `ragged_collate`, or because a sequence is longer than `length`.
    """

    def join(name: str, tensors: list[Tensor]) -> Padded:
        lengths = list(map(len, tensors))
        missing = 0 if length is None else length - max(lengths)
        if missing < 0:
            sample = lengths.index(max(lengths))
            raise DataError(
                f"{_field(name)} has {lengths[sample]} rows in sample {sample}, and is padded to {length}",
                "Pass a greater length, or leave it out.",
            )
        values = pad_sequence(tensors, batch_first=True, padding_value=value)
        sides = (0, 0) * (values.dim() - 2)  # of the last dimensions, which F.pad takes first
        return Padded(F.pad(values, (*sides, 0, missing), value=value), torch.tensor(lengths))

    return _collated(samples, fields, join)


def _collated(samples: Sequence[Any], fields: Collection[str | int] | None, join: _Join) -> Any:
    """A batch of samples, whose fields of many lengths are joined by `join`."""
    if not samples:
        raise DataError("there are no samples", "Make batches of at least one sample.")
    names, structure = places_of(samples[0]), pytree.tree_structure(samples[0])
    rows = []
    for number, sample in enumerate(samples):
        try:
            rows.append(structure.flatten_up_to(sample))
        except ValueError as difference:
            raise DataError(
                f"sample {number} is not built as sample 0 is: {difference}",
                "Give all samples the same fields; make a tensor of a list whose length differs.",
            ) from difference
    chosen = [""] if fields is None else [str(each) for each in fields]
    for each in chosen:
        if not any(_is_below(name, each) for name in names):
            raise DataError(
                f"no field is named {each!r}", f"The fields of the samples are {', '.join(map(repr, names))}."
            )
    columns = zip(names, zip(*rows, strict=True), strict=True)
    batch = [
        _joined(name, column, join if any(_is_below(name, each) for each in chosen) else None)
        for name, column in columns
    ]
    return pytree.tree_unflatten(batch, structure)


def _is_below(name: str, other: str) -> bool:
    """Whether a field is the one of another name, or inside of it."""
    return not other or name == other or name.startswith(f"{other}.")


def _field(name: str) -> str:
    return f"field {name!r}" if name else "the sample"


def _joined(name: str, column: Sequence[Any], join: _Join | None) -> Any:
    """One field of all samples, whose tensors may be of many lengths if there is a `join`."""
    column = [each if isinstance(each, Tensor) else default_convert(each) for each in column]
    first = column[0]
    is_ragged = join is not None and isinstance(first, Tensor) and first.dim() > 0
    expected = _traits(first, is_ragged)
    for number, each in enumerate(column):
        found = _traits(each, is_ragged)
        if found != expected:
            kinds = ("type", "dtype", "number of dimensions", "trailing shape" if is_ragged else "shape")
            kind, one, other = next(each for each in zip(kinds, found, expected, strict=False) if each[1] != each[2])
            remedy = "Make it the same in all samples."
            if kind == "shape" and join is None:
                remedy = f"Add {name!r} to fields, if it is its length that differs."
            raise DataError(f"{_field(name)} has the {kind} {one} in sample {number}, and {other} in sample 0", remedy)
    if join is not None and is_ragged:
        return join(name, column)
    try:
        return default_collate(column)
    except TypeError as reason:
        raise DataError(
            f"{_field(name)} is a {type(first).__name__}, of which torch makes no batch ({reason})",
            "Convert it to a tensor or a number.",
        ) from reason


def _traits(value: Any, is_ragged: bool) -> tuple[Any, ...]:
    """What a field has in common in all samples."""
    if not isinstance(value, Tensor):
        return (type(value).__name__,)  # also of numbers, as torch makes another dtype of integers alone
    return "Tensor", value.dtype, value.dim(), tuple(value.shape[is_ragged:])


def to_device(batch: Any, device: torch.device | str | int, non_blocking: bool = True) -> Any:
    """Copy a batch to a device, in containers of the same types.

    A tensor takes one copy, also if it occurs twice. All tensors of a list take one copy together: they are packed into
    one buffer on the host, whatever their dtypes, and are views of it on the device. A jagged tensor takes two, its
    values and its offsets, and torch is told the greatest length, if the host knows it. For a GPU, memory that is not
    pinned is pinned first, so that the host waits for nothing; after a `DataLoader` with `pin_memory`, tensors of a
    list are copied one by one. An object with a `to` of its own moves by that; other objects stay as they are.

    Args:
        batch: tensors, jagged ones too, in containers as in `autogen.data`.
        device: the target.
        non_blocking: whether the host may go on before tensors are copied, as in `Tensor.to`.

    Returns:
        The batch on the device.
    """
    return _Move(torch.device(device), non_blocking)(batch)


class _Move:
    """The move of one batch."""

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device, self.non_blocking = device, non_blocking
        self.pins = device.type == "cuda" and torch.cuda.is_available()
        self._moved: dict[int, Tensor] = {}  # by identity, as offsets are those of several fields

    def __call__(self, batch: Any) -> Any:
        return pytree.tree_map(self._leaf, batch, is_leaf=lambda each: hasattr(each, "to") or self._can_pack(each))

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, list):
            return self._packed(value)
        if isinstance(value, Tensor):
            return self._jagged(value) if value.layout is torch.jagged else self._once(value)
        return value.to(self.device, non_blocking=self.non_blocking) if hasattr(value, "to") else value

    def _once(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._moved:
            self._moved[id(tensor)] = self._copied(tensor)
        return self._moved[id(tensor)]

    def _copied(self, tensor: Tensor) -> Tensor:
        if self.pins and tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_nested:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=self.non_blocking)

    def _jagged(self, tensor: Tensor) -> Tensor:
        if tensor.device == self.device:
            return tensor
        jagged: Any = tensor
        offsets, lengths, extras = jagged.offsets(), jagged.lengths(), jagged_extras(tensor)
        if extras["max_seqlen"] is None and offsets.device.type == "cpu":
            extras["max_seqlen"] = max((offsets.diff() if lengths is None else lengths).tolist(), default=0)
        moved = None if lengths is None else self._once(lengths)
        return torch.nested.nested_tensor_from_jagged(
            self._copied(tensor.values()), self._once(offsets), moved, **extras
        )

    def _can_pack(self, value: Any) -> bool:
        """Whether a value is a list of tensors that are worth packing."""
        return (
            type(value) is list
            and len(value) > 1
            and self.device.type != "cpu"
            and all(
                type(each) is Tensor
                and each.device.type == "cpu"
                and each.layout is torch.strided
                and not (each.requires_grad or each.is_nested)
                for each in value
            )
            and not (self.pins and value[0].is_pinned())
        )

    def _packed(self, tensors: list[Tensor]) -> list[Tensor]:
        """A list of tensors, copied as one; the widest elements come first, so that all are aligned."""
        groups = defaultdict(list)  # of what can be joined
        for k, each in enumerate(tensors):
            groups[each.element_size(), each.dtype, each.shape[1:], each.dim()].append(k)
        order = [groups[key] for key in sorted(groups, key=lambda key: -key[0])]
        joined = [[tensors[k] if tensors[k].dim() else tensors[k].reshape(1) for k in group] for group in order]
        sizes = [sum(each.nbytes for each in group) for group in joined]
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, device="cpu", pin_memory=self.pins)
        for part, group in zip(buffer.split(sizes), joined, strict=True):
            torch.cat(group, out=_rows(part, group))
        there = buffer.to(self.device, non_blocking=self.non_blocking)
        moved = list(tensors)
        for part, group, places in zip(there.split(sizes), joined, order, strict=True):
            for k, row in zip(places, _rows(part, group).split(list(map(len, group))), strict=True):
                moved[k] = row if tensors[k].dim() else row[0]
        return moved


def _rows(part: Tensor, group: Sequence[Tensor]) -> Tensor:
    """Some bytes as the tensor that joins a group of tensors, of one dtype and trailing shape."""
    return part.view(group[0].dtype).view(sum(map(len, group)), *group[0].shape[1:])
