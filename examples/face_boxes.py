"""Box losses for faces, of which each image has another number.

    TRITON_INTERPRET=1 python -m examples.face_boxes --batch 8 --steps 2          # on the CPU, in Triton's interpreter
    python -m examples.face_boxes --batch 1024 --size 256 --figure boxes.svg      # on a GPU

Most images show few faces, floor(|N(0, 3)|), and a model predicts 256 boxes for each, of which the first are compared
with those that are there. Chaim Rand's "Accelerating AI/ML Model Training with Custom Operators" (2024) computes that
loss in a loop, on joined boxes, on padded ones, and by kernels written in CUDA. Here these are generated from a few
lines of torch (see `ways`), and there is a backward.

What it prints of each way is measured where it runs: ms of the article's three ranges and of the loss's backward, each
with the host waiting for the device at its end, by torch's profiler; launches forward and backward, of ours by
`autogen.explain`, of torch's kernels by the profiler (on the CPU, operations that compute something); MB that these
read and write, each tensor once per operation; on a GPU, the MB that the loss and its gradient allocate at most; and
the loss. Each step gets the same batch, from the host's memory, pinned where there is a GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

import autogen
from autogen import autogen_loss
from autogen.compat import pytree, shows_its_first
from autogen.data import padded_collate, ragged_collate, to_device

RANGES = ("copy data", "forward", "calc loss", "backward")


# --- the loss, in the ways of the article -----------------------------------------------------------------------------


def giou(one: Tensor, other: Tensor, eps: float = 1e-5) -> Tensor:
    """The article's formula for boxes (..., 4), which does not clamp the sides of the intersection at 0."""
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (one, other)]
    sides = torch.min(one[..., 2:], other[..., 2:]) - torch.max(one[..., :2], other[..., :2])
    intersection = sides[..., 0] * sides[..., 1]
    union = areas[0] + areas[1] - intersection
    around = torch.max(one[..., 2:], other[..., 2:]) - torch.min(one[..., :2], other[..., :2])
    area = (around[..., 0] * around[..., 1]).clamp(eps)
    return intersection / union.clamp(eps) - (area - union) / area


def naive(predicted: Tensor, targets: Sequence[Tensor]) -> Tensor:
    total = predicted.new_zeros(())
    for row, boxes in zip(predicted, targets, strict=True):
        total = total + giou(row[: len(boxes)], boxes).sum()
    return total / max(sum(map(len, targets)), 1)


def concatenated(predicted: Tensor, targets: Sequence[Tensor]) -> Tensor:
    boxes = torch.cat(list(targets))
    rows = torch.cat([row[: len(each)] for row, each in zip(predicted, targets, strict=True)])
    return giou(rows, boxes).sum() / max(len(boxes), 1)


def padded(predicted: Tensor, boxes: Tensor) -> Tensor:
    is_box = (boxes > 0).any(-1)
    return torch.where(is_box, giou(predicted, boxes), 0).sum() / is_box.sum().clamp(min=1)


generated = autogen_loss(padded)


@autogen_loss
def skipping(predicted: Tensor, boxes: Tensor, lengths: Tensor) -> Tensor:
    """With lengths, the places that count are known before a box is read: a tile without one need not be computed."""
    is_box = torch.arange(predicted.shape[1], device=predicted.device) < lengths[:, None]
    return torch.where(is_box, giou(predicted, boxes), 0).sum() / lengths.sum().clamp(min=1)


@autogen_loss
def ragged(predicted: Tensor, boxes: Tensor) -> Tensor:
    """On jagged tensors nothing is padded: the boxes of image k are those from the k-th of `offsets` on."""
    found, offsets = boxes.values(), boxes.offsets()
    count = found.shape[0]
    image = torch.repeat_interleave(
        torch.arange(len(predicted), device=found.device), offsets.diff(), output_size=count
    )
    place = torch.arange(count, device=found.device) - offsets[image]
    return giou(predicted[image, place], found).sum() / max(count, 1)


# --- batches ----------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    image: Tensor
    boxes: Tensor


class Faces(Dataset[Sample]):
    """Images of noise, and boxes at random: floor(|N(0, deviation)|) of them, and no more than the model predicts."""

    def __init__(self, images: int, size: int, slots: int, deviation: float) -> None:
        self.images, self.size, self.slots, self.deviation = images, size, slots, deviation

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, number: int) -> Sample:
        generator = torch.Generator().manual_seed(number)
        count = min(int(torch.randn((), generator=generator).mul(self.deviation).abs()), self.slots)
        image = torch.randint(256, (3, self.size, self.size), generator=generator, dtype=torch.uint8)
        corner, side = torch.rand(2, count, 2, generator=generator)
        return Sample(image, torch.cat([corner, corner + side + 0.01], -1))


def listed(samples: list[Sample]) -> tuple[Tensor, tuple[list[Tensor]]]:
    return torch.stack([each.image for each in samples]), ([each.boxes for each in samples],)


def with_padding(samples: list[Sample], slots: int, *, lengths: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    images, boxes = padded_collate(samples, fields=["boxes"], length=slots)
    return images, tuple(boxes) if lengths else (boxes.values,)


def as_ragged(samples: list[Sample]) -> tuple[Tensor, tuple[Tensor]]:
    images, boxes = ragged_collate(samples, fields=["boxes"])
    return images, (boxes,)


def copy_each(batch: Any, device: torch.device) -> Any:
    """A copy for each tensor, as in the article."""
    return pytree.tree_map(lambda each: each.to(device, non_blocking=True), batch)


class Way(NamedTuple):
    """How batches are made, copied, and compared with what the model predicts."""

    name: str
    collate: Callable[..., Any]
    copy: Callable[[Any, torch.device], Any]
    loss: Callable[..., Tensor]


def ways(slots: int) -> list[Way]:
    with_zeros, with_lengths = (partial(with_padding, slots=slots, lengths=lengths) for lengths in (False, True))
    return [
        Way("naive", listed, copy_each, naive),
        Way("concatenated", listed, copy_each, concatenated),
        Way("padded", with_zeros, to_device, padded),
        Way("generated", with_zeros, to_device, generated),
        Way("generated, skipping", with_lengths, to_device, skipping),
        Way("ragged", as_ragged, to_device, ragged),
    ]


class Model(nn.Module):
    """Corners (B, slots, 4) of boxes in images (B, 3, size, size)."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        layers = (nn.Conv2d(3, 16, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.layers = nn.Sequential(*layers, nn.Linear(16, 4 * slots), nn.Sigmoid(), nn.Unflatten(1, (slots, 4)))

    def forward(self, images: Tensor) -> Tensor:
        corner, side = self.layers(images / 255).chunk(2, -1)
        return torch.cat([corner, corner + side], -1)


# --- what is measured -------------------------------------------------------------------------------------------------


class Traffic(TorchDispatchMode):
    """Counts operations that compute something, and the bytes of their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not shows_its_first(func):
            self.operations += 1
            leaves = pytree.tree_leaves((args, kwargs, result))
            self.bytes += sum(each.nbytes for each in leaves if isinstance(each, Tensor))
        return result


@dataclass(frozen=True)
class Row:
    """What is measured of a way; launches and bytes are those of forward and of backward."""

    name: str
    milliseconds: dict[str, float]
    path: str
    launches: tuple[int, int]
    bytes: tuple[int, int]
    peak: int | None
    value: float
    gradient: Tensor

    @property
    def cells(self) -> list[str]:
        times = [f"{self.milliseconds[each]:.3f}" for each in RANGES]
        moved = " + ".join(f"{each / 1e6:.3f}" for each in self.bytes)
        peak = "-" if self.peak is None else f"{self.peak / 1e6:.3f}"
        return [self.name, *times, self.path, " + ".join(map(str, self.launches)), moved, peak, f"{self.value:.6f}"]


def measure(way: Way, faces: Faces, model: nn.Module, device: torch.device, steps: int) -> Row:
    """One way, with a batch of all the faces."""
    loader = DataLoader(faces, len(faces), collate_fn=way.collate, pin_memory=device.type == "cuda")
    (batch,) = loader
    images, targets = way.copy(batch, device)
    predicted = model(images).detach().requires_grad_()
    value = way.loss(predicted, *targets)
    (gradient,) = torch.autograd.grad(value, predicted)
    times = profiled(way, batch, model, device, steps)
    path, launches, moved = described(way, predicted, targets, batch)
    return Row(way.name, times, path, launches, moved, peak(way, predicted, targets), value.item(), gradient.cpu())


def profiled(way: Way, batch: Any, model: nn.Module, device: torch.device, steps: int) -> dict[str, float]:
    """ms of each range in a step, as the profiler sees it: after as many steps that it waits and warms up."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    before = max(steps // 2, 1)  # the article's schedule is 5, 5, 10
    with profile(activities=activities, schedule=schedule(wait=before, warmup=before, active=steps)) as profiler:
        for _ in range(2 * before + steps):
            with record_function("copy data"):
                images, targets = way.copy(batch, device)
                wait()
            with record_function("forward"):
                predicted = model(images)
                wait()
            with record_function("calc loss"):
                value = way.loss(predicted, *targets)
                wait()
            with record_function("backward"):  # of the loss, without that of the model
                torch.autograd.grad(value, predicted)
                wait()
            profiler.step()
    found: dict[str, list[float]] = {name: [] for name in RANGES}
    for event in profiler.events():
        if event.name in found and event.device_type.name == "CPU":
            found[event.name].append(event.cpu_time_total / 1000)
    return {name: sum(times) / len(times) for name, times in found.items()}


def described(way: Way, predicted: Tensor, targets: Any, batch: Any) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """The path of a way, its launches, and the bytes that these move, forward and backward."""
    path = "eager"
    if way.loss in (generated, skipping, ragged):
        report = autogen.explain(way.loss, predicted, *targets)
        path = report.path
        if report.forward is not None and report.backward is not None:
            forward, backward = report.forward, report.backward
            of_torch = [each.split(",")[0] for each in (*forward.torch_steps, *backward.torch_steps)]
            path = ", with torch's ".join([path, *of_torch])  # whose launches are not among those of ours
            return path, (forward.launches, backward.launches), (forward.bytes_moved, backward.bytes_moved)
    rows = predicted.detach().cpu().requires_grad_()  # where backward runs in this thread, and the mode sees it
    with autogen.policy("disabled"):
        with Traffic() as forward:
            value = way.loss(rows, *batch[1])
        with Traffic() as backward:
            torch.autograd.grad(value, rows)
    moved = forward.bytes, backward.bytes
    return path, _kernels(way, predicted, targets) or (forward.operations, backward.operations), moved


def _kernels(way: Way, predicted: Tensor, targets: Any) -> tuple[int, int] | None:
    """Kernels that torch launches forward and backward on a GPU."""
    if not predicted.is_cuda:
        return None
    from bench import gpu

    values: list[Tensor] = []

    def forward(_: int) -> None:
        values.append(way.loss(predicted, *targets))

    found = gpu.launches(
        {
            "forward": (forward, lambda _: None),
            "backward": (lambda _: torch.autograd.grad(values.pop(), predicted), forward),
        }
    )
    return found["forward"], found["backward"]


def peak(way: Way, predicted: Tensor, targets: Any) -> int | None:
    """Bytes that the loss and its gradient allocate at most, beside what there is, on a GPU."""
    if not predicted.is_cuda:
        return None
    from bench import gpu

    def both(_: int) -> None:
        torch.autograd.grad(way.loss(predicted, *targets), predicted)

    return gpu.peak(both, lambda _: None)


def disjoint() -> tuple[float, float]:
    """The article's formula, and GIoU, of two boxes that are disjoint on both axes."""
    one, other = torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([[2.0, 2, 3, 3]])
    return giou(one, other).item(), 1 - autogen.losses.GIoULoss()(one, other).item()


# --- the table and the figure -----------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    head = ["way", *(f"{each} (ms)" for each in RANGES), "path", "launches", "MB moved", "peak MB", "loss"]
    cells = [head, ["---"] * len(head), *(row.cells for row in rows)]
    return "\n".join(f"| {' | '.join(each)} |" for each in cells)


def draw(found: dict[int, list[Row]], slots: int, device: torch.device, path: Path) -> None:
    """The µs of the loss and its gradient over batches, a line for each way, as SVG."""
    from bench import plots
    from bench.results import Row as Point

    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, in Triton's interpreter"
    versions = f"autogen-loss {autogen.__version__}, torch {torch.__version__}"
    points = [
        Point(
            *(where, versions, "face_boxes", f"{batch}x{slots}", "float32", row.name, "both"),
            median=1000 * (row.milliseconds["calc loss"] + row.milliseconds["backward"]),
        )
        for batch, rows in found.items()
        for row in rows
    ]
    plots.save(plots.one_panel(f"Loss and gradient of images x boxes, {where}", points), path)


def main(arguments: Sequence[str] | None = None) -> dict[int, list[Row]]:
    """Measure, and print; returns the rows of each batch."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.face_boxes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10, help="how many are measured")
    parser.add_argument("--batch", type=int, nargs="+", default=[16], help="images in a batch, or several to compare")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--slots", type=int, default=256, help="boxes that the model predicts for an image")
    parser.add_argument("--deviation", type=float, default=3.0, help="of the number of boxes that are there")
    parser.add_argument("--size", type=int, default=32, help="height and width of an image")
    parser.add_argument("--figure", type=Path, help="where to draw the loss and its gradient, as SVG")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = Model(options.slots).to(device)
    found = {}
    for batch in options.batch:
        faces = Faces(batch, options.size, options.slots, options.deviation)
        found[batch] = [measure(way, faces, model, device, options.steps) for way in ways(options.slots)]
        counts = [len(faces[k].boxes) for k in range(batch)]
        print(f"{sum(counts)} boxes in {batch} images, {max(counts)} at most, of {options.slots} that are predicted:\n")
        print(f"{table(found[batch])}\n")
    article, true = disjoint()
    print(f"Two boxes disjoint on both axes: the article's formula gives {article:+.3f}, GIoU is {true:+.3f}.")
    if options.figure is not None:
        draw(found, options.slots, device, options.figure)
        print(f"Drawn in {options.figure}.")
    return found


if __name__ == "__main__":
    main()
