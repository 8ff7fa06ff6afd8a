"""Losses that begin with matrix products, which torch runs, and go on with a fused cross entropy."""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autogen import compat
from autogen.decorator import autogen_loss, takes_use_autogen
from autogen.dispatch.parts import Parts

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


@takes_use_autogen
class AdaptiveLogSoftmaxWithLoss(nn.AdaptiveLogSoftmaxWithLoss):
    """See `torch.nn.AdaptiveLogSoftmaxWithLoss` (Grave et al., 2017, "Efficient softmax approximation for GPUs").

    The log-probability of a label is that of its cluster in the head, plus that within the cluster. One fused kernel
    has the rows of the head and of all clusters; large logits exist for some rows at a time. Which rows belong to which
    cluster is read on the host, as in torch.
    """

    use_autogen: bool

    def forward(self, input_: Tensor, target_: Tensor) -> Any:
        """The log-probability of each label, shape (N,) or (), and minus their mean."""
        if not self.use_autogen:
            return super().forward(input_, target_)
        return adaptive_log_softmax_with_loss(self, input_, target_)

    def __autogen_parts__(self, input_: Tensor, target_: Tensor) -> Parts | str:
        plain = _is_plain(self, input_, target_)
        return _parts(self, input_, target_)[0] if plain else "labels and inputs do not fit"


def adaptive_log_softmax_with_loss(self: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> Any:
    """What `AdaptiveLogSoftmaxWithLoss` computes, of a module of torch's or of ours."""
    if not _is_plain(self, input_, target_):
        return nn.AdaptiveLogSoftmaxWithLoss.forward(self, input_, target_)
    parts, rows = _parts(self, input_, target_)
    loss, *tails = parts.call()
    for places, tail in zip(rows, tails, strict=True):
        loss = loss.index_add(0, places, tail)
    mean = loss.mean()
    return compat.ASMOutput(-loss if target_.dim() else -loss.squeeze(0), mean)


def _is_plain(loss: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> bool:
    """Whether torch takes the call, by shapes and labels; of labels of other dtypes it takes some. And whether all
    layers are what torch has made them, and no hook changes a weight or a result.
    """
    layers = (loss.head, *chain.from_iterable(map(nn.Module.children, loss.tail)))
    if any(type(layer) is not nn.Linear for layer in layers) or any(map(compat.has_hooks, (*layers, *loss.tail))):
        return False
    fits = target_.dim() < 2 and input_.dim() == target_.dim() + 1 and input_.shape[:-1] == target_.shape
    return fits and target_.dtype == torch.int64 and bool(((target_ >= 0) & (target_ < loss.n_classes)).all())


def _parts(loss: nn.AdaptiveLogSoftmaxWithLoss, input_: Tensor, target_: Tensor) -> tuple[Parts, list[Tensor]]:
    """The call for the head, and every cluster with labels; and the rows that these have labels in."""
    input, target = (input_, target_) if target_.dim() else (input_.unsqueeze(0), target_.unsqueeze(0))
    places = target.clone()
    rows, tails = [], []
    for cluster, (low, high) in enumerate(pairwise(loss.cutoffs)):
        own = ((target >= low) & (target < high)).nonzero().squeeze(1)
        if own.numel():
            places[own] = loss.shortlist_size + cluster
            weights = [layer.weight for layer in loss.tail[cluster].children()]
            tails.append((input.index_select(0, own), target[own] - low, None, *weights))
            rows.append(own)
    call = partial(_cross_entropies, (input, places, loss.head.bias, loss.head.weight), *tails)
    return Parts(("index_select", "index_add"), call), rows


@autogen_loss(reads="arguments")
def _cross_entropies(*groups: Any) -> list[Tensor]:
    """The loss of every row, for each group of rows: their features, their labels, and a bias and the weights of linear
    layers. The bias is that of the last.
    """
    losses = []
    for features, labels, bias, *weights, last in groups:
        for weight in weights:
            features = F.linear(features, weight)
        losses.append(F.cross_entropy(F.linear(features, last, bias), labels, reduction="none"))
    return losses


if hasattr(nn, "LinearCrossEntropyLoss"):  # torch has had it since 2.12
    __all__ += ["LinearCrossEntropyLoss"]

    @autogen_loss
    class LinearCrossEntropyLoss(nn.LinearCrossEntropyLoss):
        """`cross_entropy(linear(input), target)`; see `torch.nn.LinearCrossEntropyLoss`.

        With `options`, torch computes it in chunks of its own.
        """
