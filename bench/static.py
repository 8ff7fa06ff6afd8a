"""Compile every kernel for real targets, without a GPU, and compare its figures with `bench/static.json`.

    python -m bench.static [--write] [--only InfoNCE]

For each loss of `autogen.losses`, forward and backward: launches; programs of the smallest of them; bytes moved, over
the least that any kernel must; the narrowest load or store of elements in full blocks, in bytes per thread;
instructions per byte (`bench.instructions`; 0 where they cannot be told); registers per thread; bytes spilled; shared
memory per program. The calls are those that `tests/ptx` compiles, those of the losses beyond torch, odd sizes among
them, and losses as people write them at the sizes of language models (`examples.written`). A thread has the same
elements of every tensor, so that a width is given in bytes of the widest dtype: four conditions beside four numbers of
float32 are 16. `--write` records what is found as the new bounds; `--only` looks at losses whose names have a text in
them, and leaves the others' bounds. Without `TRITON_INTERPRET=1`.

What torch runs beside the kernels (matrix products, sorts) is in no column: where a loss begins with a product, what
any kernel must move are logits and their gradients.

Of kernels written by hand, the least is inputs, output and gradients, each once; moved are all tensors of a launch,
each once and whole, though labels decide how much of some is read, and partial results twice. So CTC moves, beside log
probabilities and their gradient, the logarithms of its recursion, which forward keeps for backward: two for each step
and label of the longest target. Its lengths are taken to be on the GPU, and nothing is known of the steps that they
leave out. Its forward has no full blocks, but a state of the recursion for each thread; its backward leaves out the
classes that are labels, and so stores one at a time.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

import autogen.losses
from autogen import autogen_loss
from autogen.aot import TARGETS, CompiledKernel, SpecializedKernel, compile_kernel, specialize, specialize_launch
from autogen.decorator import call_of
from autogen.dispatch.parts import PARTS
from autogen.ir.names import unique
from autogen.report import DirectionReport, describe, describe_handwritten
from autogen.runtime.handwritten import Backward, Forward
from autogen.runtime.launch import Step, kernels_in
from autogen.tiling.skew import ACCESS, IN_GROUPS
from bench.assembly import Access, accesses_of
from bench.instructions import issued
from bench.kernel_cases import FLAT, HANDWRITTEN, LOOPED, PROJECTED, ROWS, TILED, Case, Input
from examples import beyond, written

BOUNDS = Path(__file__).with_name("static.json")
TARGET = "sm_90"
MORE_REGISTERS = 1.25  # than recorded, which is no failure: versions of ptxas differ
MORE_INSTRUCTIONS = 1.1

Call = tuple[Any, tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Facts:
    """One direction of a call: of several kernels, the worst of each."""

    launches: int
    programs: int
    traffic: float
    width: int
    instructions: float
    registers: int
    spilled: int
    shared: int


def calls() -> dict[str, Callable[[], Call]]:
    """A call of every loss, by name."""
    found: dict[str, Callable[[], Call]] = {}
    for case in (*FLAT, *TILED, *ROWS, *LOOPED, *PROJECTED):
        found[str(case)] = partial(_call_of, case, "cpu")
    for case in HANDWRITTEN:
        found[str(case)] = partial(_call_of, case, "meta")  # as on a GPU, no value is known
    for size in (beyond.SMALL, beyond.EVEN, beyond.ODD):
        for loss, inputs in beyond.calls(size):
            name = unique(f"{type(loss).__name__}-{size[0]}", found)
            found[name] = lambda call=(loss, inputs): call  # type: ignore[misc]
    found["AdaptiveLogSoftmaxWithLoss-512x64"] = _adaptive
    for n, dtype in ((4096, torch.float32), (16384, torch.float32), (16384, torch.bfloat16)):
        text = f"{n}x128-{str(dtype).removeprefix('torch.')}"
        found[f"InfoNCELoss-{text}"] = partial(_contrasted, n, 128, dtype)
        found[f"SupConLoss-{text}"] = partial(_labelled, n, 128, dtype)
    # Around products of torch's.
    found["InfoNCELoss-4096x128-bfloat16"] = partial(_contrasted, 4096, 128, torch.bfloat16)
    found["SupConLoss-4096x128-bfloat16"] = partial(_labelled, 4096, 128, torch.bfloat16)
    found["InfoNCELoss-256x1000-float32"] = partial(_contrasted, 256, 1000, torch.float32)
    found["SupConLoss-257x1001-float32"] = partial(_labelled, 257, 1001, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        for name, written_loss, make in written.calls(dtype):
            found[f"{name}-{str(dtype).removeprefix('torch.')}"] = partial(_written_call, written_loss, make)
    return found


def _written_call(loss: Callable[..., Any], inputs: Callable[[], tuple[torch.Tensor, ...]]) -> Call:
    return autogen_loss(loss), inputs()


def _contrasted(n: int, dims: int, dtype: torch.dtype) -> Call:
    pair = (torch.ones(n, dims, dtype=dtype, requires_grad=True) for _ in range(2))
    return autogen.losses.InfoNCELoss(), tuple(pair)


def _labelled(n: int, dims: int, dtype: torch.dtype) -> Call:
    return autogen.losses.SupConLoss(), (torch.ones(n, dims, dtype=dtype, requires_grad=True), torch.arange(n))


def _adaptive() -> Call:
    """Labels of all three clusters."""
    loss = autogen.losses.AdaptiveLogSoftmaxWithLoss(64, 10_000, [1000, 3001])
    return loss, (torch.ones(512, 64, requires_grad=True), torch.arange(512) * 19)


def _call_of(case: Case, device: str) -> Call:
    def tensor(value: Any) -> Any:
        return value.tensor(case.dtype, device) if isinstance(value, Input) else value

    options = {name: tensor(value) for name, value in case.options.items()}
    return getattr(autogen.losses, case.loss)(**options), tuple(map(tensor, case.inputs))


@dataclass(frozen=True)
class _Direction:
    """Forward or backward of one call of a decorated loss; the instructions of each kernel, None if not known."""

    report: DirectionReport
    kernels: Sequence[SpecializedKernel]
    instructions: Sequence[int | None]
    programs: Sequence[int]


def facts(loss: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[Facts, Facts]:
    """Forward and backward of a call."""
    parts = getattr(loss, PARTS, None)
    forward, backward = _directions(partial(loss, *inputs) if parts is None else parts(*inputs).call)
    return _facts(forward), _facts(backward)


def _directions(call: partial[Any]) -> tuple[_Direction, _Direction]:
    dispatcher, args = call_of(call.func, call.args)
    made = dispatcher.handwritten
    handwritten = "none" if made is None else made.bind(args, call.keywords, anywhere=True)
    if not isinstance(handwritten, str):
        loss, given, tensors = handwritten
        planned = loss.planned((*tensors, *given.tensors), given.sizes)
        read = [each for each, own in zip(tensors, loss.names, strict=True) if own in loss.loss.defaults]
        reports = describe_handwritten(*planned, read)
        return _written(reports[0], planned[0]), _written(reports[1], planned[1])
    ((run,), _) = dispatcher.look(dispatcher.name_of(args), args, call.keywords, anywhere=True)
    assert run.captured.runner is not None, run.captured.reason
    compiled, sizes = run.captured.runner.kernels_for(run.arguments)
    return _generated(compiled.forward, sizes), _generated(compiled.backward(), sizes)


def _written(report: DirectionReport | None, planned: Forward | Backward | None) -> _Direction:
    assert report is not None and planned is not None, "an input of every call asks for its gradient"
    kernels = [specialize_launch(launch, "loss", "forward") for launch in planned.launches]
    return _Direction(report, kernels, [None], [math.prod(launch.grid) for launch in planned.launches])


def _generated(steps: Sequence[Step], sizes: dict[str, int]) -> _Direction:
    launchers = kernels_in(steps)
    kernels = [specialize(launcher, sizes, "loss", "forward") for launcher in launchers]
    instructions = [issued(launcher, sizes) for launcher in launchers]
    programs = [launcher.tiling(sizes).programs for launcher in launchers]
    return _Direction(describe(steps, sizes), kernels, instructions, programs)


def _facts(call: _Direction) -> Facts:
    made = [compile_kernel(kernel, TARGETS[TARGET]) for kernel in call.kernels]
    moved = call.report.bytes_moved
    return Facts(
        launches=call.report.launches,
        programs=min(call.programs, default=0),
        traffic=round(moved / max(call.report.bytes_minimum, 1), 3),
        width=min((width for pair in zip(call.kernels, made, strict=True) for width in _widths(*pair)), default=0),
        instructions=_instructions(call.instructions, moved),
        registers=max(each.registers for each in made),
        spilled=max(each.spilled for each in made),
        shared=max(each.shared for each in made),
    )


def _instructions(issued: Sequence[int | None], bytes_moved: int) -> float:
    """Instructions of all threads per byte moved, 0 if not known."""
    return 0.0 if None in issued else round(sum(map(int, filter(None, issued))) / max(bytes_moved, 1), 2)


def _widths(kernel: SpecializedKernel, made: CompiledKernel) -> list[int]:
    """Bytes per thread of the loads and stores of elements, in full blocks and not at the ends of rows, as if all had
    the widest dtype among them; of what all rows share, per column, in a kernel that has no others.
    """
    found: list[tuple[bool, Access]] = []
    by_function = groupby(accesses_of(kernel, made), key=lambda access: (access.function, access.parameters))
    for (function, parameters), accesses in by_function:
        if not function.endswith(("_last_block", "_first_block")):
            found += _of_elements(list(accesses), set(parameters))
    elements = [access for is_shared, access in found if not is_shared] or [access for _, access in found]
    # What helpers are given under another name than the kernel's is taken to be of the widest dtype.
    widest = max((access.item_bytes for access in elements), default=0) or 1
    return [min(width // (each.item_bytes or widest) * widest, ACCESS) for each in elements for width in each.widths]


def _of_elements(accesses: Sequence[Access], parameters: set[str]) -> Iterator[tuple[bool, Access]]:
    """The accesses of elements in a function, and of each whether all rows share it."""
    is_flat, has_rows = "BLOCK" in parameters, "ROWS" in parameters
    has_columns = not parameters.isdisjoint({"COLS", "DIMS"})
    # A helper of a kernel is given its tile.
    if not any(name.isupper() and not name.startswith("HAS_") for name in parameters):
        walked = r"\bplace"
    else:
        walked = r"\b(col|place|lane)\b" if has_columns else r"\b(row|place)\b" if has_rows else r"\+"
    in_groups = {access.address for access in accesses if access.mask in IN_GROUPS and access.widths}
    for access in accesses:
        if re.search(r"\bpartials_ptr|_partial(_\d+)?_ptr", access.address):  # few values, for the last block
            continue
        if access.address in in_groups and access.mask not in IN_GROUPS:
            continue
        if is_flat and (access.mask is not None or "offsets" not in access.address):
            continue
        if is_flat or re.search(walked, access.address):
            yield has_columns and has_rows and not re.search(r"\b(row|place)\b", access.address), access


def failures(name: str, found: tuple[Facts, Facts], bounds: dict[str, Any]) -> list[str]:
    """What is worse than recorded."""
    text = []
    for direction, fact in zip(("forward", "backward"), found, strict=True):
        bound = Facts(**bounds[direction])
        worse = {
            "launches": fact.launches > bound.launches,
            "programs": fact.programs < bound.programs,
            "traffic": fact.traffic > bound.traffic * 1.001,
            "width": fact.width < bound.width,
            "instructions": fact.instructions > bound.instructions * MORE_INSTRUCTIONS,
            "registers": fact.registers > bound.registers * MORE_REGISTERS,
            "spilled": fact.spilled > bound.spilled,
            "shared": fact.shared > bound.shared,
        }
        for key in (key for key, is_worse in worse.items() if is_worse):
            text.append(f"{name}, {direction}: {key} {getattr(fact, key)}, recorded {getattr(bound, key)}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.static", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="record what is found")
    parser.add_argument("--only", default="", help="losses whose names contain this")
    options = parser.parse_args()
    recorded = json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}
    kept, worse = {}, []
    print(f"{TARGET}: forward + backward")
    heads = {
        "launches": 9,
        "programs": 17,
        "bytes / min": 14,
        "width": 8,
        "instr / byte": 17,
        "registers": 11,
        "spilled": 9,
    }
    print(f"{'loss':<56}" + "".join(f"{head:>{width}}" for head, width in heads.items()) + f"{'shared':>15}")
    for name, call in calls().items():
        if options.only not in name:
            if name in recorded:
                kept[name] = recorded[name]
            continue
        found = facts(*call())
        forward, backward = map(asdict, found)
        kept[name] = {"forward": forward, "backward": backward}
        pairs = {key: f"{value} + {backward[key]}" for key, value in forward.items()}
        print(
            f"{name[:55]:<56}{pairs['launches']:>9}{pairs['programs']:>17}{pairs['traffic']:>14}{pairs['width']:>8}"
            f"{pairs['instructions']:>17}{pairs['registers']:>11}{pairs['spilled']:>9}{pairs['shared']:>15}"
        )
        worse += failures(name, found, recorded[name]) if name in recorded and not options.write else []
    if options.write:
        lines = [f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in kept.items()]
        BOUNDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for text in worse:
        print(text, file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    raise SystemExit(main())
