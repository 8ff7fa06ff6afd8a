"""Measure the peak memory of losses of `hidden @ weight.t()`, beside their inputs.

    python -m bench.memory [--sizes 2048x512x16384] [--dtypes float32,bfloat16] [--chunk 256] [--write]

Sizes are rows x width x classes. Each loss is called forward and backward, in training, by torch eager, by kernels of
ours for all rows at once and in chunks of rows, by torch's own chunks (`F.linear_cross_entropy`, since torch 2.12), and
by Liger-Kernel's, if it is installed. On a GPU the peak is the allocator's. Elsewhere it is that of the profiler's
memory events: tensors are on the CPU, products are torch's and run, and kernels are launched by a driver that does
nothing (`bench.host`). Liger's kernel is left out there, too: it allocates nothing.

MB are of 10^6 bytes. "Gradients" are those of the hidden states and of the weight, "sums" that of the weight in single
precision, where it is in half, and "workspace" is a chunk of the products with a chunk of their gradients, for ours;
others choose their own. "Ratio" is the peak over all of these; "in half" there are no sums (`sums="weight"`), and of
torch's products of half precision on the CPU, some copy a factor. "Products" are multiplications of matrices, as a
multiple of the least three that forward and backward take. It fails if ours in chunks takes more than `BOUND` of what
it needs. `--write` keeps the rows as `bench/results/memory.csv`, in place of those of the last run.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import importlib.util
import json
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import autogen
from autogen import autogen_loss, policy
from autogen.scheduling.chunks.size import rows_per_chunk
from bench import gpu, host
from bench.results import FOLDER

FILE = FOLDER / "memory.csv"
BOUND = 1.15  # of the peak in chunks, over gradients, sums and workspace
OURS = "autogen, chunks"
OURS_IN_HALF = "the same, in half"
Z_LOSS = 1e-4
SIZES = ((512, 256, 4096), (2048, 512, 8192), (4096, 512, 16384))
GPU_SIZES = ((8192, 4096, 128256),)

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of a language model's head."""
    return F.cross_entropy(hidden @ weight.t(), labels)


def with_z_loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same, with a penalty on the logarithm of what softmax divides by."""
    logits = hidden @ weight.t()
    return F.cross_entropy(logits, labels) + Z_LOSS * logits.logsumexp(-1).square().mean()


LOSSES: dict[str, Loss] = {"cross entropy": cross_entropy, "with z-loss": with_z_loss}


@dataclass(frozen=True)
class Size:
    """A head, and how many of its rows a chunk has."""

    rows: int
    width: int
    classes: int
    dtype: torch.dtype
    chunk: int

    @property
    def gradients(self) -> int:
        """Bytes of the gradients of the hidden states and of the weight."""
        return (self.rows + self.classes) * self.width * self.dtype.itemsize

    @property
    def sums(self) -> int:
        """Bytes of the gradient of the weight in single precision, if it is in half."""
        return self.classes * self.width * 4 if self.dtype.itemsize < 4 else 0

    @property
    def workspace(self) -> int:
        """Bytes of the logits of a chunk, and of their gradient."""
        return 2 * self.chunk * self.classes * self.dtype.itemsize

    @property
    def needed(self) -> int:
        """All of these together."""
        return self.gradients + self.sums + self.workspace

    @property
    def least_products(self) -> int:
        """Operations of one product forward and two backward."""
        return 6 * self.rows * self.width * self.classes

    def inputs(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states, the weight, and labels."""
        draw = functools.partial(torch.randn, dtype=self.dtype, device=device, requires_grad=True)
        labels = torch.randint(self.classes, (self.rows,), device=device)
        return draw(self.rows, self.width), draw(self.classes, self.width), labels


@dataclass(frozen=True)
class Row:
    """What an implementation of a loss allocates at most, and the operations of its products."""

    size: Size
    loss: str
    column: str
    peak: int
    products: int

    @property
    def ratio(self) -> float:
        """The peak, of what ours needs in chunks."""
        return self.peak / (self.size.needed - (self.size.sums if self.column == OURS_IN_HALF else 0))


def write(rows: Sequence[Row], device: str, versions: str, path: Path) -> None:
    """Keep the rows of a run as CSV, in place of those that were there."""
    records = [
        {
            "device": device, "versions": versions, "rows": row.size.rows, "width": row.size.width,
            "classes": row.size.classes, "dtype": _dtype_text(row.size.dtype), "chunk": row.size.chunk,
            "loss": row.loss, "column": row.column, "peak_bytes": row.peak, "products": row.products,
        }
        for row in rows
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*records[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)


def read(path: Path) -> tuple[str, str, list[Row]]:
    """The device, the versions and the rows of such a file."""
    with path.open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    rows = []
    for each in records:
        count, width, classes, chunk, peak, products = (
            int(each[name]) for name in ("rows", "width", "classes", "chunk", "peak_bytes", "products")
        )
        size = Size(count, width, classes, getattr(torch, each["dtype"]), chunk)
        rows.append(Row(size, each["loss"], each["column"], peak, products))
    return records[0]["device"], records[0]["versions"], rows


def columns(loss: str, size: Size) -> Iterator[tuple[str, Loss]]:
    """The implementations of a loss."""
    function = LOSSES[loss]
    yield "eager", function
    yield "autogen, whole", autogen_loss(function, chunk=size.rows)
    yield OURS, autogen_loss(function, chunk=size.chunk)
    if size.sums:
        yield OURS_IN_HALF, autogen_loss(function, chunk=size.chunk, sums="weight")
    if loss == "cross entropy" and hasattr(nn, "LinearCrossEntropyOptions"):
        yield "torch, chunks", functools.partial(F.linear_cross_entropy, options=nn.LinearCrossEntropyOptions())
    if importlib.util.find_spec("liger_kernel"):
        yield "liger, chunks", _ligers(Z_LOSS if loss == "with z-loss" else 0.0)


def _ligers(z_loss: float) -> Loss:
    from liger_kernel.ops import fused_linear_cross_entropy as module
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    if not gpu.is_there():
        module.liger_cross_entropy_kernel = defaultdict(lambda: lambda **_: None)  # of any grid
    loss = LigerFusedLinearCrossEntropyLoss(lse_square_scale=z_loss)
    return lambda hidden, weight, labels: loss(weight, hidden, labels)


def measure(size: Size, loss: str, column: str, function: Loss) -> Row:
    """Call an implementation forward and backward, once it has been called before."""
    hidden, weight, labels = size.inputs(gpu.DEVICE if gpu.is_there() else "cpu")

    def forget(_: int) -> None:
        hidden.grad = weight.grad = None

    def call(_: int) -> None:
        function(hidden, weight, labels).backward()

    for _ in range(2):  # the second call may be the first that goes straight to the launches
        forget(0)
        call(0)
    forget(0)
    found, peak = profiled(functools.partial(call, 0))
    if gpu.is_there():
        peak = gpu.peak(call, forget)
    return Row(size, loss, column, peak, found)


def profiled(call: Callable[[], object]) -> tuple[int, int]:
    """The operations of a call's products, and the bytes that it allocates on the CPU at most, beside what there is."""
    gc.collect()
    gc.disable()  # what it frees would hide what the call allocates
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True) as profiler:
            call()
    finally:
        gc.enable()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [each for each in events if each["name"] == "[memory]" and each["args"]["Device Type"] == 0]
    changes = [each["args"] for each in sorted(memory, key=lambda each: each["ts"])]
    before = changes[0]["Total Allocated"] - changes[0]["Bytes"] if changes else 0
    peak = max((each["Total Allocated"] - before for each in changes), default=0)
    return sum(map(_operations, profiler.events())), peak


def _operations(event: Any) -> int:
    """The operations of a product: two for each place of its result and of what it sums over."""
    if event.name not in ("aten::mm", "aten::addmm", "aten::addmm_"):
        return 0
    left, right = event.input_shapes[:2] if event.name == "aten::mm" else event.input_shapes[1:3]
    return 2 * math.prod(left) * right[1]


def failures(rows: Sequence[Row]) -> list[str]:
    """Where ours takes more in chunks than it may."""
    return [
        f"{row.loss} {_name(row.size)}: {row.ratio:.2f} of what it needs, more than {BOUND}"
        for row in rows
        if row.column in (OURS, *([OURS_IN_HALF] if gpu.is_there() else [])) and row.ratio > BOUND
    ]


def _name(size: Size) -> str:
    return f"{size.rows} x {size.width} x {size.classes} {_dtype_text(size.dtype)}"


def _dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _versions() -> str:
    """What was measured, with Liger-Kernel if it is installed."""
    parts = [f"autogen-loss {autogen.__version__}", f"torch {torch.__version__}"]
    if importlib.util.find_spec("liger_kernel"):
        parts.append(f"Liger-Kernel {version('liger_kernel')}")
    return ", ".join(parts)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each size, in MB."""
    for size in dict.fromkeys(row.size for row in rows):
        parts = {"gradients": size.gradients, "sums": size.sums, "workspace": size.workspace}
        text = ", ".join(f"{name} {part / 1e6:.1f}" for name, part in parts.items() if part)
        yield f"{_name(size)}: {text} MB, in chunks of {size.chunk} rows"
        yield f"  {'':<32}{'peak':>9}{'ratio':>8}{'products':>10}"
        for row in rows:
            if row.size == size:
                products = row.products / size.least_products
                yield f"  {row.loss:<16}{row.column:<16}{row.peak / 1e6:>9.1f}{row.ratio:>8.2f}{products:>10.2f}"


def _chunk(shape: tuple[int, int, int], dtype: torch.dtype) -> int:
    """Rows of a chunk: on a GPU as ours chooses, else an eighth of all."""
    rows, _, classes = shape
    return rows_per_chunk(rows, 2 * classes * dtype.itemsize) if gpu.is_there() else max(rows // 8, 1)


def _sizes(text: str) -> tuple[int, int, int]:
    try:
        rows, width, classes = map(int, text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not rows x width x classes, such as 2048x512x16384") from None
    if min(rows, width, classes) < 1:
        raise argparse.ArgumentTypeError(f"{text} has no row, width or class")
    return rows, width, classes


def _dtypes(text: str) -> list[torch.dtype]:
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if unknown := {*text.split(",")} - {*known}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    return [known[name] for name in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_sizes, nargs="+", help="rows x width x classes")
    parser.add_argument("--dtypes", type=_dtypes, help="separated by commas")
    parser.add_argument("--chunk", type=int, help="rows (default: on a GPU ours to choose, else an eighth)")
    parser.add_argument("--write", action="store_true", help=f"keep the rows as {FILE.name} in {FILE.parent.name}/")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    if not gpu.is_there():
        host.pretend()
    dtypes = options.dtypes or ([torch.bfloat16] if gpu.is_there() else [torch.float32, torch.bfloat16])
    shapes: Sequence[tuple[int, int, int]] = options.sizes or (GPU_SIZES if gpu.is_there() else SIZES)
    rows = []
    for dtype in dtypes:
        for shape in shapes:
            size = Size(*shape, dtype, options.chunk or _chunk(shape, dtype))
            of_size = []
            with policy("mandatory"):
                for loss in LOSSES:
                    of_size += [measure(size, loss, *column) for column in columns(loss, size)]
            print("\n".join(lines(of_size)), flush=True)
            rows += of_size
    if not importlib.util.find_spec("liger_kernel"):
        print('Liger-Kernel is not installed (pip install ".[bench]"), so it is not beside these.')
    if options.write:
        write(rows, gpu.name() if gpu.is_there() else "CPU", _versions(), FILE)
    too_much = failures(rows)
    for text in too_much:
        print(text, file=sys.stderr)
    return int(bool(too_much))


if __name__ == "__main__":
    raise SystemExit(main())
