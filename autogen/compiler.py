"""The compiler pipeline, from AOTAutograd's graph to kernels.

    joint graph → lower → schedule → emit

Triton's part happens when a launcher first runs.

`compile_segment` tries with as little known before the kernels as it can: first masks and numbers that the loss reads
are inside the kernels, then the numbers are in the prologue, then the masks, too. `compile_graph` lowers a graph once
more where its first form cannot be scheduled: with all sums in memory, where two kernels would compare sums that differ
in their last bits, and without scans, where a row is too long for a program to hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autogen.capture.graph import JointGraph
from autogen.capture.joint import Segment, segment_of
from autogen.errors import AutogenError, ScheduleError, UnsupportedOpError
from autogen.ir.names import spelled
from autogen.lowering import lower, scans
from autogen.runtime.compiled import CompiledLoss
from autogen.runtime.launch import Launcher, Tune, Tuner
from autogen.scheduling.rewrites.same_bits import ComparedSumError
from autogen.scheduling.schedule import schedule
from autogen.settings.options import PLAIN, LaunchConfig, Options
from autogen.tiling.chosen import Chosen
from autogen.tiling.tiler import Tiler


def compile_segment(
    module: torch.fx.GraphModule,
    names: Sequence[str],
    count: int,
    shapes: Any,
    name: str,
    options: Options = PLAIN,
    *,
    training: bool,
) -> tuple[Segment, CompiledLoss]:
    """Lower, schedule and emit a graph of AOTAutograd's.

    Args:
        module: the joint graph if `training`, else the forward graph.
        names: what the user calls each argument.
        count: the number of results of forward.
        shapes: the `ShapeEnv` of the capture.
        name: the loss's name.
        options: how the loss is to run.
        training: whether backward may follow.

    Raises:
        AutogenError: some part of the loss has no kernel; the subclass says which.
    """
    knows: dict[str, bool] = {}
    while True:  # with as little known before the kernels as can be
        segment = segment_of(module, names, count, shapes, **knows)
        try:
            return segment, compile_graph(segment.graph, name, segment.device, options, training=training)
        except AutogenError:
            if segment.graph.numbers and "knows_numbers" not in knows:
                knows["knows_numbers"] = True
            elif segment.chooses and "knows_masks" not in knows:
                knows["knows_masks"] = True
            else:
                raise


def compile_graph(
    joint: JointGraph,
    name: str,
    device: torch.device,
    options: Options = PLAIN,
    *,
    training: bool,
    sizes: Mapping[str, int] | None = None,
) -> CompiledLoss:
    """The kernels of a joint graph, planned and emitted in the first form that fits; `sizes` are those of a call.

    Raises:
        AutogenError: some part of the loss has no kernel.
    """
    hints = dict(sizes or joint.sizes.hints())
    form: dict[str, bool] = {}
    has_scans = not scans.TARGETS.isdisjoint(node.target for node in joint.graph.nodes)
    while True:
        try:
            return _of_form(joint, name, hints, options, device, training=training, **form)
        except ComparedSumError:  # of what is in memory, everything sees the same bits
            if "stores_sums" in form:
                raise
            form["stores_sums"] = True
        except ScheduleError:  # as where a row is too long for a program to hold
            if not has_scans or "has_scans" in form:
                raise
            form["has_scans"] = False


def _of_form(
    joint: JointGraph,
    name: str,
    hints: Mapping[str, int],
    options: Options,
    device: torch.device,
    *,
    training: bool,
    **form: bool,
) -> CompiledLoss:
    """The kernels of a joint graph, planned and emitted in the `form` that `lower` gives it."""
    program = lower(joint, name, **form)
    plan = schedule(program, kernel_name(name), hints, training=training, options=options)
    compiled = CompiledLoss(joint, plan, device, _tuner(options, device, plan.name))
    # Emitted here and not at the first launch, so that whatever fails fails before anything ran.
    for launcher in compiled.launchers:
        launcher.source(launcher.tiling(hints).variant)
    if compiled.torch_steps and not compiled.launchers and not compiled.loops:
        first = compiled.torch_steps[0]
        raise UnsupportedOpError(first.name, where=first.line)
    return compiled


def _tuner(options: Options, device: torch.device, name: str) -> Tune | None:
    config, mode = options.config, options.tuning
    if isinstance(config, LaunchConfig):

        def chosen(launcher: Launcher) -> Tuner:
            return Chosen(launcher.kernel, launcher.tiler if isinstance(launcher.tiler, Tiler) else None, config, name)

        return chosen
    if mode is None:
        return None
    from autogen.tuning import Tuner as Timed

    def timed(launcher: Launcher) -> Tuner | None:
        return None if launcher.kernel.parts else Timed(launcher, mode, device)

    return timed


def kernel_name(name: str) -> str:
    """A loss's name as a kernel's: `BCEWithLogitsLoss` → `bce_with_logits_loss`, `GIoULoss` → `giou_loss`; ASCII, as
    Triton wants it.
    """
    name = re.sub(r"[A-Z]+[a-z][A-Z](?=[A-Z][a-z]|_|$)", lambda acronym: acronym[0].upper(), name)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return spelled(re.sub(r"\W+", "_", words, flags=re.ASCII).strip("_").lower()) or "loss"
