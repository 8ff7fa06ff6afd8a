"""Train a small classifier on handwritten digits, with torch's cross entropy and with the generated one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from autogen.losses import CrossEntropyLoss
from examples.demo.counting import counted_launches

BATCH = 64
LEARNING_RATE = 0.1
MOMENTUM = 0.9

# Rounding alone drives two runs apart. They agree if they differ by no more than this many times what it does to torch.
TOLERANCE = 10


@dataclass(frozen=True)
class Digits:
    """Images of 8 × 8 pixels and the digit on each, for training and for testing."""

    images: torch.Tensor
    digits: torch.Tensor
    test_images: torch.Tensor
    test_digits: torch.Tensor


@dataclass
class Run:
    """One of the runs that train side by side."""

    name: str
    model: nn.Module
    loss: nn.Module
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the run."""
        return next(self.model.parameters()).dtype

    def step(self, images: torch.Tensor, digits: torch.Tensor) -> None:
        """One step of gradient descent."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model(images.to(self.dtype)), digits)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def test(self, images: torch.Tensor, digits: torch.Tensor) -> None:
        """Note which share of the digits the model names rightly."""
        with torch.no_grad():
            named = self.model(images.to(self.dtype)).argmax(1)
        self.accuracy = (named == digits).double().mean().item()


@dataclass(frozen=True)
class Difference:
    """How far apart two runs are: the difference of their losses, and the largest difference of any parameter."""

    loss: float
    parameter: float

    @classmethod
    def between(cls, one: Run, other: Run) -> Difference:
        """The difference of two runs after their latest step."""
        pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
        parameter = max((a.double() - b.double()).abs().max().item() for a, b in pairs)
        return cls(abs(one.losses[-1] - other.losses[-1]), parameter)

    @classmethod
    def largest(cls, of: Sequence[Difference]) -> Difference:
        """The largest over some steps."""
        return cls(max(each.loss for each in of), max(each.parameter for each in of))


@dataclass(frozen=True)
class Training:
    """What came of it, step by step; `rounding`, torch's run against its own in double precision, is the yardstick."""

    generated: Run
    torch: Run
    differences: list[Difference]
    rounding: list[Difference]
    launches: int

    @property
    def steps(self) -> int:
        """How many steps each run took."""
        return len(self.generated.losses)

    @property
    def agrees(self) -> bool:
        """Whether the two runs were the same at every step, but for rounding."""
        worst, rounding = Difference.largest(self.differences), Difference.largest(self.rounding)
        return worst.loss <= TOLERANCE * rounding.loss and worst.parameter <= TOLERANCE * rounding.parameter

    @property
    def statement(self) -> str:
        """The finding, in a sentence."""
        return f"The two runs {'agree' if self.agrees else 'DO NOT agree'} at each of the {self.steps} steps"


def load_digits(device: torch.device) -> Digits:
    """The handwritten digits that ship inside scikit-learn; every fifth is kept for testing."""
    from sklearn import datasets

    found = datasets.load_digits()
    images = torch.tensor(found.data / 16, dtype=torch.float32, device=device)
    digits = torch.tensor(found.target, dtype=torch.int64, device=device)
    held_out = torch.arange(len(digits), device=device) % 5 == 0
    return Digits(images[~held_out], digits[~held_out], images[held_out], digits[held_out])


def train(data: Digits, steps: int, on_step: Callable[[int], None] = lambda done: None) -> Training:
    """Train from one initialisation on the same batches, and compare after every step; `on_step` hears how many."""
    device = data.images.device
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    generated = Run("autogen.losses.CrossEntropyLoss", copy.deepcopy(model), CrossEntropyLoss())
    reference = Run("torch.nn.CrossEntropyLoss", copy.deepcopy(model), nn.CrossEntropyLoss())
    precise = Run("torch in double precision", copy.deepcopy(model).double(), nn.CrossEntropyLoss())
    differences, rounding = [], []
    with counted_launches(device, "cross_entropy_loss") as launches:
        for batch in _batches(len(data.digits), steps):
            for run in (generated, reference, precise):
                run.step(data.images[batch], data.digits[batch])
            differences.append(Difference.between(generated, reference))
            rounding.append(Difference.between(precise, reference))
            on_step(len(differences))
    for run in (generated, reference):
        run.test(data.test_images, data.test_digits)
    return Training(generated, reference, differences, rounding, launches.count)


def _batches(count: int, steps: int) -> Iterator[torch.Tensor]:
    """Batches of indices, in a new order in every round through the data."""
    generator = torch.Generator().manual_seed(0)
    produced = 0
    while produced < steps:
        for batch in torch.randperm(count, generator=generator).split(BATCH)[: steps - produced]:
            produced += 1
            yield batch
