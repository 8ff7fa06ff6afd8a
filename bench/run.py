"""Measure every case on a GPU beside eager, `torch.compile` and Liger-Kernel, into `bench/results/<gpu>.csv`.

The column "autogen" computes gradients in backward, as by default, and "early" in forward; "tuned" is the first
one with configurations that were timed (`autogen.tuning`). "torch" is a form of torch's own that is not eager's: of the
loss of a head, its chunks of rows.

    python -m bench.run [--quick] [--seconds 500] [--only bce] [--columns eager,autogen] [--again]

A run goes on where the last one of the same versions stopped, and prints its table last, also when it is interrupted;
it fails if one of our columns does. Upstream gradients are 1, and inputs are leaves, of which those that models predict
ask for their gradients, in all columns alike. Inputs are rotated, so that
together they are larger than twice the L2 cache. `BENCH_RESULTS` names another folder for the results. Without a GPU
there is nothing to measure, and it says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import autogen
from autogen import autogen_loss, explain, policy
from bench import goals, gpu, results
from bench.gpu_cases import Case, cases
from bench.results import DIRECTIONS, Row

COLUMNS = ("eager", "torch", "compile", "autotune", "liger", *results.OURS)
QUICK = ("eager", "torch", "compile", "liger", "autogen", "early")


def losses(case: Case) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A loss per column; a column that has none is left out."""
    yield "eager", case.eager
    if case.of_torch:
        yield "torch", case.of_torch
    yield "compile", lambda: torch.compile(case.eager())
    yield "autotune", lambda: torch.compile(case.eager(), mode="max-autotune-no-cudagraphs")
    if case.liger and importlib.util.find_spec("liger_kernel"):
        import liger_kernel.transformers as liger

        if hasattr(liger, case.liger):
            yield "liger", getattr(liger, case.liger)
    yield "autogen", case.autogen
    yield "early", lambda: autogen_loss(gradient="forward")(case.autogen())
    yield "tuned", lambda: autogen_loss(tune=True)(case.autogen())


def sets_of_inputs(case: Case) -> list[tuple[Tensor, ...]]:
    """As many copies of the inputs as are larger than twice the L2 cache, up to 32."""
    first = case.inputs(case.shape, case.dtype, gpu.DEVICE)
    size = sum(each.nbytes for each in first)
    count = min(max(-(-2 * gpu.cache_bytes() // size), 1), 32)
    copies = [first, *(tuple(each.clone() for each in first) for _ in range(count - 1))]
    return [case.training(each) for each in copies]


def error(case: Case, loss: Any, inputs: tuple[Tensor, ...]) -> float:
    """The largest error of value and gradients against eager in float64, as a share of the largest number there; inf
    for a nan.

    Raises:
        OutOfMemoryError: there is no room for eager in float64.
    """
    if 6 * 8 * sum(each.numel() for each in inputs) > gpu.free_bytes():
        raise torch.OutOfMemoryError("eager in float64 has no room")
    double = tuple(each.double() if each.is_floating_point() else each for each in inputs)

    def of(loss: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
        given = case.training(given)
        value = loss(*given)
        gradients = torch.autograd.grad(value, [given[k] for k in case.trained])
        return [each.detach().double() for each in (value, *gradients)]

    expected, found = of(case.eager(), double), of(loss, inputs)
    pairs = zip(found, expected, strict=True)
    errors = torch.stack([(a - b).abs().max() / b.abs().max().clamp(min=1e-300) for a, b in pairs])
    return float(errors.max().nan_to_num(nan=math.inf, posinf=math.inf))  # the greater of a number and nan is nan


def directions_of(loss: Any, inputs: list[tuple[Tensor, ...]]) -> dict[str, tuple[gpu.Call, gpu.Call]]:
    """Forward, backward and both: the call, and what makes it ready. No call finds a gradient to add to, or makes the
    upstream gradient of 1, as `backward()` alone would.
    """
    values: list[Tensor] = []
    one = torch.ones_like(loss(*inputs[0]).detach())

    def given(k: int) -> tuple[Tensor, ...]:
        return inputs[k % len(inputs)]

    def forward(k: int) -> Tensor:
        return loss(*given(k))

    def both(k: int) -> None:
        forward(k).backward(one)

    def forget(k: int) -> None:
        for each in given(k):
            each.grad = None

    def compute(k: int) -> None:
        forget(k)
        values.append(forward(k))

    def backward(_: int) -> None:
        values.pop().backward(one)

    return {"forward": (forward, forget), "backward": (backward, compute), "both": (both, forget)}


def measure(
    case: Case, make: Callable[[], Any], least: Callable[[], Mapping[str, int]], row: Callable[..., Row]
) -> list[Row]:
    """The rows of one case and column, of which at `least` so many bytes are moved; what fails says why.

    Everything is timed before anything is profiled, and what only describes a call may fail alone.
    """
    try:
        moved = least()
        inputs = sets_of_inputs(case)
        loss = make()
        calls = directions_of(loss, inputs)
        found = {direction: gpu.times(*call) for direction, call in calls.items()}
    except Exception as problem:  # of a peer, of memory: the other columns are measured all the same
        return [row(direction, note=_why(problem)) for direction in DIRECTIONS]
    of_all, of_all_problems = _described(error=lambda: error(case, loss, inputs[0]))
    counted, uncounted = _described(launches=partial(gpu.launches, calls))
    launches = counted["launches"] or {}
    rows = []
    for direction, call in calls.items():
        p20, middle, p80 = (round(results.percentile(found[direction], share), 2) for share in (0.2, 0.5, 0.8))
        speed = moved[direction] / middle / 1000  # GB/s
        described, problems = _described(
            percent_of_copy=partial(_percent_of_copy, moved[direction], speed),
            syncs=partial(gpu.syncs, *call),
            peak_bytes=partial(gpu.peak, *call),
        )
        numbers = {"p20": p20, "median": middle, "p80": p80, "gigabytes_per_second": round(speed, 1)}
        found_of_row = {**numbers, **of_all, **described, "launches": launches.get(direction)}
        rows.append(row(direction, **found_of_row, note="; ".join((*of_all_problems, *uncounted, *problems))))
    return rows


def _percent_of_copy(size: int, speed: float) -> float:
    return round(100 * speed / gpu.copy_bandwidth(size), 1)


def _described(**measurements: Callable[[], Any]) -> tuple[dict[str, Any], list[str]]:
    """What is measured, None for what fails, and why that does."""
    found: dict[str, Any] = dict.fromkeys(measurements)
    problems = []
    for name, measurement in measurements.items():
        try:
            found[name] = measurement()
        except Exception as problem:  # of a profiler, of memory: what was timed is a result all the same
            problems.append(_why(problem))
    return found, problems


def _why(problem: Exception) -> str:
    kind = results.OUT_OF_MEMORY if isinstance(problem, torch.OutOfMemoryError) else type(problem).__name__
    return " ".join(f"{kind}: {problem}".split())[:200]


def least_bytes(case: Case) -> dict[str, int]:
    """The least bytes that any kernels move, by direction; the same for all columns."""
    report = explain(case.autogen(), *case.training(case.inputs(case.shape, case.dtype, gpu.DEVICE)))
    forward = report.forward.bytes_minimum if report.forward else 0
    backward = report.backward.bytes_minimum if report.backward else 0
    return {"forward": forward, "backward": backward, "both": forward + backward}


def source_files() -> Iterator[Path]:
    """All files of the package that have a part in compiling a loss, also where links lead."""
    for folder, _, files in os.walk(Path(autogen.__file__).parent, followlinks=True):
        yield from (Path(folder, file) for file in files if file.endswith((".py", ".jinja")))


def versions_text() -> str:
    """What was measured; of ours, a digest of the source, too."""
    import triton

    source = hashlib.sha256()
    for file in sorted(source_files()):
        source.update(file.read_bytes())
    versions = (f"autogen-loss {autogen.__version__} ({source.hexdigest()[:8]})", f"torch {torch.__version__}")
    return ", ".join((*versions, f"triton {triton.__version__}"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a chosen few cases, without tuning")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--columns", type=_columns, help="those to measure, separated by commas")
    parser.add_argument("--again", action="store_true", help="measure what has been measured before, too")
    options = parser.parse_args(arguments)
    if not gpu.is_there():
        print("There is no GPU here, so nothing was measured.", file=sys.stderr)
        return 2
    versions = versions_text()
    path = results.file_of(gpu.name())
    results.repair(path)
    print(f"{gpu.name()}: a copy moves {gpu.copy_bandwidth():.0f} GB/s ({versions})", flush=True)
    left: int | None = None
    with contextlib.suppress(KeyboardInterrupt):  # by who has no more time: the table is printed all the same
        left = _measure_all(options, versions, path)
    rows = [row for row in results.read(path) if row.versions == versions]
    print(results.table(rows))
    print(goals.summary(rows))
    if left != 0:
        print(f"{'Some' if left is None else left} measurements are left; run this again to go on.")
    return int(any(row.median is None and row.column in results.OURS for row in results.latest(rows)))


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := {*names} - {*COLUMNS}:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(COLUMNS)}")
    return names


def _measure_all(options: argparse.Namespace, versions: str, path: Path) -> int:
    """Measure what is to be measured, and has not been; returns how much there was no time for."""
    started, left = time.monotonic(), 0
    done = set() if options.again else results.measured(results.read(path))
    columns = options.columns or (QUICK if options.quick else COLUMNS)
    with policy("mandatory"):
        for case in cases():
            if options.only not in case.name or (options.quick and not case.is_quick):
                continue
            least = functools.cache(partial(least_bytes, case))
            for column, make in losses(case):
                if column not in columns:
                    continue
                named = case.name, case.size, str(case.dtype)[6:], column
                row = partial(Row, gpu.name(), versions, *named, gradients=len(case.trained))
                if row("").key in done:
                    continue
                if time.monotonic() - started > options.seconds:
                    left += 1
                    continue
                found = measure(case, make, least, row)
                results.append(found, path)
                cells = " ".join(str(each.median or each.note[:40]) for each in found)
                print(f"{case.name} {case.size} {found[0].dtype} {column}: {cells}", flush=True)
                torch.compiler.reset()
                gpu.forget_memory()
    return left


if __name__ == "__main__":
    raise SystemExit(main())
