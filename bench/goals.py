"""The performance goals on a GPU, and whether the measured rows meet them; what was not measured is neither."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from autogen.scheduling.chunks.size import rows_per_chunk
from bench import memory
from bench.results import Row, latest, speedup_over

OURS, COMPILED, LIGER, EAGER = "autogen", ("compile", "autotune"), ("liger",), ("eager",)
LARGE = 256e6  # bytes that forward reads at least
SHARE = 90  # percent of a copy's bandwidth, of large inputs
SPEEDUP = 1.3  # over torch.compile, in the geometric mean
OF_BOXES = 10  # times as fast as eager
OF_ERRORS = 2
HEADS = ("linear_cross_entropy",)  # cases of rows x dimensions x classes, bound by products of matrices
SLACK = 2**20  # bytes beside gradients: partial results, counters, what is kept per row


Verdict: TypeAlias = "tuple[bool, str] | None"
"""Whether a goal is met, and the figures; None if nothing was measured."""


@dataclass(frozen=True)
class Goal:
    """A sentence, whether it is so (None if nothing was measured), and the figures."""

    text: str
    is_met: bool | None
    figures: str


def summary(rows: Sequence[Row]) -> str:
    """A line for each goal."""
    words, found = {True: "met", False: "missed", None: "open"}, [*goals(rows)]
    width = max(len(goal.text) for goal in found) + 2
    return "\n".join(f"{words[goal.is_met]:<8}{goal.text:<{width}}{goal.figures}".rstrip() for goal in found)


def goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """All goals, of the rows of one GPU and version. A later measurement of the same counts."""
    found = [row for row in latest(rows) if row.median is not None]
    heads, kernels = ([row for row in found if (row.case in HEADS) is is_head] for is_head in (True, False))
    boxes = [row for row in found if row.case == "giou"]
    verdicts = {
        f"{SHARE} % of a copy's bandwidth, forward and backward, from {LARGE / 1e6:.0f} MB on": _bandwidth(kernels),
        f"{SPEEDUP} times torch.compile in the geometric mean, slower nowhere": _over(kernels, COMPILED, SPEEDUP, 1),
        "faster than Liger-Kernel wherever both have the loss": _over(found, LIGER, 1, 1),
        f"GIoU of 1024 x 256 boxes {OF_BOXES} times as fast as eager": _over(boxes, EAGER, OF_BOXES, OF_BOXES),
        "no memory beside inputs and gradients": _memory(kernels),
        "one launch forward, one backward, and no wait": _launches(kernels),
        f"errors at most {OF_ERRORS} times eager's, or a rounding": _errors(found),
        "no case that only fails here": _failures(latest(rows)),
        f"losses of heads in {memory.BOUND} of gradients, sums and workspace": _memory_of_heads(heads),
    }
    for text, verdict in verdicts.items():
        yield Goal(text, *(verdict or (None, "")))


def _case(row: Row) -> tuple[str, str, str]:
    return row.case, row.size, row.dtype


def _name(row: Row) -> str:
    return " ".join((*_case(row), row.direction))


def _bandwidth(rows: Sequence[Row]) -> Verdict:
    ours = [row for row in rows if row.column == OURS and row.direction != "both"]
    large = {_case(row) for row in ours if row.direction == "forward" and _moved(row) >= LARGE}
    shares = [
        (row.percent_of_copy, _name(row)) for row in ours if _case(row) in large and row.percent_of_copy is not None
    ]
    if not shares:
        return None
    reached = sum(share >= SHARE for share, _ in shares)
    least, name = min(shares)
    return reached == len(shares), f"{reached} of {len(shares)}; least {least:.0f} % ({name})"


def _moved(row: Row) -> float:
    """The bytes that the row's bandwidth is counted from."""
    return (row.gigabytes_per_second or 0) * (row.median or 0) * 1000


def _over(rows: Sequence[Row], columns: Sequence[str], mean: float, least: float) -> Verdict:
    """How often ours is as fast as the best of others, forward and backward together."""
    found = speedup_over(columns, rows)
    if found is None:
        return None
    figures = f"mean {found.mean:.2f} over {found.count}; least {found.least:.2f} ({found.least_case} both)"
    return found.mean >= mean and found.least >= least, figures


def _memory(rows: Sequence[Row]) -> Verdict:
    beside = [
        (row.peak_bytes - _gradient_bytes(row), _name(row))
        for row in rows
        if row.column == OURS and row.direction == "both" and row.peak_bytes is not None
    ]
    if not beside:
        return None
    most, name = max(beside)
    return most <= SLACK, f"most {max(most, 0) / 2**20:.2f} MiB ({name})"


def _memory_of_heads(rows: Sequence[Row]) -> Verdict:
    """Peak memory over what `bench.memory` says that chunks of rows need."""
    ratios = []
    for row in rows:
        if row.column == OURS and row.direction == "both" and row.peak_bytes is not None:
            count, width, classes = map(int, row.size.split("x"))
            dtype = getattr(torch, row.dtype)
            chunk = rows_per_chunk(count, 2 * classes * dtype.itemsize)
            needed = memory.Size(count, width, classes, dtype, chunk).needed
            ratios.append((row.peak_bytes / needed, _name(row)))
    if not ratios:
        return None
    most, name = max(ratios)
    return most <= memory.BOUND, f"most {most:.2f} ({name})"


def _launches(rows: Sequence[Row]) -> Verdict:
    ours = [row for row in rows if row.column == OURS and row.launches is not None and row.syncs is not None]
    if not ours:
        return None
    more = [_name(row) for row in ours if row.syncs or row.launches != (2 if row.direction == "both" else 1)]
    return not more, f"{len(ours) - len(more)} of {len(ours)}{f'; not {more[0]}' if more else ''}"


def _errors(rows: Sequence[Row]) -> Verdict:
    """Of value and gradient against float64, beside eager's: as near, or within a rounding of the dtype."""
    theirs = {(_case(row), row.direction): row.error for row in rows if row.column == "eager"}
    ratios = []
    for row in rows:
        error = theirs.get((_case(row), row.direction))
        if row.column == OURS and row.error is not None and error is not None:
            least = max(error, torch.finfo(getattr(torch, row.dtype)).eps)
            ratios.append((1.0 if row.error == least else row.error / least, _name(row)))  # both may be inf
    if not ratios:
        return None
    most, name = max(ratios)
    return most <= OF_ERRORS, f"most {most:.2f} of {len(ratios)} ({name})"


def _failures(rows: Sequence[Row]) -> Verdict:
    ours = [row for row in rows if row.column == OURS]
    others = {(_case(row), row.direction) for row in rows if row.column == "eager" and row.median is not None}
    failed = [_name(row) for row in ours if row.median is None and (_case(row), row.direction) in others]
    if not ours:
        return None
    return not failed, f"{len(failed)} of {len(ours)}{f'; {failed[0]}' if failed else ''}"


def _gradient_bytes(row: Row) -> int:
    """Of the inputs that have one, each of the size of the case."""
    return row.gradients * math.prod(map(int, row.size.split("x"))) * getattr(torch, row.dtype).itemsize
