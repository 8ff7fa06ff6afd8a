"""The cases that are measured on a GPU.

These are losses at the sizes that other projects publish, and at small ones that nobody does; and losses of `torch.nn`,
each of 2^26 numbers in single precision, where only memory should count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autogen.losses as ours
from bench.losses import chamfer, earth_movers, radiance

Shape = tuple[int, ...]
Inputs = Callable[[Shape, torch.dtype, str], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """A loss at one size; `liger` names a class of Liger-Kernel, and `of_torch` is torch's own fused form, if any.

    `is_quick` cases are those of a short run. `trained` are the inputs that ask for their gradients, in all columns:
    what models predict, but no targets.
    """

    name: str
    shape: Shape
    dtype: torch.dtype
    autogen: Callable[[], Any]
    eager: Callable[[], Any]
    inputs: Inputs
    liger: str | None = None
    is_quick: bool = False
    trained: tuple[int, ...] = (0,)
    of_torch: Callable[[], Any] | None = None

    def training(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Inputs as leaves, of which the trained ones ask for their gradients."""
        return tuple(each.detach().requires_grad_(k in self.trained) for k, each in enumerate(inputs))

    @property
    def size(self) -> str:
        """The shape as text."""
        return "x".join(map(str, self.shape))


def _real(shape: Shape, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


def _labelled(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return _real(shape, dtype, device), torch.randint(0, shape[1], (shape[0],), device=device)


def _pair(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return _real(shape, dtype, device), _real(shape, dtype, device)


def _binary(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return _real(shape, dtype, device), torch.rand(shape, dtype=dtype, device=device)


def _distributions(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return _real(shape, dtype, device).log_softmax(1), _real(shape, dtype, device).softmax(1)


def _logs(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return _real(shape, dtype, device).log_softmax(1), _real(shape, dtype, device).log_softmax(1)


def _probabilities(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return tuple(torch.rand(shape, dtype=dtype, device=device) for _ in range(2))


def _with_signs(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return _real(shape, dtype, device), _real(shape, dtype, device).sign()


def _pair_with_signs(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return *_pair(shape, dtype, device), _real(shape, dtype, device).sign()


def _pair_with_a_sign_per_row(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return *_pair(shape, dtype, device), _real(shape[:1], dtype, device).sign()


def _pair_with_variances(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return *_pair(shape, dtype, device), torch.rand(shape, dtype=dtype, device=device) + 0.1


def _triple(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    return *_pair(shape, dtype, device), _real(shape, dtype, device)


def _log_labelled(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    logits, labels = _labelled(shape, dtype, device)
    return logits.log_softmax(1), labels


def _boxes(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    def boxes() -> Tensor:
        corner = torch.rand((*shape[:-1], 2), dtype=dtype, device=device)
        return torch.cat([corner, corner + 0.1 + torch.rand_like(corner)], -1)

    return boxes(), boxes()


def _without(loss: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: loss(use_autogen=False)


def _jsd_of_logs(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Generalised Jensen-Shannon divergence at one half, as Liger-Kernel defines it on logarithms."""
    middle = torch.log((log_q.exp() + log_p.exp()) / 2)
    of_p = F.kl_div(middle, log_p, reduction="sum", log_target=True)
    of_q = F.kl_div(middle, log_q, reduction="sum", log_target=True)
    return (of_p + of_q) / 2 / log_q.shape[0]


def _tvd(p: Tensor, q: Tensor) -> Tensor:
    """Total variation distance, as Liger-Kernel defines it on probabilities."""
    return (p - q).abs().sum() / 2 / p.shape[0]


def _head(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    rows, width, classes = shape
    weight, hidden = _real((classes, width), dtype, device), _real((rows, width), dtype, device)
    return weight, hidden, torch.randint(0, classes, (rows,), device=device)


def linear_cross_entropy(weight: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of a language model's head, with arguments in Liger-Kernel's order."""
    return F.cross_entropy(hidden @ weight.t(), labels)


def _torchs_linear_cross_entropy() -> Callable[..., Any]:
    """torch's own chunks of rows, since 2.12."""
    options = nn.LinearCrossEntropyOptions()
    return lambda weight, hidden, labels: F.linear_cross_entropy(hidden, weight, labels, options=options)


def _generated(function: Callable[..., Any]) -> Callable[[], Any]:
    from autogen import autogen_loss

    return lambda: autogen_loss(function)


LARGE_VOCABULARY: list[Shape] = [*((rows, 128256) for rows in (1024, 2048, 4096, 8192))]
VOCABULARIES: list[Shape] = [
    *((2048, v) for v in (32000, 102400, 129280, 152064)),
    *((16384, 2**k) for k in range(12, 18)),
]
WIDE_ROWS: list[Shape] = [*((32768, 2**k) for k in range(8, 17)), (16384, 131072), (8192, 262144)]
ELEMENTWISE: list[Shape] = [
    (12288,),
    (8096, 32),
    (128, 960, 196),
    (64, 64, 56, 56),
    (256, 128, 28, 28),
    (256, 2048, 7, 7),
]
LARGE: Shape = (2**18, 256)
HEAD: Shape = (8192, 4096, 128256)  # rows, dimensions, classes
SMALL: list[Shape] = [(2**k,) for k in (10, 12, 14, 16, 18, 20)]
OF_TORCH: dict[str, Inputs] = {  # by their names there
    "L1Loss": _pair,
    "MSELoss": _pair,
    "SmoothL1Loss": _pair,
    "HuberLoss": _pair,
    "BCELoss": _probabilities,
    "BCEWithLogitsLoss": _binary,
    "KLDivLoss": _distributions,
    "PoissonNLLLoss": _binary,
    "GaussianNLLLoss": _pair_with_variances,
    "SoftMarginLoss": _with_signs,
    "HingeEmbeddingLoss": _with_signs,
    "MarginRankingLoss": _pair_with_signs,
    "MultiLabelSoftMarginLoss": _binary,
    "MultiMarginLoss": _labelled,
    "NLLLoss": _log_labelled,
    "CrossEntropyLoss": _labelled,
    "CosineEmbeddingLoss": _pair_with_a_sign_per_row,
    "TripletMarginLoss": _triple,
}
TRAINED: dict[str, tuple[int, ...]] = {  # others: the first input
    "CosineEmbeddingLoss": (0, 1),
    "GaussianNLLLoss": (0, 2),
    "linear_cross_entropy": (0, 1),
    "MarginRankingLoss": (0, 1),
    "TripletMarginLoss": (0, 1, 2),
    "infonce": (0, 1),
}
BF16, F32 = torch.bfloat16, torch.float32


def cases() -> Iterator[Case]:
    """All cases, the quick ones first."""
    for case in sorted(_cases(), key=lambda case: not case.is_quick):
        yield replace(case, trained=TRAINED.get(case.name, case.trained))


def _cases() -> Iterator[Case]:
    quick = {(2048, 32000), (4096, 128256), (32768, 1024)}
    for shape in dict.fromkeys((*LARGE_VOCABULARY, *VOCABULARIES, *WIDE_ROWS)):
        yield Case(
            name="cross_entropy",
            shape=shape,
            dtype=BF16,
            autogen=ours.CrossEntropyLoss,
            eager=nn.CrossEntropyLoss,
            inputs=_labelled,
            liger="LigerCrossEntropyLoss",
            is_quick=shape in quick,
        )
    yield Case(
        name="linear_cross_entropy",
        shape=HEAD,
        dtype=BF16,
        autogen=_generated(linear_cross_entropy),
        eager=lambda: linear_cross_entropy,
        inputs=_head,
        liger="LigerFusedLinearCrossEntropyLoss",
        is_quick=True,
        of_torch=_torchs_linear_cross_entropy if hasattr(nn, "LinearCrossEntropyOptions") else None,
    )
    for shape in LARGE_VOCABULARY:
        yield Case(
            name="kl_div",
            shape=shape,
            dtype=F32,
            autogen=lambda: ours.KLDivLoss(reduction="batchmean"),
            eager=lambda: nn.KLDivLoss(reduction="batchmean"),
            inputs=_distributions,
            liger="LigerKLDIVLoss",
            is_quick=shape == (4096, 128256),
        )
        yield Case("jsd", shape, F32, _generated(_jsd_of_logs), lambda: _jsd_of_logs, _logs, "LigerJSD")
        yield Case("tvd", shape, F32, _generated(_tvd), lambda: _tvd, _distributions, "LigerTVDLoss")
    quick_flat: list[Shape] = [(2**10,), (2**16,), (256, 2048, 7, 7), (2**24 + 1,)]
    for shape in (*SMALL, *ELEMENTWISE, (2**24,), (2**24 + 1,)):
        is_quick = shape in quick_flat
        yield Case("bce_with_logits", shape, F32, ours.BCEWithLogitsLoss, nn.BCEWithLogitsLoss, _binary, None, is_quick)
        yield Case("smooth_l1", shape, F32, ours.SmoothL1Loss, nn.SmoothL1Loss, _pair)
        yield Case("focal", shape, F32, ours.SigmoidFocalLoss, _without(ours.SigmoidFocalLoss), _binary)
    yield Case("giou", (1024, 256, 4), F32, ours.GIoULoss, _without(ours.GIoULoss), _boxes, None, True)
    yield Case("dice", (16, 1, 512, 512), F32, ours.DiceLoss, _without(ours.DiceLoss), _binary, None, True)
    yield Case("chamfer", (8, 2048, 3), F32, _generated(chamfer), lambda: chamfer, _pair, None, True)
    for shape in ((65536, 10), (8192, 1024)):
        yield Case("earth_movers", shape, F32, _generated(earth_movers), lambda: earth_movers, _probabilities)
    yield Case("radiance", (65536, 64), F32, _generated(radiance), lambda: radiance, _binary)
    for shape, dtype in itertools.product(((512, 128), (4096, 128), (16384, 128), (4096, 256)), (F32, BF16)):
        is_quick = shape == (4096, 128) or (shape, dtype) == ((16384, 128), BF16)
        yield Case("infonce", shape, dtype, ours.InfoNCELoss, _without(ours.InfoNCELoss), _pair, None, is_quick)
        yield Case("supcon", shape, dtype, ours.SupConLoss, _without(ours.SupConLoss), _labelled)
    for loss, inputs in OF_TORCH.items():
        yield Case(loss, LARGE, F32, getattr(ours, loss), getattr(nn, loss), inputs)
