"""Every loss of the package, with every constructor option but the reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

import autogen.losses
from tests.interpret.beyond import BEYOND
from tests.interpret.samples import Samples


class Row(NamedTuple):
    """A loss, its options and its inputs, both from a source of tensors."""

    loss: str
    options: Callable[[Samples], dict[str, Any]]
    inputs: Callable[[Samples], tuple[Any, ...]]


# Losses whose tests are in files of their own; NLLLoss2d is NLLLoss.
ELSEWHERE = {
    "AdaptiveLogSoftmaxWithLoss",
    "CTCLoss",
    "CosineEmbeddingLoss",
    "LinearCrossEntropyLoss",
    "MultiLabelMarginLoss",
    "NLLLoss2d",
    *BEYOND,
} & {*autogen.losses.__all__}  # torch has some of them only since 2.12
N, C = 5, 7


def _pair(s: Samples) -> tuple[Tensor, ...]:
    return s.real(N, C), s.real(N, C)


def _triple(s: Samples) -> tuple[Tensor, ...]:
    return s.real(N, C), s.real(N, C), s.real(N, C)


def _signed(s: Samples) -> tuple[Tensor, ...]:
    return s.real(N, C), s.sign(N, C)


def _classes(*spatial: int) -> Callable[[Samples], tuple[Tensor, ...]]:
    return lambda s: (s.real(N, C, *spatial), s.label(C, N, *spatial))


def _class_probabilities(*spatial: int) -> Callable[[Samples], tuple[Tensor, ...]]:
    return lambda s: (s.real(N, C, *spatial), s.probability(N, C, *spatial))


def _log_classes(*spatial: int) -> Callable[[Samples], tuple[Tensor, ...]]:
    return lambda s: (s.log_probability(N, C, *spatial), s.label(C, N, *spatial))


def _weighted(**options: Any) -> Callable[[Samples], dict[str, Any]]:
    return lambda s: {"weight": s.probability(C), **options}


def _fixed(**options: Any) -> Callable[[Samples], dict[str, Any]]:
    return lambda s: options


def manhattan(x: Tensor, y: Tensor) -> Tensor:
    """A distance of a user's own."""
    return (x - y).abs().sum(-1)


def rows() -> Iterator[Row]:
    """The table."""
    yield Row("L1Loss", _fixed(), _pair)
    yield Row("MSELoss", _fixed(), _pair)
    for beta in (1.0, 0.5, 0.0, 1e-3, 100.0):
        yield Row("SmoothL1Loss", _fixed(beta=beta), _pair)
    for delta in (1.0, 0.3, 1e-3, 100.0):
        yield Row("HuberLoss", _fixed(delta=delta), _pair)

    def probabilities(s: Samples) -> tuple[Tensor, ...]:
        return s.probability(N, C), s.probability(N, C)

    def logits(s: Samples) -> tuple[Tensor, ...]:
        return s.real(N, C), s.probability(N, C)

    yield Row("BCELoss", _fixed(), probabilities)
    yield Row("BCEWithLogitsLoss", _fixed(), logits)
    for shape in ((C,), (N, C), (N, 1), (1,)):
        yield Row("BCELoss", lambda s, shape=shape: {"weight": s.probability(*shape)}, probabilities)
        yield Row("BCEWithLogitsLoss", lambda s, shape=shape: {"weight": s.probability(*shape)}, logits)
        yield Row("BCEWithLogitsLoss", lambda s, shape=shape: {"pos_weight": s.count(*shape)}, logits)
    both = _weighted()
    yield Row("BCEWithLogitsLoss", lambda s: {**both(s), "pos_weight": s.count(N, 1)}, logits)

    for full in (False, True):
        for log_input in (False, True):
            for eps in (1e-8, 0.1):
                options = _fixed(log_input=log_input, full=full, eps=eps)
                yield Row("PoissonNLLLoss", options, lambda s: (s.probability(N, C), s.count(N, C)))
        for eps in (1e-6, 0.4):
            for shape in ((N, C), (N, 1), (N,)):
                options = _fixed(full=full, eps=eps)
                yield Row(
                    "GaussianNLLLoss", options, lambda s, v=shape: (s.real(N, C), s.real(N, C), s.probability(*v))
                )
    yield Row("GaussianNLLLoss", _fixed(), lambda s: (s.real(N, C), s.real(N, C), 0.7))
    yield Row("GaussianNLLLoss", _fixed(), lambda s: (s.real(), s.real(), s.probability(1).squeeze()))

    for margin in (1.0, 0.2, -0.5, 0.0):
        yield Row("HingeEmbeddingLoss", _fixed(margin=margin), _signed)
        yield Row("MarginRankingLoss", _fixed(margin=margin), lambda s: (s.real(N), s.real(N), s.sign(N)))
        for p in (1, 2):
            yield Row("MultiMarginLoss", _fixed(p=p, margin=margin), _classes())
            yield Row("MultiMarginLoss", _weighted(p=p, margin=margin), _classes())
        yield Row("TripletMarginLoss", _fixed(margin=max(margin, 0.1)), _triple)
        yield Row("TripletMarginWithDistanceLoss", _fixed(margin=max(margin, 0.1)), _triple)
    yield Row("MultiMarginLoss", _fixed(), lambda s: (s.real(C), s.label(C)))
    yield Row("SoftMarginLoss", _fixed(), _signed)
    yield Row("MultiLabelSoftMarginLoss", _fixed(), logits)
    yield Row("MultiLabelSoftMarginLoss", _weighted(), logits)
    yield Row("MultiLabelSoftMarginLoss", _fixed(), lambda s: (s.real(C), s.probability(C)))

    yield Row("KLDivLoss", _fixed(), lambda s: (s.log_probability(N, C), s.probability(N, C)))
    yield Row("KLDivLoss", _fixed(log_target=True), lambda s: (s.log_probability(N, C), s.log_probability(N, C)))

    for p in (1.0, 2.0, 3.0, 1.5, 0.5):
        for swap in (False, True):
            yield Row("TripletMarginLoss", _fixed(p=p, swap=swap), _triple)
    yield Row("TripletMarginLoss", _fixed(eps=0.1), _triple)
    yield Row("TripletMarginLoss", _fixed(), lambda s: (s.real(C), s.real(C), s.real(C)))
    yield Row("TripletMarginLoss", _fixed(p=float("inf")), _triple)
    for distance in (None, manhattan, nn.PairwiseDistance(p=1.0), nn.CosineSimilarity(), F.pairwise_distance):
        for swap in (False, True):
            options = _fixed(distance_function=distance, swap=swap)
            yield Row("TripletMarginWithDistanceLoss", options, _triple)

    for spatial in ((), (3,), (3, 4), (2, 3, 2)):
        for smoothing in (0.0, 0.1, 1.0) if spatial in ((), (3, 4)) else (0.1,):
            for ignored in (-100, 2):
                options = _fixed(label_smoothing=smoothing, ignore_index=ignored)
                yield Row("CrossEntropyLoss", options, _classes(*spatial))
                options = _weighted(label_smoothing=smoothing, ignore_index=ignored)
                yield Row("CrossEntropyLoss", options, _classes(*spatial))
            yield Row("CrossEntropyLoss", _fixed(label_smoothing=smoothing), _class_probabilities(*spatial))
            yield Row("CrossEntropyLoss", _weighted(label_smoothing=smoothing), _class_probabilities(*spatial))
        for ignored in (-100, 2):
            yield Row("NLLLoss", _fixed(ignore_index=ignored), _log_classes(*spatial))
            yield Row("NLLLoss", _weighted(ignore_index=ignored), _log_classes(*spatial))
    yield Row("CrossEntropyLoss", _weighted(), lambda s: (s.real(C), s.label(C)))
    yield Row("CrossEntropyLoss", _weighted(label_smoothing=0.3), lambda s: (s.real(C), s.probability(C)))
    yield Row("NLLLoss", _weighted(), lambda s: (s.log_probability(C), s.label(C)))


ROWS = tuple(rows())


def reductions(loss: str) -> tuple[str, ...]:
    """What the loss's constructor takes as `reduction`."""
    return ("mean", "sum", "none", "batchmean") if loss == "KLDivLoss" else ("mean", "sum", "none")
