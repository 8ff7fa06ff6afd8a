"""`explain`: find out how a call of a loss runs, why, and what its kernels look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autogen.decorator import call_of
from autogen.dispatch.dispatcher import Dispatcher
from autogen.dispatch.parts import PARTS, Parts
from autogen.errors import AutogenError, ConfigError
from autogen.ir.torch_step import TorchStep
from autogen.report.launches import describe, describe_handwritten, with_line
from autogen.report.records import DirectionReport, Report
from autogen.runtime import availability
from autogen.settings.policies import Policy, resolve


def explain(loss: Any, *args: Any, **kwargs: Any) -> Report:
    """Report how `loss(*args, **kwargs)` would run, without running it.

    A loss that is not decorated is reported as `autogen_loss` would make it. Only what decides about the call is
    computed: tensors whose size depends on values (`nonzero`), the products of `AdaptiveLogSoftmaxWithLoss`, and, of a
    loss that torch captures in several graphs, all but the last.

    Args:
        loss: a decorated or plain module, or function.
        *args: the arguments of the call; `requires_grad` of the tensors decides which gradients are reported.
        **kwargs: likewise.

    Raises:
        TypeError: the arguments do not fit the loss's signature, or `loss` is a class: pass an instance.
        ValueError: an environment variable has a value that is not understood.
    """
    return explain_call(loss, args, kwargs)


def explain_call(loss: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, anywhere: bool = False) -> Report:
    """The report on a call (see `explain`); if it may run `anywhere`, as on a device that has kernels."""
    parts = None if isinstance(loss, type) else getattr(loss, PARTS, None)
    if parts is not None and getattr(loss, "use_autogen", True):
        name = getattr(loss, "__name__", type(loss).__name__)
        taken = parts(*args, **kwargs)
        return Report(name, "eager", taken) if isinstance(taken, str) else _of_parts(name, taken, anywhere=anywhere)
    dispatcher, args = call_of(loss, tuple(args))
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
    refusal = None if anywhere else dispatcher.refusal(bound.args, bound.kwargs)
    if refusal is not None:
        return Report(name, "eager", refusal.reason)
    refused = ""
    if dispatcher.handwritten is not None and resolve(dispatcher.options.policy) is not Policy.AGGRESSIVE:
        handwritten = dispatcher.handwritten.bind(args, kwargs, anywhere=anywhere)
        if isinstance(handwritten, str):
            refused = f"; it has handwritten kernels, but for this call: {handwritten}"
        else:
            kernels, found, tensors = handwritten
            planned = kernels.planned((*tensors, *found.tensors), found.sizes)
            read = [each for each, own in zip(tensors, kernels.names, strict=True) if own in kernels.loss.defaults]
            return Report(name, "handwritten", kernels.reason, *describe_handwritten(*planned, read))
    report = _of_captures(name, dispatcher, args, kwargs, anywhere=anywhere)
    return replace(report, reason=f"{report.reason}{refused}") if report.path == "eager" else report


def _of_parts(name: str, parts: Parts, *, anywhere: bool) -> Report:
    """The report on the fused call of a loss, in the loss's name."""
    report = explain_call(parts.call.func, parts.call.args, parts.call.keywords, anywhere=anywhere)
    if report.path == "eager":
        return replace(report, loss=name)
    return replace(report, loss=name, path="partial", reason=f"torch runs {', '.join(parts.steps)}")


def _of_captures(
    name: str, dispatcher: Dispatcher, args: Sequence[Any], kwargs: Mapping[str, Any], *, anywhere: bool
) -> Report:
    """The report on what torch captures of a loss."""
    try:
        runs, refused = dispatcher.look(name, args, kwargs, anywhere=anywhere)
    except ConfigError:
        raise
    except AutogenError as error:  # under the policy "mandatory"
        return Report(name, "eager", error.reason)
    runs = [replace(run, captured=run.captured.now) for run in runs]
    computing = [run.captured for run in runs if run.captured.computes]
    breaks = tuple(
        with_line(run.captured.ended_by, run.captured.line) for run in runs if run.captured.ended_by is not None
    )
    graphs = tuple(each.graph for each in computing if each.graph is not None)
    in_kernels = [each for each in computing if each.runner is not None]
    if not in_kernels:
        path = computing[0].path if computing else "eager"
        reason = next((each.reason for each in computing), refused or "torch captures nothing of it")
        return Report(name, path, reason, breaks=breaks, graphs=graphs)
    partly = [each for each in computing if each.path != "generated"]
    forward: list[DirectionReport] = []
    backward: list[DirectionReport] = []
    for run in runs:
        segment = run.captured.runner
        if segment is None:
            continue
        compiled, sizes = segment.kernels_for(run.arguments)
        report = describe(compiled.forward, sizes)
        packed = () if run.captured.packing is None else run.captured.packing.steps
        before = (with_line(TorchStep.name_of(node.target), node.meta["origin"]) for node in compiled.ahead)
        forward.append(replace(report, torch_steps=(*packed, *before, *report.torch_steps)))
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
        graphs,
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
        passes=tuple(reason for each in reports for reason in each.passes),
        chunks=tuple(chunk for each in reports for chunk in each.chunks),
    )
