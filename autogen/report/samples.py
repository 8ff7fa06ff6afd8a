"""A sample call of every loss, for `autogen.supported_losses`, and calls that torch has to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[nn.Module, tuple[Any, ...]]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}

CHANNELS = 8  # of planes
# Samples, classes or values of each, places of a signal: what one program holds, and what none does.
SMALL, EVEN, ODD = (64, 8, 128), (256, 1000, 1024), (257, 1001, 1025)


def calls_of_torch(dtype: torch.dtype) -> Iterator[Call]:
    """One call of every loss."""
    from autogen import losses

    generator = torch.Generator().manual_seed(0)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    def x() -> Tensor:
        return real(6, 5).requires_grad_()

    probability, log_probability = real(6, 5).softmax(1), real(6, 5).log_softmax(1).requires_grad_()
    signs, labels = real(6).sign(), torch.tensor([0, 1, 2, 3, 4, 0])
    yield losses.L1Loss(), (x(), real(6, 5))
    yield losses.MSELoss(), (x(), real(6, 5))
    yield losses.SmoothL1Loss(), (x(), real(6, 5))
    yield losses.HuberLoss(), (x(), real(6, 5))
    yield losses.BCELoss(), (probability.clone().requires_grad_(), probability)
    yield losses.BCEWithLogitsLoss(), (x(), probability)
    yield losses.PoissonNLLLoss(), (x(), real(6, 5).abs())
    yield losses.GaussianNLLLoss(), (x(), real(6, 5), real(6, 5).abs() + 0.1)
    yield losses.HingeEmbeddingLoss(), (x(), real(6, 5).sign())
    yield losses.SoftMarginLoss(), (x(), real(6, 5).sign())
    yield losses.KLDivLoss(), (log_probability, probability)
    yield losses.MarginRankingLoss(), (real(6).requires_grad_(), real(6), signs)
    yield losses.CrossEntropyLoss(), (x(), labels)
    yield losses.NLLLoss(), (log_probability, labels)
    yield losses.NLLLoss2d(), (real(2, 5, 3, 3).requires_grad_(), torch.ones(2, 3, 3, dtype=torch.long))
    yield losses.MultiMarginLoss(), (x(), labels)
    yield losses.MultiLabelSoftMarginLoss(), (x(), probability.round())
    yield losses.TripletMarginLoss(), (x(), real(6, 5), real(6, 5))
    yield losses.TripletMarginWithDistanceLoss(), (x(), real(6, 5), real(6, 5))
    yield losses.CosineEmbeddingLoss(), (x(), real(6, 5), signs)
    yield losses.MultiLabelMarginLoss(), (x(), torch.tensor([[0, 2, -1, 0, 0]] * 6))
    yield losses.CTCLoss(), (real(9, 2, 5).log_softmax(2).requires_grad_(), torch.ones(2, 3).long(), (9, 9), (3, 3))
    if hasattr(losses, "LinearCrossEntropyLoss"):
        yield losses.LinearCrossEntropyLoss(5, 7, dtype=dtype), (x(), labels)
    yield losses.AdaptiveLogSoftmaxWithLoss(5, 7, [2, 4], dtype=dtype), (x(), labels)


def falling_back() -> dict[str, tuple[str, Callable[[], Call]]]:
    """Calls that torch takes, but our kernels do not, or not all of it, by loss; and what is the matter with them."""
    from autogen import losses

    def wide(*shape: int) -> Tensor:
        return torch.zeros(shape).requires_grad_()

    return {
        "CTCLoss": (
            "a target of more than 8192 states",
            lambda: (losses.CTCLoss(), (wide(9000, 1, 3), torch.ones(1, 5000).long(), (9000,), (5000,))),
        ),
        "MultiLabelMarginLoss": (
            "more than 8192 classes",
            lambda: (losses.MultiLabelMarginLoss(), (wide(1, 40_000), -torch.ones(1, 40_000).long())),
        ),
    }


def calls_beyond_torch(size: tuple[int, int, int] = SMALL) -> Iterator[Call]:
    """One call of every loss beyond torch, of a size as above."""
    from autogen import losses

    n, c, places = size
    generator = torch.Generator().manual_seed(0)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def asked(tensor: Tensor) -> Tensor:
        return tensor.requires_grad_()

    def boxes() -> Tensor:
        corner = real(n, c, 2)
        return torch.cat([corner, corner + real(n, c, 2).abs() + 0.1], -1)

    labels = torch.randint(0, c, (n,), generator=generator)
    truth = (real(n, CHANNELS, places) > 0).float()
    of_row = [real(n) for _ in range(4)]
    for name in ("IoULoss", "GIoULoss", "DIoULoss", "CIoULoss"):
        yield getattr(losses, name)(), (asked(boxes()), boxes())
    for name in ("DiceLoss", "TverskyLoss", "FocalTverskyLoss"):
        yield getattr(losses, name)(), (asked(real(n, CHANNELS, places)), truth)
    yield losses.DiceLoss(activation="softmax"), (asked(real(n, CHANNELS, places)), truth)
    for name in ("SigmoidFocalLoss", "AsymmetricLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), (real(n, c) > 0).float())
    for name in ("FocalLoss", "PolyLoss", "VocabParallelCrossEntropyLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), labels)
    yield losses.ArcFaceLoss(), (asked(real(n, c).tanh()), labels)
    for name in ("CharbonnierLoss", "LogCoshLoss", "QuantileLoss", "WingLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), real(n, c))
    yield losses.NegativeBinomialNLLLoss(), (asked(real(n, c).exp()), real(n, c).exp().floor(), real(n, c).exp())
    yield losses.StudentTNLLLoss(), (asked(real(n, c)), real(n, c), real(n, c).exp(), real(n, 1).exp() + 2)
    evidence = (real(n).exp(), real(n).exp() + 1, real(n).exp())
    yield losses.EvidentialRegressionLoss(), (asked(real(n)), real(n), *evidence)
    for name in ("JSDLoss", "TotalVariationLoss", "DistillationLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), real(n, c))
    dims = min(c, 128 - c % 2)  # of embeddings
    yield losses.InfoNCELoss(), (asked(real(n, dims)), asked(real(n, dims)))
    yield losses.SupConLoss(), (asked(real(n, dims)), labels)
    yield losses.CircleLoss(), (asked(real(n, c).tanh()), real(n, c) > 0)
    for name in ("DPOLoss", "IPOLoss"):
        yield getattr(losses, name)(), (asked(of_row[0]), asked(of_row[1]), of_row[2], of_row[3])
    for name in ("SimPOLoss", "ORPOLoss"):
        yield getattr(losses, name)(), (asked(-real(n).abs() - 0.1), asked(-real(n).abs() - 0.1))
    yield losses.KTOLoss(), (asked(real(n)), real(n), real(n) > 0)
    yield losses.PPOClipLoss(), (asked(real(n, c)), real(n, c), real(n, c))
    yield losses.GRPOLoss(), (asked(real(n, c)), real(n, c), real(n), real(n, c) > -1)
    yield losses.FusedLinearCrossEntropyLoss(), (asked(real(n, dims)), asked(real(c, dims)), labels)
    heads = (asked(real(n, dims)), asked(real(c, dims)), real(n, 2 * dims), real(c, 2 * dims))
    yield losses.FusedLinearDistillationLoss(), heads
    tokens = torch.randint(0, c, (4, n), generator=generator)
    for name in ("FusedLinearDPOLoss", "FusedLinearIPOLoss"):
        yield getattr(losses, name)(), (asked(real(4, n, dims)), asked(real(c, dims)), tokens, real(4))
    for name in ("FusedLinearSimPOLoss", "FusedLinearORPOLoss"):
        yield getattr(losses, name)(), (asked(real(4, n, dims)), asked(real(c, dims)), tokens)
    judged = (asked(real(4, n, dims)), asked(real(c, dims)), tokens, real(4) > 0, real(4))
    yield losses.FusedLinearKTOLoss(), judged
    yield losses.FusedLinearGRPOLoss(), (asked(real(4, n, dims)), asked(real(c, dims)), tokens, real(4))
    yield losses.CoxPHLoss(), (asked(real(n)), real(n).exp(), real(n) > 0)
    yield losses.SISDRLoss(), (asked(real(n, places)), real(n, places))
    yield losses.VAELoss(), (asked(real(n, places)), real(n, places).sigmoid(), asked(real(n, c)), asked(real(n, c)))
