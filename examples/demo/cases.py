"""The losses that the demo runs: every generated class of `autogen.losses`, with common options.

A case is data: which loss, on tensors of which kind and shape, with which options. Drawing its tensors is left to the
moment of its run, so that two processes that draw a case get the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autogen import losses

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Draw:
    """A random tensor: how to draw it, its shape, whether its gradient is asked for, what to call it in a list."""

    kind: Callable[[Shape, torch.Generator], torch.Tensor]
    shape: Shape
    grad: bool = False
    label: str = ""

    def __call__(self, generator: torch.Generator) -> torch.Tensor:
        """Draw it, on the CPU, so that every device gets the same numbers."""
        return self.kind(self.shape, generator)


def real(*shape: int, grad: bool = True) -> Draw:
    """Real numbers, such as predictions and logits."""
    return Draw(lambda s, g: torch.randn(s, generator=g), shape, grad)


def probability(*shape: int, grad: bool = False) -> Draw:
    """Numbers in (0, 1)."""
    return Draw(lambda s, g: 0.01 + 0.98 * torch.rand(s, generator=g), shape, grad)


def positive(*shape: int, grad: bool = False) -> Draw:
    """Numbers between a half and one and a half, such as weights."""
    return Draw(lambda s, g: 0.5 + torch.rand(s, generator=g), shape, grad)


def distribution(*shape: int, grad: bool = False) -> Draw:
    """Probabilities of classes, along the second dimension."""
    label = "probabilities with their gradient" if grad else "probabilities"
    return Draw(lambda s, g: torch.randn(s, generator=g).softmax(1), shape, grad, label)


def log_distribution(*shape: int, grad: bool = True) -> Draw:
    """Logarithms of such probabilities."""
    return Draw(lambda s, g: torch.randn(s, generator=g).log_softmax(1), shape, grad)


def classes(count: int, *shape: int) -> Draw:
    """Class indices."""
    return Draw(lambda s, g: torch.randint(count, s, generator=g), shape)


def bits(*shape: int) -> Draw:
    """Zeros and ones."""
    return Draw(lambda s, g: torch.randint(2, s, generator=g).float(), shape)


def signs(*shape: int) -> Draw:
    """Minus ones and ones."""
    return Draw(lambda s, g: torch.randint(2, s, generator=g).float() * 2 - 1, shape)


def counts(*shape: int) -> Draw:
    """Counts of events: 0.0, 1.0, …"""
    return Draw(lambda s, g: torch.randint(9, s, generator=g).float(), shape)


def manhattan(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The custom distance of the demo."""
    return (x - y).abs().sum(-1)


class Case:
    """One loss with options and inputs.

    Args:
        loss: the name of a class in `autogen.losses` and in `torch.nn`.
        *inputs: what to call it with.
        **options: for its constructor; a `Draw` there becomes a tensor.
    """

    def __init__(self, loss: str, *inputs: Draw, **options: Any) -> None:
        self.loss = loss
        self.inputs = inputs
        self.options = options

    @property
    def description(self) -> str:
        """The options and what is special about the inputs, for a person."""
        words = [_option_text(name, value) for name, value in self.options.items()]
        words += [each.label for each in self.inputs if each.label]
        return ", ".join(words)

    @property
    def shape(self) -> Shape:
        """The shape of the first input."""
        return self.inputs[0].shape

    def draw(self, device: torch.device | str = "cpu") -> tuple[dict[str, Any], list[torch.Tensor]]:
        """The constructor's options and the call's arguments, the same in every call of this."""
        generator = torch.Generator().manual_seed(0)
        arguments = [each(generator).to(device).requires_grad_(each.grad) for each in self.inputs]
        options = {
            name: value(generator).to(device) if isinstance(value, Draw) else value
            for name, value in self.options.items()
        }
        return options, arguments

    def generated(self, options: dict[str, Any]) -> nn.Module:
        """The loss on generated kernels."""
        return getattr(losses, self.loss)(**options)

    def reference(self, options: dict[str, Any]) -> nn.Module:
        """The loss as torch has it."""
        return getattr(nn, self.loss)(**options)


def _option_text(name: str, value: Any) -> str:
    if isinstance(value, Draw):
        return name
    return f"{name}={value.__name__ if callable(value) else repr(value)}"


def cases(batch: int) -> list[Case]:
    """All cases, for inputs of about `batch` rows; images and sequences get fewer."""
    n, few = batch, max(batch // 16, 2)
    features, labels, vocabulary = 128, 20, 1000
    flat, rows, image = (n, features), (n, vocabulary), (few, 19, 16, 16)
    triplet = [real(*flat), real(*flat), real(*flat)]
    return [
        Case("L1Loss", real(*flat), real(*flat, grad=False)),
        Case("MSELoss", real(*flat), real(*flat, grad=False)),
        Case("MSELoss", real(*flat), real(*flat, grad=False), reduction="none"),
        Case("SmoothL1Loss", real(*flat), real(*flat, grad=False), beta=0.5),
        Case("HuberLoss", real(*flat), real(*flat, grad=False), delta=0.5),
        Case("BCELoss", probability(*flat, grad=True), probability(*flat)),
        Case("BCELoss", probability(n, labels, grad=True), bits(n, labels), weight=positive(labels)),
        Case("BCEWithLogitsLoss", real(*flat), bits(*flat)),
        Case(
            "BCEWithLogitsLoss",
            real(n, labels),
            bits(n, labels),
            weight=positive(labels),
            pos_weight=positive(labels),
            reduction="sum",
        ),
        Case("PoissonNLLLoss", real(*flat), counts(*flat)),
        Case("PoissonNLLLoss", positive(*flat, grad=True), counts(*flat), log_input=False, full=True),
        Case("GaussianNLLLoss", real(*flat), real(*flat, grad=False), positive(*flat, grad=True), full=True),
        Case("HingeEmbeddingLoss", real(*flat), signs(*flat), margin=0.5),
        Case("SoftMarginLoss", real(*flat), signs(*flat)),
        Case("KLDivLoss", log_distribution(*rows), distribution(*rows), reduction="batchmean"),
        Case(
            "KLDivLoss", log_distribution(*rows), log_distribution(*rows, grad=False), log_target=True, reduction="sum"
        ),
        Case("MarginRankingLoss", real(n), real(n), signs(n), margin=0.1),
        Case("CrossEntropyLoss", real(*rows), classes(vocabulary, n)),
        Case(
            "CrossEntropyLoss",
            real(*rows),
            classes(vocabulary, n),
            weight=positive(vocabulary),
            label_smoothing=0.1,
        ),
        Case("CrossEntropyLoss", real(*rows), distribution(*rows, grad=True)),
        Case("CrossEntropyLoss", real(*image), classes(image[1], few, *image[2:]), ignore_index=0),
        Case("NLLLoss", log_distribution(*rows), classes(vocabulary, n), weight=positive(vocabulary)),
        Case("NLLLoss", log_distribution(*image), classes(image[1], few, *image[2:]), reduction="none"),
        Case("MultiMarginLoss", real(n, labels), classes(labels, n), p=2, weight=positive(labels)),
        Case("MultiLabelSoftMarginLoss", real(n, labels), bits(n, labels), weight=positive(labels)),
        Case("TripletMarginLoss", *triplet),
        Case("TripletMarginLoss", *triplet, p=1.0, swap=True),
        Case("TripletMarginWithDistanceLoss", *triplet),
        Case("TripletMarginWithDistanceLoss", *triplet, distance_function=manhattan, swap=True),
    ]
