"""Print what each stage of the compiler makes of a call: torch's graphs, the IR, kernels, tiles and launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from autogen import ir
from autogen.decorator import call_of
from autogen.dispatch.parts import PARTS
from autogen.dispatch.watch import Run
from autogen.ir.program import Root
from autogen.ir.torch_step import TorchStep
from autogen.lowering import lower
from autogen.report.launches import with_line
from autogen.runtime.handwritten import Launch
from autogen.runtime.launch import Launcher, Step
from autogen.scheduling.launches.kernel import Kernel


def stages(loss: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What the compiler makes of a call, stage by stage, for any device.

    Of each part that torch captures: the graphs of Dynamo and of AOTAutograd; the IR of results and gradients; the
    kernels in the order of launches, with their axes, how often they read what, and the IR with the level of each
    value; their tiles; and the arguments of each launch, tensors by name and the rest by value.
    """
    parts = getattr(loss, PARTS, None)
    if parts is not None:
        taken = parts(*args, **kwargs)
        if isinstance(taken, str):
            return taken
        return stages(taken.call.func, taken.call.args, taken.call.keywords)
    dispatcher, given = call_of(loss, tuple(args))
    name = dispatcher.name_of(given)
    bound = "none" if dispatcher.handwritten is None else dispatcher.handwritten.bind(given, kwargs, anywhere=True)
    if not isinstance(bound, str):
        kernels, found, tensors = bound
        forward, backward = kernels.planned((*tensors, *found.tensors), found.sizes)
        launches = (*forward.launches, *(backward.launches if backward else ()))
        return "\n".join(["== handwritten kernels: nothing is captured", *map(_launch, launches)])
    runs, refused = dispatcher.look(name, given, kwargs, anywhere=True)
    computing = [run for run in runs if run.captured.computes]
    if not computing:
        return refused or "torch captures nothing of it"
    return "\n\n".join("\n".join(_of_run(run, name, k + 1, len(computing))) for k, run in enumerate(computing))


def _of_run(run: Run, name: str, place: int, count: int) -> Iterator[str]:
    """The stages of one part of the loss."""
    of = f" of part {place} of {count}" if count > 1 else ""
    for whose, graph in (("Dynamo", run.captured.formula), ("AOTAutograd", run.captured.graph)):
        if graph is not None:
            yield f"== captured{of}: {whose}'s graph"
            yield "\n".join(
                line.rstrip() for line in graph.print_readable(print_output=False).split("\n") if line.strip()
            )
    segment = run.captured.runner
    if segment is None:
        yield f"== torch runs this part, as {run.captured.reason}"
        return
    program = lower(segment.segment.graph, name)
    for title, roots in (("results", program.outputs), ("operands of torch's steps", program.operands)):
        yield from _lowered(title, roots)
    yield from _lowered("gradients", program.gradients if segment.training else ())
    compiled, sizes = segment.kernels_for(run.arguments)
    yield f"== scheduled for {', '.join(f'{size} = {value}' for size, value in sizes.items()) or 'these sizes'}"
    for step in chain(compiled.forward, compiled.backward() if segment.training else ()):
        yield from _step(step, sizes)


def _lowered(title: str, roots: Sequence[Root]) -> Iterator[str]:
    if roots:
        yield f"== lowered: {title}: {', '.join(root.buffer.name for root in roots)}"
        yield ir.format_nodes([root.node for root in roots])


def _step(step: Step, sizes: Mapping[str, int]) -> Iterator[str]:
    if isinstance(step, TorchStep):
        line = with_line(step.name, step.line)
        yield f"-- torch runs {line}: {', '.join(step.reads) or 'nothing'} to {', '.join(step.writes) or 'nothing'}"
    else:
        yield from _launched(step, sizes)


def _launched(launcher: Launcher, sizes: Mapping[str, int]) -> Iterator[str]:
    """A kernel, and how it is launched."""
    yield from _kernel(launcher.kernel)
    config, origin = launcher.config(sizes)
    tiling = launcher.tiling(sizes)
    source = launcher.source(tiling.variant)
    for node, passes, _ in source.loads:
        yield f"   reads {node.attrs[0].name} {'once' if passes == 1 else f'{passes} times'}"
    tiles = ", ".join(f"{tile} {size}" for tile, size in tiling.tiles)
    chunks = f", {tiling.chunks} chunks" if tiling.chunks > 1 else ""
    yield f"   {origin} configuration: {config}"
    written = [each for each in ("looped", "wide", "skewed", "strided") if getattr(tiling.variant, each)]
    form = f"; {', '.join(written)}" if written else ""
    yield f"   {tiling.programs} program{'s' * (tiling.programs != 1)}{chunks}: {tiles or 'no tiles'}{form}"
    partials = [f"{each.pointer.removesuffix('_ptr')}[{count}]" for each, count in launcher.partials(sizes, tiling)]
    values = zip((name for name, _ in source.sizes), launcher.arguments(sizes, tiling.variant), strict=True)
    given = [each.name for each in source.buffers] + partials + ["counter"] * bool(partials)
    given += [f"{name}={value}" for name, value in (*values, *tiling.tiles, ("num_warps", tiling.num_warps))]
    yield f"   launch: {source.name}[({tiling.programs},)]({', '.join(given)})"


def _kernel(kernel: Kernel) -> Iterator[str]:
    """A kernel as it was scheduled."""
    yield f"-- kernel {kernel.name}{f': cut, as {kernel.cut}' if kernel.cut else ''}"
    if kernel.parts:
        yield f"   {len(kernel.parts)} parts side by side:"
        for part in kernel.parts:
            yield from _kernel(part)
        return
    shape = "one program has everything" if kernel.one_block else "whole rows" if kernel.whole_rows else ""
    axes = (("rows", kernel.rows), ("columns", kernel.columns), ("kept", kernel.kept))
    walked = "; ".join(f"{name} {' '.join(f'{a} of {a.size}' for a in own)}" for name, own in axes if own)
    yield f"   {'; '.join(filter(None, (walked or 'no axes', shape)))}"
    for title, names in (
        ("stores", [root.buffer.name for root in kernel.stores]),
        ("the last block stores", [root.buffer.name for root in kernel.finals]),
        ("does nothing if", [f"{each.buffer.name} = {each.value}" for each in kernel.granted]),
    ):
        if names:
            yield f"   {title} {', '.join(names)}"
    nodes = [*kernel.totals, *(root.node for root in kernel.roots)]
    for node, line in zip(ir.topological(nodes), ir.format_nodes(nodes).splitlines(), strict=True):
        yield f"   {line:<76} {kernel.level(node).value}{' (total)' if node in kernel.totals else ''}"


def _launch(launch: Launch) -> str:
    constants = ", ".join(f"{name}={launch.arguments[name]}" for name in sorted(launch.constants))
    return f"-- kernel {launch.name}: grid {launch.grid}, {launch.num_warps} warps; {constants}"
