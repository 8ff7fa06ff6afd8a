"""`supported_losses`: list on which path every loss runs, for which dtypes and options."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from autogen.report import Report, explain_call
from autogen.report.samples import DTYPES, ODD, Call, calls_beyond_torch, calls_of_torch, falling_back
from autogen.settings.policies import policy

_LEGACY = {"size_average", "reduce", "use_autogen"}


@dataclass(frozen=True)
class SupportedLoss:
    """How a loss runs, as `explain` says of a call of it on a device that has kernels.

    Attributes:
        name: the loss's name and, if it has several samples, which one this is.
        path: "generated", "handwritten", "partial" (torch runs a part of it) or "eager" (torch runs all of it).
        reason: why it takes this path.
        launches: the numbers of launches forward and backward.
        dtypes: those of "fp16", "bf16", "fp32" and "fp64" that were tried and take this path.
        options: the names of the constructor's arguments, without those that torch has deprecated.
        torch_steps: the operations that torch runs.
        falls_back: which calls run in torch, or partly so, though the loss has kernels; empty if none is known.
        is_of_torch: whether it is a loss of `torch.nn`.
    """

    name: str
    path: str
    reason: str
    launches: tuple[int, ...]
    dtypes: tuple[str, ...]
    options: tuple[str, ...]
    torch_steps: tuple[str, ...] = ()
    falls_back: str = ""
    is_of_torch: bool = True


def supported_losses(
    *names: str, dtypes: Collection[str] = ("fp32",), progress: Callable[[str], None] | None = None
) -> dict[str, SupportedLoss]:
    """List how each loss of `autogen.losses` runs on a device that has kernels.

    Each is captured and compiled up to Triton, about three per second, but not run, so that no GPU is needed.

    Args:
        *names: names of classes of `autogen.losses`; by default all.
        dtypes: the dtypes to try, from "fp16", "bf16", "fp32" and "fp64".
        progress: called with the name of each loss before it is captured.

    Returns:
        A `SupportedLoss` for each sample call, by its name.

    Raises:
        ValueError: an unknown name or dtype.
    """
    from autogen import losses

    unknown = sorted({*names} - {*losses.__all__})
    if unknown:
        raise ValueError(f"autogen.losses has no {', '.join(unknown)}")
    if not dtypes or not {*dtypes} <= DTYPES.keys():
        raise ValueError(f"dtypes are some of {', '.join(DTYPES)}, not {', '.join(dtypes) or 'none'}")
    of_torch = [name for name in names or losses.__all__ if hasattr(nn, name)]
    beyond = [name for name in names or losses.__all__ if not hasattr(nn, name)]
    found: dict[str, SupportedLoss] = {}
    with policy("default"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names, and sizes of parameters, that are chosen here
        for dtype, (loss, inputs) in _calls(dtypes, of_torch, beyond):
            name = type(loss).__name__
            if progress is not None:
                progress(name)
            each = _supported(loss, explain_call(loss, inputs, {}, anywhere=True))
            if each.name not in found:
                found[each.name] = replace(each, falls_back=_fallback(name))
            first = found[each.name]
            if each.path == first.path != "eager":
                found[each.name] = replace(first, dtypes=(*first.dtypes, dtype))
    return found


def _calls(dtypes: Collection[str], of_torch: Collection[str], beyond: Collection[str]) -> Iterator[tuple[str, Call]]:
    """The samples of the named losses, with their dtype; those beyond torch have one dtype."""
    samples = [(name, calls_of_torch(dtype)) for name, dtype in DTYPES.items() if of_torch and name in dtypes]
    samples += [("fp32", calls_beyond_torch(ODD))] if beyond else []
    for dtype, calls in samples:
        yield from ((dtype, call) for call in calls if type(call[0]).__name__ in (*of_torch, *beyond))


def _supported(loss: nn.Module, report: Report) -> SupportedLoss:
    directions = [each for each in (report.forward, report.backward) if each is not None]
    name = type(loss).__name__
    return SupportedLoss(
        name=f"{name} of a softmax" if name == "DiceLoss" and "softmax" in repr(loss) else name,
        path=report.path,
        reason=report.reason,
        launches=tuple(each.launches for each in directions),
        dtypes=(),
        options=_options(type(loss)),
        torch_steps=tuple(dict.fromkeys(step.partition(",")[0] for each in directions for step in each.torch_steps)),
        is_of_torch=hasattr(nn, name),
    )


def _options(cls: type[nn.Module]) -> tuple[str, ...]:
    """The arguments of a constructor but the old ones."""
    own: Any = nn.NLLLoss if cls.__name__ == "NLLLoss2d" else cls
    return tuple(name for name in inspect.signature(own).parameters if name not in _LEGACY)


def _fallback(name: str) -> str:
    """Which calls of a loss torch runs, and which part of them."""
    found = falling_back().get(name)
    if found is None:
        return ""
    what, call = found
    loss, inputs = call()
    report = explain_call(loss, inputs, {}, anywhere=True)
    assert report.path in ("eager", "partial"), f"{name} has kernels for a call that is listed as falling back"
    return f"{what}: {report.reason}" if report.path == "partial" else what
