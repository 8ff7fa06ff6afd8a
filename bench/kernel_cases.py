"""Calls whose kernels are compiled: of each loss and each shell, and of sizes that are hard on loads."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import autogen.losses
from autogen.aot import SpecializedKernel, kernels_of

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64


@dataclass(frozen=True)
class Input:
    """A tensor of a call: of the call's dtype, or class indices."""

    shape: tuple[int, ...]
    has_gradient: bool = False
    is_index: bool = False

    def tensor(self, dtype: torch.dtype, device: str) -> torch.Tensor:
        # Values matter nowhere but in checks that losses make themselves, which ones pass.
        dtype = torch.int64 if self.is_index else dtype
        return torch.ones(self.shape, dtype=dtype, device=device, requires_grad=self.has_gradient)


def x(*shape: int) -> Input:
    """An input that asks for its gradient."""
    return Input(shape, has_gradient=True)


def t(*shape: int) -> Input:
    """An input that does not."""
    return Input(shape)


def y(*shape: int) -> Input:
    """Class indices."""
    return Input(shape, is_index=True)


@dataclass(frozen=True)
class Case:
    """A call of a loss of `autogen.losses`."""

    loss: str
    inputs: tuple[Input, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = F32

    def __str__(self) -> str:
        shape = "x".join(map(str, self.inputs[0].shape))
        options = [f"{name}={getattr(value, '__name__', value)}" for name, value in self.options.items()]
        named = [option if "Input" not in option else option.split("=")[0] for option in options]
        return "-".join([self.loss, *named, shape, str(self.dtype)[6:]])


def case(loss: str, *inputs: Input, dtype: torch.dtype = F32, **options: Any) -> Case:
    return Case(loss, inputs, options, dtype)


@functools.cache
def _kernels(number: int) -> tuple[SpecializedKernel, ...]:
    each = CASES[number]
    device = "cpu" if math.prod(each.inputs[0].shape) < 2**24 else "meta"
    options = {k: v.tensor(each.dtype, device) if isinstance(v, Input) else v for k, v in each.options.items()}
    loss = getattr(autogen.losses, each.loss)(**options)
    return kernels_of(loss, *(one.tensor(each.dtype, device) for one in each.inputs))


def kernels(each: Case) -> tuple[SpecializedKernel, ...]:
    """The kernels of a case, forward then backward."""
    return _kernels(CASES.index(each))


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A distance of a user's own."""
    return (a - b).abs().sum(-1)


# Odd numbers of elements, enough for the largest blocks; a multiple of 16; few.
ODD, EVEN, FEW = (1023, 1025), (1024, 1040), (37, 5)
MANY = (4099, 4101)  # for several blocks to a program

FLAT = [
    case("L1Loss", x(*ODD), t(*ODD)),
    case("L1Loss", x(*EVEN), x(*EVEN), dtype=BF16, reduction="sum"),
    case("MSELoss", x(*ODD), t(*ODD), dtype=BF16),
    case("MSELoss", x(*MANY), t(*MANY)),
    case("MSELoss", x(*FEW), x(*FEW), dtype=F64, reduction="none"),
    case("SmoothL1Loss", x(*ODD), t(*ODD), beta=0.5),
    case("HuberLoss", x(*EVEN), x(*EVEN), delta=2.0),
    case("HuberLoss", x(*ODD), t(*ODD), dtype=BF16, reduction="none"),
    case("BCELoss", x(*ODD), t(*ODD)),
    case("BCELoss", x(*ODD), x(*ODD), dtype=F64, weight=t(*ODD)),
    case("BCEWithLogitsLoss", x(*ODD), t(*ODD)),
    case("BCEWithLogitsLoss", x(*EVEN), x(*EVEN), dtype=BF16),
    case("PoissonNLLLoss", x(*ODD), t(*ODD), full=True),
    case("PoissonNLLLoss", x(*EVEN), x(*EVEN), log_input=False, reduction="none"),
    case("GaussianNLLLoss", x(*ODD), t(*ODD), x(*ODD), full=True),
    case("HingeEmbeddingLoss", x(*ODD), t(*ODD)),
    case("SoftMarginLoss", x(*ODD), t(*ODD), dtype=BF16),
    case("KLDivLoss", x(*ODD), x(*ODD), reduction="batchmean"),
    case("KLDivLoss", x(*EVEN), t(*EVEN), reduction="batchmean", log_target=True, dtype=BF16),
    case("MarginRankingLoss", x(100003), x(100003), t(100003), margin=0.5),
]

TILED = [
    case("BCEWithLogitsLoss", x(*ODD), t(*ODD), pos_weight=t(1025)),
    case("BCEWithLogitsLoss", x(*EVEN), t(*EVEN), pos_weight=t(1040), weight=t(1040), reduction="none"),
    case("GaussianNLLLoss", x(*EVEN), t(*EVEN), x(1024, 1)),
    case("NLLLoss", x(64, 1000), y(64), weight=t(1000)),
    case("NLLLoss", x(4, 20, 33, 17), y(4, 33, 17), reduction="none", dtype=BF16),
]

ROWS = [
    case("CrossEntropyLoss", x(33, 10), y(33)),
    case("CrossEntropyLoss", x(64, 1000), y(64)),
    case("CrossEntropyLoss", x(8192, 1024), y(8192), dtype=BF16),
    case("CrossEntropyLoss", x(64, 1000), y(64), dtype=BF16, weight=t(1000), label_smoothing=0.1),
    case("CrossEntropyLoss", x(64, 1024), x(64, 1024), label_smoothing=0.1),
    case("CrossEntropyLoss", x(8, 8192), y(8), dtype=F64),
    case("CrossEntropyLoss", x(8, 32768), y(8), reduction="none"),
    case("CrossEntropyLoss", x(8, 32768), y(8), dtype=BF16, label_smoothing=0.1),
    case("CrossEntropyLoss", x(4, 20, 33, 17), y(4, 33, 17), weight=t(20)),
    case("CrossEntropyLoss", x(2, 3001, 64), y(2, 64), dtype=BF16),
    case("MultiMarginLoss", x(64, 1000), y(64), p=2, weight=t(1000)),
    case("MultiMarginLoss", x(64, 1008), y(64), dtype=BF16),
    case("MultiLabelSoftMarginLoss", x(64, 1000), t(64, 1000), weight=t(1000)),
    case("TripletMarginLoss", x(256, 128), x(256, 128), x(256, 128)),
    case("TripletMarginLoss", x(256, 127), x(256, 127), x(256, 127), dtype=BF16, swap=True),
    case("TripletMarginLoss", x(256, 1008), x(256, 1008), x(256, 1008), p=1),
    case("TripletMarginLoss", x(256, 128), x(256, 128), x(256, 128), p=3, reduction="sum"),
    case("TripletMarginWithDistanceLoss", x(256, 128), x(256, 128), x(256, 128)),
    case("TripletMarginWithDistanceLoss", x(256, 500), x(256, 500), x(256, 500), swap=True, distance_function=distance),
]

LOOPED = [
    case("CrossEntropyLoss", x(200, 50257), y(200)),
    case("CrossEntropyLoss", x(8, 50257), y(8), dtype=BF16, weight=t(50257), label_smoothing=0.1),
    case("CrossEntropyLoss", x(8, 128256), y(8), dtype=BF16),
    case("CrossEntropyLoss", x(8, 128256), x(8, 128256)),
    case("MultiMarginLoss", x(200, 50257), y(200)),
    case("MultiLabelSoftMarginLoss", x(200, 50272), t(200, 50272)),
    case("TripletMarginLoss", x(200, 50272), x(200, 50272), x(200, 50272), p=3),
    # Few long rows: split over programs.
    case("CrossEntropyLoss", x(8, 50257), y(8)),
    case("MultiLabelSoftMarginLoss", x(8, 50272), t(8, 50272)),
    case("TripletMarginLoss", x(8, 50257), x(8, 50257), x(8, 50257), p=3),
]

# With kernels written by hand. Lengths are as on a GPU: their values do not matter.
HANDWRITTEN = [
    *(case("CosineEmbeddingLoss", x(4096, n), x(4096, n), t(4096), dtype=d) for n in (512, 511) for d in (F32, BF16)),
    case("CosineEmbeddingLoss", x(64, 5003), x(64, 5003), t(64)),
    *(case("MultiLabelMarginLoss", x(256, n), y(256, n), dtype=d) for n in (1000, 1001) for d in (F32, BF16)),
    case("MultiLabelMarginLoss", x(64, 5003), y(64, 5003)),
    case("MultiLabelMarginLoss", x(64, 8192), y(64, 8192), dtype=F64),
    *(case("CTCLoss", x(200, 32, 80), y(32, 40), y(32), y(32), dtype=d) for d in (F32, BF16)),
    case("CTCLoss", x(201, 33, 81), y(33, 41), y(33), y(33)),
]

# With matrix products, which torch runs.
PROJECTED = [
    case("LinearCrossEntropyLoss", x(512, 64), y(512), in_features=64, num_classes=n)
    for n in (1000, 1001)
    if "LinearCrossEntropyLoss" in autogen.losses.__all__  # torch has had it since 2.12
]

# Offsets past 2^31, and so in 64 bits.
WIDE = [
    case("MSELoss", x(2**31 + 9), t(2**31 + 9), dtype=BF16),
    case("CrossEntropyLoss", x(2**16, 2**15), y(2**16), dtype=BF16),
    case("CrossEntropyLoss", x(1, 150, 4096, 4096), y(1, 4096, 4096), dtype=BF16),
]

CASES = [*FLAT, *TILED, *ROWS, *LOOPED, *WIDE]
