"""What losses of a head share: checks of arguments, logits in single precision, log-probabilities of labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from autogen.losses._base import bounded, one_of


class HeadOutputs(NamedTuple):
    """A loss with what else its options ask for; None is what they do not. The loss alone has a gradient.

    Attributes:
        loss: the loss.
        token_loss: the loss of each token before weights and reduction, and 0 where none counts.
        log_prob: the log-probability of each label.
        lse: the logarithm of the softmax's denominator, for each token.
        entropy: the entropy of each token's distribution, in nats.
        accuracy: the share of labels that are the likeliest class, of those that count.
    """

    loss: Tensor
    token_loss: Tensor | None = None
    log_prob: Tensor | None = None
    lse: Tensor | None = None
    entropy: Tensor | None = None
    accuracy: Tensor | None = None


def chosen_outputs(outputs: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    """The names of some of the `known` outputs; else a ValueError."""
    return tuple(one_of("an output", name, known) for name in ((outputs,) if isinstance(outputs, str) else outputs))


def check_head(hidden: Tensor, weight: Tensor, bias: Tensor | None, of: str = "") -> None:
    """Raise a ValueError unless there are hidden states (..., H), a weight (V, H) and, if any, a bias (V,)."""
    if hidden.dim() < 2:
        raise ValueError(f"{of}hidden must have the shape (..., H); got {tuple(hidden.shape)}")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"{of}weight must have the shape (V, {hidden.shape[-1]}) for {of}hidden {tuple(hidden.shape)}; "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"{of}bias must have the shape ({weight.shape[0]},); got {tuple(bias.shape)}")


def check_rows(hidden: Tensor, **tensors: Tensor | None) -> None:
    """Raise a ValueError unless all tensors have one value for each hidden state, labels integers."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.shape != hidden.shape[:-1]:
            raise ValueError(
                f"{name} must have the shape {tuple(hidden.shape[:-1])} for hidden {tuple(hidden.shape)}; "
                f"got {tuple(tensor.shape)}"
            )
        if name == "labels" and tensor.dtype != torch.int64:
            raise ValueError(f"labels must hold classes as torch.int64; got {tensor.dtype}")


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits (rows, V) of hidden states, in single precision unless they are in double."""
    logits = F.linear(hidden.flatten(0, -2), weight, bias)
    return logits if logits.dtype == torch.float64 else logits.float()


def log_probs_of(logits: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    """The log-probability (rows,) of each label, 0 where it is ignored."""
    return -F.cross_entropy(logits, labels.flatten(), ignore_index=ignore_index, reduction="none")


def entropy_of(logits: Tensor) -> Tensor:
    """The entropy (rows,) of softmaxes, in nats. A class of logit -inf adds nothing."""
    log_p = bounded(logits).log_softmax(-1)
    return -(log_p.exp() * log_p).sum(-1)


def check_reference(
    hidden: Tensor,
    shape: Sequence[int],
    reference: Tensor | None,
    states: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
) -> None:
    """Raise a ValueError unless there are log-probabilities of a reference, or else its hidden states and weight."""
    if (reference is None) is (states is None) or (states is None) is not (weight is None):
        raise ValueError("either `reference` must be given, or `reference_hidden` and `reference_weight`")
    if reference is not None and reference.shape != shape:
        raise ValueError(f"reference must have the shape {tuple(shape)}; got {tuple(reference.shape)}")
    if states is not None and weight is not None:
        check_head(states, weight, bias, of="reference_")
        if states.shape[:-1] != hidden.shape[:-1]:
            raise ValueError(
                f"reference_hidden must have the shape {tuple(hidden.shape[:-1])} but for its last dimension; "
                f"got {tuple(states.shape)}"
            )
