"""Losses of variable-length sequences, each as a loop over a list, for comparison with the other forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen import ragged


def giou(p: Tensor, t: Tensor) -> Tensor:
    """`1 - GIoU` of each pair of boxes."""

    def area(box: Tensor) -> Tensor:
        return (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])

    low, high = torch.max(p[..., :2], t[..., :2]), torch.min(p[..., 2:], t[..., 2:])
    sides = (high - low).clamp(min=0)
    inner = sides[..., 0] * sides[..., 1]
    union = area(p) + area(t) - inner
    hull = torch.max(p[..., 2:], t[..., 2:]) - torch.min(p[..., :2], t[..., :2])
    outer = hull[..., 0] * hull[..., 1]
    return 1 - inner / union.clamp(min=1e-5) + (outer - union) / outer.clamp(min=1e-5)


def focal(p: Tensor, t: Tensor) -> Tensor:
    """The focal loss of each item, whose label is whether a target is above one half."""
    x, y = p[..., 0], (t[..., 0] > 0.5).to(p.dtype)
    missed = torch.where(y > 0, 1 - torch.sigmoid(x), torch.sigmoid(x))
    return missed.square() * F.binary_cross_entropy_with_logits(x, y, reduction="none")


def entropy(p: Tensor, t: Tensor) -> Tensor:
    """The cross entropy of each item."""
    labels = (t[..., 1] * 2).long().clamp(0, 3)
    return F.cross_entropy(p.reshape(-1, 4), labels.reshape(-1), reduction="none").reshape(labels.shape)


def dice_parts(p: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Of each item what the dice loss has above the line, and below."""
    x, y = torch.sigmoid(p[..., 0]), (t[..., 0] > 0.5).to(p.dtype)
    return 2 * x * y, x + y


def squares(p: Tensor, t: Tensor) -> Tensor:
    """The squared distance of each point from each other one."""
    return (p[..., :, None, :2] - t[..., None, :, :2]).square().sum(-1)


ITEMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"giou": giou, "focal": focal, "entropy": entropy}


def loop(name: str, p: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
    """A loss as a loop over a list: the mean over the sequences of that of their items, 0 of none."""
    total = torch.zeros((), dtype=p[0].dtype if p else torch.float64)
    for own, other in zip(p, t, strict=True):
        if name == "dice":
            above, below = dice_parts(own, other)
            total = total + 1 - (above.sum() + 1) / (below.sum() + 1)
        elif len(own) and name == "chamfer":
            distance = squares(own, other)
            total = total + distance.amin(0).mean() + distance.amin(1).mean()
        elif len(own):
            total = total + ITEMS[name](own, other).mean()
    return total / max(len(p), 1)


def _sequences(offsets: Tensor, items: int) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff(), output_size=items)


def packed(name: str, p: Tensor, t: Tensor, offsets: Tensor) -> Tensor:
    """The same of values and offsets, by `index_add`."""
    count, lengths = offsets.shape[0] - 1, offsets.diff()
    own = _sequences(offsets, p.shape[0])
    zero = torch.zeros(count, dtype=p.dtype)
    if name == "dice":
        above, below = dice_parts(p, t)
        value = 1 - (zero.index_add(0, own, above) + 1) / (zero.index_add(0, own, below) + 1)
    elif name == "chamfer":
        distance = torch.where(own[:, None] == own[None], squares(p, t), torch.inf)
        value = zero.index_add(0, own, distance.amin(0)) + zero.index_add(0, own, distance.amin(1))
        value = value / lengths.clamp(min=1)
    else:
        value = zero.index_add(0, own, ITEMS[name](p, t)) / lengths.clamp(min=1)
    return value.sum() / max(count, 1)


def reduced(name: str, p: Tensor, t: Tensor, offsets: Tensor) -> Tensor:
    """The same of values and offsets, by `segment_reduce`."""
    count = offsets.shape[0] - 1
    if name == "dice":
        above, below = (torch.segment_reduce(each, "sum", offsets=offsets) for each in dice_parts(p, t))
        return (1 - (above + 1) / (below + 1)).sum() / max(count, 1)
    return torch.segment_reduce(ITEMS[name](p, t), "mean", offsets=offsets, initial=0).sum() / max(count, 1)


def jagged(name: str, p: Tensor, t: Tensor) -> Tensor:
    """The same of jagged tensors."""
    return packed(name, p.values(), t.values(), p.offsets())


def padded(name: str, p: Tensor, t: Tensor, lengths: Tensor) -> Tensor:
    """The same of padded tensors and lengths."""
    here = torch.arange(p.shape[1])[None] < lengths[:, None]
    if name == "dice":
        above, below = (torch.where(here, each, 0).sum(1) for each in dice_parts(p, t))
        value = 1 - (above + 1) / (below + 1)
    elif name == "chamfer":
        distance = torch.where(here[:, :, None] & here[:, None], squares(p, t), torch.inf)
        near = torch.where(here, distance.amin(1), 0) + torch.where(here, distance.amin(2), 0)
        value = near.sum(1) / lengths.clamp(min=1)
    else:
        value = torch.where(here, ITEMS[name](p, t), 0).sum(1) / lengths.clamp(min=1)
    return value.sum() / max(len(lengths), 1)


def joined(name: str, p: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
    """The mean over all items, of lists that are put together."""
    return ITEMS[name](torch.cat(p), torch.cat(t)).mean()


class Batch(NamedTuple):
    """Sequences of predictions and targets, of 4 values per item, of which the last two are not below the first."""

    p: list[Tensor]
    t: list[Tensor]

    @staticmethod
    def of(lengths: Sequence[int], seed: int = 0) -> Batch:
        """A batch of some lengths, in double precision."""
        drawn = torch.Generator().manual_seed(seed)

        def items(count: int) -> Tensor:
            low, size = torch.rand(2, count, 2, generator=drawn, dtype=torch.float64)
            return torch.cat([low, low + size], 1)

        return Batch([items(n) for n in lengths], [items(n) for n in lengths])

    @property
    def lengths(self) -> Tensor:
        """How many items each sequence has."""
        return torch.tensor([len(each) for each in self.p], dtype=torch.int64)

    def given(self, form: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, tuple[Any, ...]]:
        """What a form is given, and the tensor in it that has the gradient of all items: packed, or padded."""
        empty = torch.zeros(0, 4, dtype=torch.float64)
        p, t = (torch.cat([empty, *each]).to(dtype) for each in self)
        p.requires_grad_()
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])
        if form == "jagged":
            return p, (ragged(p, offsets), ragged(t, offsets))
        if form == "padded":
            longest = max(map(len, self.p), default=0)
            whole = [torch.full((len(self.p), longest, 4), torch.nan, dtype=dtype) for _ in self]
            for each, own in zip(whole, self, strict=True):
                for row, items in zip(each, own, strict=True):
                    row[: len(items)] = items
            return whole[0].requires_grad_(), (*whole, self.lengths)
        return p, (p, t, offsets)

    def of_items(self, gradient: Tensor) -> Tensor:
        """The gradient of all items, of what a form has it of."""
        if gradient.dim() == 2:
            return gradient
        here = torch.arange(gradient.shape[1])[None] < self.lengths[:, None]
        assert gradient.isfinite().all(), "padding has no gradient"
        return gradient[here]
