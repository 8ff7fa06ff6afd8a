"""`explain`: which way a call of a loss takes, why, and what its kernels look like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from autogen import availability, ir
from autogen.decorator import call_of
from autogen.dispatch.dispatcher import Dispatcher
from autogen.emission.source import KernelSource
from autogen.errors import AutogenError, ConfigError, SourceLine
from autogen.parts import PARTS, Parts
from autogen.policies import Policy, resolve
from autogen.runtime.backwards import Step, kernels_in
from autogen.runtime.handwritten import Backward, Forward, Launch, bytes_in_memory
from autogen.runtime.launch import Launcher
from autogen.sizes import Evaluator
from autogen.tiling.variant import tile_of_part
from autogen.torch_step import TorchStep


@dataclass(frozen=True)
class DirectionReport:
    """Forward or backward of a loss.

    Attributes:
        launches: kernels launched per call.
        source: the Triton modules, as text.
        bytes_moved: bytes read and written by the kernels for the given sizes, each tensor counted once per pass over
            it, and once per program that walks it beside rows that have nothing to do with it. A computed index counts
            one element per index. Of handwritten kernels, each tensor counts once, as a whole.
        bytes_minimum: bytes of everything that must be read or written at least once, likewise.
        kernels: the names of the kernels.
        torch_steps: what torch runs before or between them, each with the user's source line.
        cuts: for every kernel but the first, why the one before could not do its work as well.
        configs: of each generated kernel the tiles and warps, and whether these are the default's or tuned.
    """

    launches: int
    source: str
    bytes_moved: int
    bytes_minimum: int
    kernels: tuple[str, ...]
    torch_steps: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What `explain` found.

    Attributes:
        loss: the loss's name.
        path: "generated", "handwritten", "partial" (torch runs a part of it), "eager" or "inductor".
        reason: one sentence: why this path; with the user's source line where one is to blame.
        forward: the forward kernels, None if the path is "eager" or "inductor".
        backward: the backward kernels, None if there are none.
        breaks: why torch ends a graph of the loss before the loss does, each with the user's source line.
    """

    loss: str
    path: str
    reason: str
    forward: DirectionReport | None = None
    backward: DirectionReport | None = None
    breaks: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.loss}: {self.path}", f"  because {self.reason}"]
        lines += [f"  a graph ends, as {reason}" for reason in self.breaks]
        for name, direction in (("forward", self.forward), ("backward", self.backward)):
            if direction is not None:
                ratio = direction.bytes_moved / direction.bytes_minimum if direction.bytes_minimum else 1.0
                lines.append(
                    f"  {name}: {direction.launches} launch{'es' if direction.launches != 1 else ''} "
                    f"({', '.join(direction.kernels)}), {direction.bytes_moved:,} bytes moved, "
                    f"{ratio:.2f} times the minimum"
                )
                lines += [f"    {config}" for config in direction.configs]
                lines += [f"    torch runs {step}" for step in direction.torch_steps]
                lines += [f"    cut, as {reason}" for reason in direction.cuts]
        for direction in (self.forward, self.backward):
            if direction is not None:
                lines += ["", direction.source.rstrip()]
        return "\n".join(lines)


def explain(loss: Any, *args: Any, **kwargs: Any) -> Report:
    """How `loss(*args, **kwargs)` would run, without running it.

    A loss that is not decorated is reported as `autogen_loss` would make it. Computed is only what decides about the
    call: what values decide the size of (`nonzero`), what `AdaptiveLogSoftmaxWithLoss` multiplies, and, of a loss that
    torch captures in several graphs, all but the last.

    Args:
        loss: a decorated or plain module, or function.
        *args: the arguments of the call; `requires_grad` of the tensors decides which gradients are reported.
        **kwargs: likewise.

    Raises:
        TypeError: the arguments do not fit the loss's signature, or `loss` is a class: pass an instance.
        ValueError: an environment variable has a value that is not understood.
    """
    parts = None if isinstance(loss, type) else getattr(loss, PARTS, None)
    if parts is not None and getattr(loss, "use_autogen", True):
        name = getattr(loss, "__name__", type(loss).__name__)
        taken = parts(*args, **kwargs)
        return Report(name, "eager", taken) if isinstance(taken, str) else _of_parts(name, taken)
    dispatcher, args = call_of(loss, args)
    name = dispatcher.name_of(args)
    if dispatcher.options.fault:
        raise ValueError(dispatcher.options.fault)
    if resolve(dispatcher.options.policy) is Policy.DISABLED:
        return Report(name, "eager", "the policy is disabled")
    if dispatcher.owner is not None and not getattr(args[0], "use_autogen", True):
        return Report(name, "eager", "the loss was made with use_autogen=False")
    if availability.is_transformed():
        return Report(name, "eager", "torch transforms, traces or watches the call, which needs the loss's own formula")
    bound = dispatcher.signature.bind(*args, **kwargs)
    refusal = dispatcher.refusal(bound.args, bound.kwargs)
    if refusal is not None:
        return Report(name, "eager", refusal.reason)
    if dispatcher.handwritten is not None and resolve(dispatcher.options.policy) is not Policy.AGGRESSIVE:
        handwritten = dispatcher.handwritten.bind(args, kwargs)
        if not isinstance(handwritten, str):
            kernels, found, tensors = handwritten
            planned = kernels.planned((*tensors, *found.tensors), found.sizes)
            read = [each for each, own in zip(tensors, kernels.names, strict=True) if own in kernels.loss.defaults]
            return Report(name, "handwritten", kernels.reason, *describe_handwritten(*planned, read))
    return _of_captures(name, dispatcher, args, kwargs)


def _of_parts(name: str, parts: Parts) -> Report:
    """The report on the fused call of a loss, in the loss's name."""
    report = explain(parts.call.func, *parts.call.args, **parts.call.keywords)
    if report.path == "eager":
        return replace(report, loss=name)
    return replace(report, loss=name, path="partial", reason=f"torch runs {', '.join(parts.steps)}")


def _of_captures(name: str, dispatcher: Dispatcher, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Report:
    """The report on what torch captures of a loss."""
    try:
        runs, refused = dispatcher.look(name, args, kwargs)
    except ConfigError:
        raise
    except AutogenError as error:  # under the policy "mandatory"
        return Report(name, "eager", error.reason)
    runs = [replace(run, captured=run.captured.now) for run in runs]
    computing = [run.captured for run in runs if run.captured.computes]
    breaks = tuple(
        _with_line(run.captured.ended_by, run.captured.line) for run in runs if run.captured.ended_by is not None
    )
    in_kernels = [each for each in computing if each.runner is not None]
    if not in_kernels:
        path = computing[0].path if computing else "eager"
        reason = next((each.reason for each in computing), refused or "torch captures nothing of it")
        return Report(name, path, reason, breaks=breaks)
    partly = [each for each in computing if each.path != "generated"]
    forward: list[DirectionReport] = []
    backward: list[DirectionReport] = []
    for run in runs:
        segment = run.captured.runner
        if segment is None:
            continue
        compiled, sizes = segment.kernels_for(run.arguments)
        report = describe(compiled.forward, sizes)
        before = tuple(_with_line(TorchStep.name_of(node.target), node.meta["origin"]) for node in compiled.ahead)
        forward.append(replace(report, torch_steps=(*before, *report.torch_steps)))
        if segment.training:
            backward.append(describe(compiled.backward(), sizes))
    reasons = dict.fromkeys(each.reason for each in (partly or in_kernels))
    return Report(
        name,
        "partial" if partly else "generated",
        "; ".join(reasons),
        _together(forward),
        _together(backward),
        breaks,
    )


def _together(reports: Sequence[DirectionReport]) -> DirectionReport | None:
    """The reports on several segments as one."""
    if len(reports) < 2:
        return reports[0] if reports else None
    return DirectionReport(
        launches=sum(each.launches for each in reports),
        source="\n\n".join(each.source for each in reports),
        bytes_moved=sum(each.bytes_moved for each in reports),
        bytes_minimum=sum(each.bytes_minimum for each in reports),
        kernels=tuple(name for each in reports for name in each.kernels),
        torch_steps=tuple(step for each in reports for step in each.torch_steps),
        cuts=tuple(cut for each in reports for cut in each.cuts),
        configs=tuple(config for each in reports for config in each.configs),
    )


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
            _with_line(step.name, step.line) for step in steps if isinstance(step, TorchStep) and not step.is_free
        ),
        cuts=tuple(launcher.kernel.cut for launcher in launchers[1:]),
        configs=tuple(_config(launcher, sizes) for launcher in launchers),
    )


def _config(launcher: Launcher, sizes: Mapping[str, int]) -> str:
    config, origin = launcher.config(sizes)
    return f"{config} ({origin})"


def _with_line(name: str, line: SourceLine | None) -> str:
    return name if line is None else f"{name}, at {line}"


def _bytes_moved(launcher: Launcher, source: KernelSource, sizes: Mapping[str, int]) -> int:
    moved = sum(
        passes * _read(node, sizes) * _times(launcher, node, function, sizes) for node, passes, function in source.loads
    )
    moved += sum(_whole(buffer, sizes) for buffer in {root.buffer for root in launcher.kernel.roots})
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
    for node in {node for source in sources for node, *_ in source.loads}:
        buffer = node.attrs[0]
        read[buffer] = min(read.get(buffer, 0) + _read(node, sizes), _whole(buffer, sizes))
    return sum((read | written).values())


def _read(node: ir.Node, sizes: Mapping[str, int]) -> int:
    """Bytes that one pass of a load reads: its elements, each once, however often they are broadcast."""
    buffer = node.attrs[0]
    (elements,) = Evaluator([sympy.Mul(*(axis.size for axis in node.axes))])(sizes)
    return min(elements * buffer.dtype.itemsize, _whole(buffer, sizes))


def _whole(buffer: ir.Buffer, sizes: Mapping[str, int]) -> int:
    stepped = [n for n, s in zip(buffer.shape, buffer.strides, strict=True) if s != 0]
    (elements,) = Evaluator([sympy.Mul(*stepped)])(sizes)
    return elements * buffer.dtype.itemsize
