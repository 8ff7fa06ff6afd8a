"""Every case on a GPU, ours beside torch eager, torch.compile and Liger-Kernel; added to `bench/results/<gpu>.csv`.

The column "autogen" computes gradients in backward, as by default, and "early" in forward; "tuned" is the first
one with configurations that were timed (`autogen.tuning`).

    python -m bench.run [--quick] [--seconds 500] [--only bce] [--again]

A run goes on where the last one of the same versions stopped, and prints its table last. Upstream gradients are 1 and
inputs are leaves. Inputs are rotated, so that together they are larger than twice the L2 cache. Without a GPU there is
nothing to measure, and it says so.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import autogen
from autogen import autogen_loss, explain, policy
from bench import results
from bench.gpu_cases import Case, cases
from bench.results import DIRECTIONS, Row

REPEATS = 60
BUDGET = 0.5  # seconds for one number
_CUDA = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]

Call = Callable[[], object]


def losses(case: Case) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A loss per column; a column that has none is left out."""
    yield "eager", case.eager
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
    first = case.inputs(case.shape, case.dtype, "cuda")
    size = sum(each.nbytes for each in first)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = min(max(-(-2 * cache // size), 1), 32)
    copies = [first, *(tuple(each.clone() for each in first) for _ in range(count - 1))]
    return [(a.detach().requires_grad_(), *rest) for a, *rest in copies]


def times(call: Callable[[int], object], prepare: Callable[[int], object] | None = None) -> list[float]:
    """µs of each of some calls, between events of the GPU."""
    for k in range(3):
        _ = prepare and prepare(k)
        call(k)
    torch.cuda.synchronize()
    found: list[float] = []
    deadline = time.monotonic() + BUDGET
    while len(found) < REPEATS and (time.monotonic() < deadline or not found):
        batch = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(10)]
        for k, (start, end) in enumerate(batch):
            _ = prepare and prepare(k)
            start.record()
            call(k)
            end.record()
        torch.cuda.synchronize()
        found += [start.elapsed_time(end) * 1000 for start, end in batch]
    return found


def copy_bandwidth() -> float:
    """GB/s of a copy from memory to memory, read and written bytes together."""
    source = torch.empty(2**28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / results.percentile(times(lambda _: target.copy_(source)), 0.5) / 1000


def launches(call: Call) -> int:
    """Kernels that a call launches."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == _CUDA]
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in events)


def syncs(call: Call) -> int:
    """How often a call waits for the GPU."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in caught)


def peak(call: Call) -> int:
    """Bytes that a call allocates at most, beside what there is."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def error(case: Case, loss: Any, inputs: tuple[Tensor, ...]) -> float | None:
    """The largest error of value and gradient against eager in float64, as a share of the largest number there."""
    if 6 * 8 * sum(each.numel() for each in inputs) > torch.cuda.mem_get_info()[0]:
        return None
    double = [each.detach().double() if each.is_floating_point() else each for each in inputs]

    def of(loss: Any, first: Tensor, rest: list[Tensor]) -> list[Tensor]:
        value = loss(first, *rest)
        return [value.detach().double(), torch.autograd.grad(value, first)[0].double()]

    expected = of(case.eager(), double[0].requires_grad_(), double[1:])
    found = of(loss, inputs[0].detach().clone().requires_grad_(), list(inputs[1:]))
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-300)) for a, b in pairs)


def measure(case: Case, column: str, make: Callable[[], Any], gpu: str, versions: str, copy: float) -> list[Row]:
    """The rows of one case and column; one that fails says why."""

    def row(direction: str, **numbers: Any) -> Row:
        return Row(gpu, versions, case.name, case.size, str(case.dtype)[6:], column, direction, **numbers)

    try:
        inputs = sets_of_inputs(case)
        loss = make()
        moved = least_bytes(case, inputs[0])

        def forward(k: int) -> Tensor:
            return loss(*inputs[k % len(inputs)])

        def both(k: int) -> None:
            forward(k).backward()

        def forget(k: int) -> None:
            inputs[k % len(inputs)][0].grad = None

        def compute(k: int) -> None:
            forget(k)
            values[k % len(inputs)] = forward(k)

        def backward(k: int) -> None:
            values[k % len(inputs)].backward(retain_graph=True)

        difference = error(case, loss, inputs[0])
        forget(0)
        found = {"forward": times(forward), "both": times(both, forget)}
        counts = {"forward": (launches(lambda: forward(0)), syncs(lambda: forward(0)), peak(lambda: forward(0)))}
        counts["both"] = launches(lambda: both(0)), syncs(lambda: both(0)), peak(lambda: both(0))
        values: dict[int, Tensor] = {}
        found["backward"] = times(backward, compute)
        launched, waited = launches(lambda: backward(0)), syncs(lambda: backward(0))
        compute(0)
        counts["backward"] = launched, waited, peak(lambda: backward(0))
    except Exception as problem:  # of a peer, of memory: the other columns are measured all the same
        torch.cuda.empty_cache()
        kind = "out of memory" if isinstance(problem, torch.OutOfMemoryError) else type(problem).__name__
        note = " ".join(f"{kind}: {problem}".split())[:100]
        return [row(direction, note=note) for direction in DIRECTIONS]
    rows = []
    for direction in DIRECTIONS:
        middle = results.percentile(found[direction], 0.5)
        speed = moved[direction] / middle / 1000
        launched, waited, allocated = counts[direction]
        rows.append(
            row(
                direction,
                p20=round(results.percentile(found[direction], 0.2), 2),
                median=round(middle, 2),
                p80=round(results.percentile(found[direction], 0.8), 2),
                gigabytes_per_second=round(speed, 1),
                percent_of_copy=round(100 * speed / copy, 1),
                launches=launched,
                syncs=waited,
                peak_bytes=allocated,
                error=difference,
            )
        )
    return rows


def least_bytes(case: Case, inputs: tuple[Tensor, ...]) -> dict[str, int]:
    """The least bytes that any kernels move, by direction; the same for all columns."""
    report = explain(case.autogen(), *inputs)
    forward = report.forward.bytes_minimum if report.forward else 0
    backward = report.backward.bytes_minimum if report.backward else 0
    return {"forward": forward, "backward": backward, "both": forward + backward}


def versions_text() -> str:
    """What was measured."""
    import triton

    return f"autogen-loss {autogen.__version__}, torch {torch.__version__}, triton {triton.__version__}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a chosen few cases, without tuning")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so long")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--again", action="store_true", help="measure what has been measured before, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here, so nothing was measured.", file=sys.stderr)
        return 2
    started = time.monotonic()
    gpu, versions = torch.cuda.get_device_name(), versions_text()
    path = results.file_of(gpu)
    results.repair(path)
    done = set() if options.again else results.measured(results.read(path))
    copy = copy_bandwidth()
    print(f"{gpu}: a copy moves {copy:.0f} GB/s ({versions})", flush=True)
    left = 0
    with policy("mandatory"):
        for case in cases():
            if options.only not in case.name or (options.quick and not case.is_quick):
                continue
            for column, make in losses(case):
                if options.quick and column in ("autotune", "tuned"):
                    continue
                key = versions, case.name, case.size, str(case.dtype)[6:], column
                if key in done:
                    continue
                if time.monotonic() - started > options.seconds:
                    left += 1
                    continue
                results.append(measure(case, column, make, gpu, versions, copy), path)
                torch.compiler.reset()
                torch.cuda.empty_cache()
    rows = [row for row in results.read(path) if row.versions == versions]
    print(results.table(rows))
    if left:
        print(f"{left} measurements are left; run this again to go on.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
