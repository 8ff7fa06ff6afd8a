"""Describe the launches of one direction as a `DirectionReport`: kernels, source, and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import sympy
import torch

from autogen import ir
from autogen.emission.source import KernelSource
from autogen.errors import SourceLine
from autogen.ir.sizes import Evaluator
from autogen.ir.torch_step import TorchStep
from autogen.report.records import DirectionReport
from autogen.runtime.chunks import ChunkLoop, loops_in
from autogen.runtime.handwritten import Backward, Forward, Launch, bytes_in_memory
from autogen.runtime.launch import Launcher, Step, kernels_in
from autogen.scheduling.chunks.body import ROWS
from autogen.tiling.variant import tile_of_part


def describe_handwritten(
    forward: Forward, backward: Backward | None, inputs: Sequence[torch.Tensor]
) -> tuple[DirectionReport, DirectionReport | None]:
    """The reports on both directions of a handwritten loss, planned for `inputs`.

    Any kernel must read the inputs and write the output; backward's, the inputs, an upstream gradient and gradients.
    """
    results = (*inputs, forward.output)
    if backward is None:
        return _of_launches(forward.launches, results), None
    gradients = backward.gradients.values()
    return _of_launches(forward.launches, results), _of_launches(backward.launches, (*results, *gradients))


def _of_launches(launches: Sequence[Launch], necessary: Iterable[torch.Tensor]) -> DirectionReport:
    return DirectionReport(
        launches=len(launches),
        source="\n\n".join(dict.fromkeys(launch.source for launch in launches)),
        bytes_moved=sum(launch.bytes_moved for launch in launches),
        bytes_minimum=sum(map(bytes_in_memory, necessary)),
        kernels=tuple(launch.name for launch in launches),
    )


def describe(steps: Sequence[Step], sizes: Mapping[str, int]) -> DirectionReport:
    """The report on one direction, for the given sizes."""
    report = _of_steps(steps, sizes)
    for loop in loops_in(steps):
        report = _with_chunks(report, loop, sizes)
    return report


def _with_chunks(report: DirectionReport, loop: ChunkLoop, sizes: Mapping[str, int]) -> DirectionReport:
    """A report with what is done for each chunk of rows."""
    lengths = loop.lengths(sizes)
    for rows, times in Counter(lengths).items():
        known = {**sizes, ROWS.name: rows}
        own = _of_steps(loop.steps(known), known)
        report = replace(
            report,
            launches=report.launches + own.launches * times,
            bytes_moved=report.bytes_moved + own.bytes_moved * times,
            bytes_minimum=report.bytes_minimum + own.bytes_minimum * times,
        )
        if rows == lengths[0]:  # the last may have fewer
            chunks, products = f"{len(lengths)} chunk" + "s" * (len(lengths) > 1), len(own.torch_steps)
            done = f"{', '.join(own.kernels)}, and {products} product" + "s" * (products > 1)
            report = replace(
                report,
                source="\n\n".join(filter(None, (report.source, own.source))),
                kernels=(*report.kernels, *own.kernels),
                configs=(*report.configs, *own.configs),
                passes=(*report.passes, *own.passes),
                chunks=(*report.chunks, f"{chunks} of {rows} rows: {done}"),
            )
    return report


def _of_steps(steps: Sequence[Step], sizes: Mapping[str, int]) -> DirectionReport:
    """The report on what is done once."""
    launchers = kernels_in(steps)
    sources = [launcher.source(launcher.tiling(sizes).variant) for launcher in launchers]
    moved = sum(_bytes_moved(launcher, source, sizes) for launcher, source in zip(launchers, sources, strict=True))
    return DirectionReport(
        launches=len(launchers),
        source="\n\n".join(source.text for source in sources),
        bytes_moved=moved,
        bytes_minimum=_bytes_minimum(launchers, sources, sizes),
        kernels=tuple(source.name for source in sources),
        torch_steps=tuple(
            with_line(step.name, step.line) for step in steps if isinstance(step, TorchStep) and not step.is_free
        ),
        cuts=tuple(launcher.kernel.cut for launcher in launchers[1:]),
        configs=tuple(_config(launcher, sizes) for launcher in launchers),
        passes=tuple(
            reason
            for launcher, source in zip(launchers, sources, strict=True)
            for reason in _passes(launcher, source, sizes)
        ),
    )


def _config(launcher: Launcher, sizes: Mapping[str, int]) -> str:
    config, origin = launcher.config(sizes)
    return f"{config} ({origin})"


def _passes(launcher: Launcher, source: KernelSource, sizes: Mapping[str, int]) -> Iterator[str]:
    """What a kernel reads again, and why: what is reduced in a later walk over a row, or stored of each element, waits
    for what an earlier one reduces.
    """
    kernel, variant = launcher.kernel, launcher.tiling(sizes).variant
    times = {node.attrs[0].name: passes for node, passes, _ in source.loads if passes > 1}
    for own, form in zip(kernel.parts or (kernel,), variant.parts or (variant,), strict=True):
        again = [name for name in times if name in {load.attrs[0].name for load in own.loads()}]
        if not form.looped or not again:
            continue
        most = max(times[name] for name in again)
        often = f"reads {' and '.join(f'`{name}`' for name in again)} {'twice' if most == 2 else f'{most} times'}"
        waits = [pair for walk in own.passes for pair in list(walk.waits.items())[:1]]
        told = [f"{_told(node, launcher)} waits for {_told(waited, launcher)}" for node, waited in waits]
        if most > len(own.passes):
            told.append(f"each element waits for {_told(own.passes[-1].reductions[-1], launcher)}")
        yield f"{often}: {'; '.join(told)}"


def _told(node: ir.Node, launcher: Launcher) -> str:
    """A reduction's name in the kernel, and the user's line that it comes from."""
    origin = launcher.provenance.origins.get(node)
    where = f" ({origin.line.filename}:{origin.line.lineno})" if origin and origin.line else ""
    return f"`{launcher.provenance.called(node)}`{where}"


def with_line(name: str, line: SourceLine | None) -> str:
    """What torch runs, or why it ends a graph, with the user's line if that is known."""
    return name if line is None else f"{name}, at {line}"


def _bytes_moved(launcher: Launcher, source: KernelSource, sizes: Mapping[str, int]) -> int:
    moved = sum(
        passes * _read(node, sizes) * _times(launcher, node, function, sizes) for node, passes, function in source.loads
    )
    moved += sum(_whole(buffer, sizes) for buffer in {root.buffer for root in launcher.kernel.roots})
    moved += sum(_whole(buffer, sizes) for buffer in _searched(launcher))
    return moved + sum(
        2 * count * each.dtype.itemsize for each, count in launcher.partials(sizes, launcher.tiling(sizes))
    )


def _times(launcher: Launcher, node: ir.Node, function: int, sizes: Mapping[str, int]) -> int:
    """How many programs walk the same columns of a tensor, where these have nothing to do with the rows."""
    kernel, rows = launcher.kernel, "ROWS"
    if kernel.parts:
        kernel, rows = kernel.parts[function - 1], tile_of_part(rows, function)
    if not kernel.walks_again or node.axes.isdisjoint(kernel.columns):
        return 1
    (apart,) = Evaluator([sympy.Mul(*(axis.size for axis in kernel.rows if axis not in node.axes))])(sizes)
    return -(-apart // dict(launcher.tiling(sizes).tiles).get(rows, 1))


def _bytes_minimum(launchers: Sequence[Launcher], sources: Sequence[KernelSource], sizes: Mapping[str, int]) -> int:
    """Bytes of what is read and written, each element once; of a tensor that is only indexed, one per index."""
    written = {root.buffer: _whole(root.buffer, sizes) for launcher in launchers for root in launcher.kernel.roots}
    read: dict[ir.Buffer, int] = {}
    for buffer in (each for launcher in launchers for each in _searched(launcher)):
        read[buffer] = _whole(buffer, sizes)
    for node in {node for source in sources for node, *_ in source.loads}:
        buffer = node.attrs[0]
        read[buffer] = min(read.get(buffer, 0) + _read(node, sizes), _whole(buffer, sizes))
    return sum((read | written).values())


def _searched(launcher: Launcher) -> set[ir.Buffer]:
    """The sorted tensors that a kernel searches, of which the caches hold what is read again."""
    return {node.args[1].attrs[0] for node in ir.topological(launcher.kernel.computed) if node.op == "search"}


def _read(node: ir.Node, sizes: Mapping[str, int]) -> int:
    """Bytes that one pass of a load reads: its elements, each once, however often they are broadcast."""
    buffer = node.attrs[0]
    (elements,) = Evaluator([sympy.Mul(*(axis.size for axis in node.axes))])(sizes)
    return min(elements * buffer.dtype.itemsize, _whole(buffer, sizes))


def _whole(buffer: ir.Buffer, sizes: Mapping[str, int]) -> int:
    stepped = [n for n, s in zip(buffer.shape, buffer.strides, strict=True) if s != 0]
    (elements,) = Evaluator([sympy.Mul(*stepped)])(sizes)
    return elements * buffer.dtype.itemsize
