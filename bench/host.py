"""Measure the host time of a call, up to the launch, beside eager and `torch.compile`, on tiny tensors.

    python -m bench.host [--seconds 0.5] [--slack 1]

No GPU is needed, and none is used. Tensors are on the CPU; to autogen they pass for those of a GPU, whose driver does
nothing: everything up to Triton's launcher runs as it would. Eager and torch.compile run their real CPU kernels on a
few hundred elements or less, a few µs of which are arithmetic. The column "function" is a module around the least
`torch.autograd.Function`, which saves the tensors, and allocates a result each way: what any loss in Python pays that
is no op of torch's own. What torch runs between kernels (the product of InfoNCE of long embeddings, the sorts of
Wasserstein) and ahead of them (the check of Checked) does run, in every column. CTC is of one label in two steps. Its
lengths are on the device, and so it is planned once; those of CTC lists are lists, looked at in every call. In
"new sizes" no call has the sizes of an earlier one; tensors have up to 100,000 elements, most of them few, and are cut
in every column. Counted has another number of calls behind it in each. Refused is torch's: how much a call loses by
being decorated. Charbonnier, Focal and Dice are losses that a user writes, of no other declaration.

Times are CPU time of the process, the median of many rounds, in each of which all columns take their turn. Ratios to
eager are the median of those of the rounds: a machine may be faster in one than in the next. It fails if one is above
its bound in `BOUNDS`, or, of a loss that a user writes, to torch.compile above `COMPILED_BOUND`; times `--slack`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import operator
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import autogen.losses
from autogen import autogen_loss, policy
from autogen.dispatch import dispatcher
from autogen.losses.handwritten.ctc import CTC
from autogen.losses.handwritten.multilabel_margin import MultiLabelMargin
from autogen.runtime import availability, build, direct, handwritten

ROUNDS = 15

# The largest ratio to eager, forward and both ways, that is no failure: what was measured, and a third for noise.
BOUNDS = {
    "BCEWithLogits": (1.1, 1.1),
    "CrossEntropy": (1.0, 1.15),
    "GIoU": (0.2, 0.2),
    "CosineEmbedding": (0.5, 0.45),
    "MultiLabelMargin": (4.2, 2.3),
    "CTC": (2.0, 1.4),
    "CTC lists": (10.5, 3.8),
    "InfoNCE": (0.3, 0.3),
    "InfoNCE, long": (0.55, 0.55),
    "Charbonnier": (2.3, 1.35),
    "Focal": (1.0, 0.75),
    "Dice": (1.0, 0.85),
    "Wasserstein": (3.1, 2.1),
    "LinearCrossEntropy": (2.2, 1.65),
    "Checked": (4.1, 2.1),
    "Refused": (6.7, 2.9),
    "Counted": (9.4, 4.6),
    "DINO": (1.8, 1.85),
    "DINO, assigned": (0.65, 0.75),
    "BCE, new sizes": (3.9, 3.6),
    "GIoU, new sizes": (1.5, 0.85),
}

# The largest ratio to torch.compile, of losses that a user writes.
COMPILED_BOUND = 0.7
OWN = ("Charbonnier", "Focal", "Dice")

RATIO, COMPILED = "/ eager", "/ compile"
CHECKED = "Checked"  # whose check ends a graph
REFUSED = "Refused"
COUNTED = "Counted"  # which is captured a second time
NEW_SIZES = "new sizes"
SIDE = 28  # as many sizes of each dimension


class _Least(torch.autograd.Function):
    """Saves its tensors, and gives the first one a gradient."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return tensors[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        first, *rest = ctx.saved_tensors
        return torch.empty_like(first), *[None] * len(rest)


class _LeastLoss(nn.Module):
    def forward(self, *given: Any) -> torch.Tensor:
        return _Least.apply(*filter(torch.is_tensor, given))


class _Launcher:
    """Triton's launcher, of a driver that does nothing."""

    def __call__(self, gridX: Any, gridY: Any, gridZ: Any, stream: Any, function: Any, *args: Any) -> None:
        pass


class _Kernel:
    """A compiled kernel, and the function that it was compiled from."""

    run, function, packed_metadata = _Launcher(), 1, (4, 1, 0)

    def __getitem__(self, grid: Any) -> Callable[..., _Kernel]:
        return lambda *args, **kwargs: self


def pretend() -> None:
    """Make tensors on the CPU pass for those of a GPU whose driver does nothing."""
    torch.set_flush_denormal(True)  # which are slow to multiply: what no kernel has written may be full of them
    dispatcher.has_interpreter = availability.has_interpreter = lambda: True  # type: ignore[assignment, attr-defined]
    MultiLabelMargin.checks_values = CTC.checks_values = False  # which are of the CPU alone
    build.load_function = lambda name, text: _Kernel()
    streams = direct.Streams(lambda: None, lambda index: 0, lambda: False)
    direct.streams_of = lambda kind: streams  # type: ignore[assignment]
    handwritten.Launch._through_triton = lambda self, device: _Kernel()  # type: ignore[method-assign]


def charbonnier(input: torch.Tensor, target: torch.Tensor, eps: float = 1e-3) -> torch.Tensor:
    """A smooth mean error."""
    return torch.sqrt((input - target).square() + eps * eps).mean()


def focal(input: torch.Tensor, labels: torch.Tensor, gamma: float = 2.0) -> torch.Tensor:
    """Cross entropy that looks away from what is easy."""
    picked = input.log_softmax(1).gather(1, labels[:, None]).squeeze(1)
    return -((1 - picked.exp()) ** gamma * picked).mean()


def dice(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """One minus the overlap of each row."""
    probability = input.sigmoid()
    both, all = (probability * target).sum(1), probability.sum(1) + target.sum(1)
    return (1 - (2 * both + 1) / (all + 1)).mean()


def wasserstein(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of samples in one dimension: the mean distance between those of the same rank."""
    return (input.sort(1).values - target.sort(1).values).abs().mean()


def checked(input: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """A negative log likelihood that looks at its variances."""
    if (variance < 0).any():
        raise ValueError("a negative variance")
    return (input.square() / variance + variance.log()).mean()


def refused(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A mean error that is scaled in Python, which is why torch runs it."""
    error = (input - target).abs()
    return error.mean() / max(math.hypot(error.detach().amax(), 0.0), 1e-6)


class Counted(nn.Module):
    """A mean error whose weight decays from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return (input - target).abs().mean() * (1 - self.step / 10_000)


class Dino(nn.Module):
    """Cross entropy with a teacher whose centre is a moving average, which is written in place."""

    center: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 10))

    def forward(self, student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        target = ((teacher - self.center) / 0.04).softmax(-1)
        loss = -(target * (student / 0.1).log_softmax(-1)).sum(-1).mean()
        self.update(teacher.mean(0, keepdim=True))
        return loss

    @torch.no_grad()
    def update(self, mean: torch.Tensor) -> None:
        """Move the centre."""
        self.center.mul_(0.9).add_(mean, alpha=0.1)


class DinoAssigned(Dino):
    """The same with a new tensor for each centre."""

    @torch.no_grad()
    def update(self, mean: torch.Tensor) -> None:
        self.center = self.center * 0.9 + mean * 0.1


class NewSizes(nn.Module):
    """A loss of a box for each place in a block, of whose shape no call in the last twenty thousand was."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss
        self.sizes = itertools.cycle(itertools.product(range(2, 2 + SIDE), repeat=3))

    def forward(self, *tensors: torch.Tensor) -> Any:
        shape = next(self.sizes)
        return self.loss(*[each[: math.prod(shape)].view(*shape, 4) for each in tensors])


def boxes(n: int = 64) -> torch.Tensor:
    corners = torch.rand(n, 2)
    return torch.cat([corners, corners + torch.rand(n, 2)], dim=1)


def cases() -> dict[str, tuple[Any, Any, tuple[Any, ...]]]:
    """Our loss, the one that it stands for, and a call of both."""
    losses = autogen.losses
    logits, labels = torch.randn(64, 10), torch.randint(0, 10, (64,))
    steps, label = torch.randn(2, 1, 2).log_softmax(2), torch.ones(1, 1, dtype=torch.int64)
    found: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
        "BCEWithLogits": (losses.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(), (logits, torch.rand(64, 10))),
        "CrossEntropy": (losses.CrossEntropyLoss(), nn.CrossEntropyLoss(), (logits, labels)),
        "CosineEmbedding": (
            losses.CosineEmbeddingLoss(),
            nn.CosineEmbeddingLoss(),
            (torch.randn(64, 10), torch.randn(64, 10), torch.ones(64)),
        ),
        "MultiLabelMargin": (
            losses.MultiLabelMarginLoss(),
            nn.MultiLabelMarginLoss(),
            (torch.randn(2, 2), torch.tensor([[0, -1], [1, -1]])),  # the least that it can be
        ),
        "CTC": (losses.CTCLoss(), nn.CTCLoss(), (steps, label, torch.tensor([2]), torch.tensor([1]))),
        "CTC lists": (losses.CTCLoss(), nn.CTCLoss(), (steps, label, [2], [1])),
        "GIoU": (losses.GIoULoss(), losses.GIoULoss(use_autogen=False), (boxes(), boxes())),
        "InfoNCE": (
            losses.InfoNCELoss(),
            losses.InfoNCELoss(use_autogen=False),
            (torch.randn(64, 10), torch.randn(64, 10)),
        ),
        "InfoNCE, long": (  # of more dimensions than the kernels are made for
            losses.InfoNCELoss(),
            losses.InfoNCELoss(use_autogen=False),
            (torch.randn(4, 260), torch.randn(4, 260)),
        ),
        "Charbonnier": (autogen_loss(charbonnier), charbonnier, (logits.clone(), torch.randn(64, 10))),
        "Focal": (autogen_loss(focal), focal, (logits.clone(), labels)),
        "Dice": (autogen_loss(dice), dice, (logits.clone(), torch.rand(64, 10).round())),
        "Wasserstein": (autogen_loss(wasserstein), wasserstein, (torch.randn(64, 10), torch.randn(64, 10))),
        "Checked": (autogen_loss(checked), checked, (torch.randn(64, 10), torch.rand(64, 10) + 0.1)),
        "Refused": (autogen_loss(refused), refused, (torch.randn(64, 10), torch.randn(64, 10))),
        "Counted": (autogen_loss(Counted()), Counted(), (torch.randn(64, 10), torch.randn(64, 10))),
        "DINO": (autogen_loss(Dino()), Dino(), (torch.randn(64, 10), torch.randn(64, 10))),
        "DINO, assigned": (autogen_loss(DinoAssigned()), DinoAssigned(), (torch.randn(64, 10), torch.randn(64, 10))),
    }
    most = (1 + SIDE) ** 3
    many = (torch.rand(most, 4), torch.rand(most, 4))
    found[f"BCE, {NEW_SIZES}"] = (losses.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(), many)
    giou = losses.GIoULoss(), losses.GIoULoss(use_autogen=False)
    found[f"GIoU, {NEW_SIZES}"] = (*giou, (boxes(most), boxes(most)))
    if hasattr(nn, "LinearCrossEntropyLoss"):  # torch has had it since 2.12
        ours, theirs = losses.LinearCrossEntropyLoss(10, 10), nn.LinearCrossEntropyLoss(10, 10)
        found["LinearCrossEntropy"] = (ours, theirs, (torch.randn(64, 10), labels))
    return found


def medians(columns: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Median CPU µs of a call, for each column; they take turns. And the median ratios of ours to others."""
    counts = {}
    for name, call in columns.items():
        for _ in range(50):
            call()
        start = time.process_time()
        for _ in range(50):
            call()
        counts[name] = max(int(50 * seconds / ROUNDS / max(time.process_time() - start, 1e-6)), 1)
    times: dict[str, list[float]] = {name: [] for name in columns}
    for _ in range(ROUNDS):
        for name, call in columns.items():
            start = time.process_time()
            for _ in range(counts[name]):
                call()
            times[name].append((time.process_time() - start) / counts[name] * 1e6)
    found = {name: statistics.median(each) for name, each in times.items()}
    if "eager" in times:
        found[RATIO] = statistics.median(map(operator.truediv, times["autogen"], times["eager"]))
    if "compile" in times:
        found[COMPILED] = statistics.median(map(operator.truediv, times["autogen"], times["compile"]))
    return found


def measure(seconds: float, *, compiled: bool = True) -> dict[str, dict[str, dict[str, float]]]:
    """µs by case, direction and column."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, (ours, eager, (first, *rest)) in cases().items():
        first = first.requires_grad_()
        columns = {"eager": eager, "function": _LeastLoss(), "autogen": ours}
        if compiled:
            torch.compiler.reset()  # modules of torch.nn share a limit of recompilations
            columns["compile"] = torch.compile(eager)
        with policy("default" if name in (CHECKED, REFUSED, COUNTED) else "mandatory"):
            for factor in range(1, 5 if name == COUNTED else 3):  # in training, too, what a loss reads of them differs
                ours(first * factor, *rest)
        if name.endswith(NEW_SIZES):
            columns = {column: NewSizes(loss) for column, loss in columns.items()}

        def both(loss: Any, first: torch.Tensor = first, rest: Any = rest) -> None:
            first.grad = None
            loss(first, *rest).backward()

        forward = {column: lambda loss=loss, a=(first, *rest): loss(*a) for column, loss in columns.items()}
        around = {column: lambda loss=loss: both(loss) for column, loss in columns.items()}
        found[name] = {"forward": medians(forward, seconds), "both": medians(around, seconds)}
        upstream = torch.ones(())
        values = {column: columns[column](first, *rest) for column in ("function", "autogen")}
        if not hasattr(values["autogen"].grad_fn, "call"):  # it is one of torch's
            continue
        backward = {column: functools.partial(value.grad_fn.apply, upstream) for column, value in values.items()}
        with torch.no_grad():
            found[name]["node"] = medians(backward, seconds)
    return found


def failures(found: dict[str, dict[str, dict[str, float]]], slack: float) -> list[str]:
    """The ratios that are above their bounds."""
    text = []
    for name, directions in found.items():
        for bound, (direction, columns) in zip(BOUNDS[name], directions.items(), strict=False):
            ratio = columns[RATIO]
            if ratio > bound * slack:
                text.append(f"{name} {direction}: {ratio:.2f} times eager, more than {bound * slack:.2f}")
            compiled = columns.get(COMPILED, 0.0)
            if name in OWN and compiled > COMPILED_BOUND * slack:
                text.append(
                    f"{name} {direction}: {compiled:.2f} of torch.compile, more than {COMPILED_BOUND * slack:.2f}"
                )
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="for each number")
    parser.add_argument("--slack", type=float, default=1.0, help="a factor on the bounds")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pretend()
    found = measure(options.seconds, compiled=not options.without_compile)
    print(f"µs of host time per call (torch {torch.__version__}, Python {platform.python_version()}, no launch)")
    names = list(next(iter(found.values()))["forward"])
    print(f"{'loss':<20}{'':<10}" + "".join(f"{name:>10}" for name in names))
    for name, directions in found.items():
        for direction, columns in directions.items():
            numbers = [
                f"{columns[each]:.{2 if each.startswith('/') else 1}f}" if each in columns else "" for each in names
            ]
            print(f"{name:<20}{direction:<10}" + "".join(f"{number:>10}" for number in numbers).rstrip())
    too_slow = failures(found, options.slack)
    for text in too_slow:
        print(text, file=sys.stderr)
    return int(bool(too_slow))


if __name__ == "__main__":
    raise SystemExit(main())
