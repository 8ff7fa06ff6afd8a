"""Losses that begin with a matrix product: torch runs the product, a fused cross entropy the rest."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.adaptive import _ASMoutput

from autogen.decorator import autogen_loss, takes_use_autogen
from autogen.losses import functional
from autogen.parts import FusedCall, Parts

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


@takes_use_autogen
class AdaptiveLogSoftmaxWithLoss(nn.AdaptiveLogSoftmaxWithLoss):
    """See `torch.nn.AdaptiveLogSoftmaxWithLoss` (Grave et al., 2017, "Efficient softmax approximation for GPUs").

    The log-probability of a label is that of its cluster in the head, plus that within the cluster: two rows of cross
    entropy, each on a fused kernel. Which rows belong to which cluster is read on the host, as in torch.
    """

    use_autogen: bool

    def forward(self, input_: Tensor, target_: Tensor) -> Any:
        """The log-probability of each label, shape (N,) or (), and minus their mean."""
        if not self.use_autogen or not self._is_plain(input_, target_):
            return super().forward(input_, target_)
        parts, rows = self._parts(input_, target_)
        head, *tails = (call() for call in parts.calls)
        loss = head
        for places, tail in zip(rows, tails, strict=True):
            loss = loss.index_add(0, places, tail)
        mean = loss.mean()
        return _ASMoutput(-loss if target_.dim() else -loss.squeeze(0), mean)

    def __autogen_parts__(self, input_: Tensor, target_: Tensor) -> Parts | str:
        return self._parts(input_, target_)[0] if self._is_plain(input_, target_) else "labels and inputs do not fit"

    def _is_plain(self, input_: Tensor, target_: Tensor) -> bool:
        """Whether torch takes the call, as far as can be told from shapes and labels."""
        fits = target_.dim() < 2 and input_.dim() == target_.dim() + 1 and input_.shape[:-1] == target_.shape
        return fits and bool(((target_ >= 0) & (target_ < self.n_classes)).all())

    def _parts(self, input_: Tensor, target_: Tensor) -> tuple[Parts, list[Tensor]]:
        """The head's call, then one for every cluster with labels; and the rows that these have labels in."""
        input, target = (input_, target_) if target_.dim() else (input_.unsqueeze(0), target_.unsqueeze(0))
        places = target.clone()
        rows, calls = [], []
        for cluster, (low, high) in enumerate(pairwise(self.cutoffs)):
            own = ((target >= low) & (target < high)).nonzero().squeeze(1)
            if own.numel():
                places[own] = self.shortlist_size + cluster
                logits = self.tail[cluster](input.index_select(0, own))
                calls.append(_rows(logits, target[own] - low))
                rows.append(own)
        return Parts(("linear", "index_select", "index_add"), (_rows(self.head(input), places), *calls)), rows


def _rows(logits: Tensor, labels: Tensor) -> FusedCall:
    return FusedCall(functional.cross_entropy, (logits, labels), {"reduction": "none"})


if hasattr(nn, "LinearCrossEntropyLoss"):  # torch has had it since 2.12
    __all__ += ["LinearCrossEntropyLoss"]

    @autogen_loss
    class LinearCrossEntropyLoss(nn.LinearCrossEntropyLoss):
        """`cross_entropy(linear(input), target)`; see `torch.nn.LinearCrossEntropyLoss`.

        With `options`, torch computes it in chunks of its own.
        """
