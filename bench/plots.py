"""Figures of what has been measured, as SVG in `docs/figures`, from `bench/results` alone.

    python -m bench.plots [bench/results/nvidia-h200.csv] [--output docs/figures]

`speed.svg` shows how many times as fast as others our losses are, `times.svg` how long they take, `sizes.svg` how that
grows with the size, and `memory.svg` what a language model's head allocates (`bench.memory`). The last row of each case
and column is drawn. Drawn again from the same rows, a file is the same.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.typing import HashableList

from bench import memory
from bench.results import FOLDER, Row, Speedups, latest, read, speedups

RESULTS = FOLDER / "nvidia-h200.csv"
OUTPUT = Path(__file__).parents[1] / "docs" / "figures"
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "figure.titlesize": 11,
    "font.size": 9,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "svg.hashsalt": "autogen-loss",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}

# The name of each column, and its colour, in the order of a legend.
COLUMNS = {
    "eager": ("torch eager", "#7f7f7f"),
    "torch": ("torch, chunks", "#8c564b"),
    "compile": ("torch.compile", "#1f77b4"),
    "autotune": ("torch.compile, autotuned", "#17becf"),
    "liger": ("Liger-Kernel", "#2ca02c"),
    "autogen": ("autogen", "#d62728"),
    "early": ("autogen, gradient in forward", "#ff7f0e"),
    "tuned": ("autogen, tuned", "#9467bd"),
}
MEMORY_COLUMNS = {
    "eager": ("torch eager", "#7f7f7f"),
    "torch, chunks": ("torch, chunks of rows", "#8c564b"),
    "liger, chunks": ("Liger-Kernel", "#2ca02c"),
    "autogen, whole": ("autogen, all rows at once", "#f0a3a3"),
    memory.OURS: ("autogen, chunks of {chunk} rows", "#d62728"),
    memory.OURS_IN_HALF: ("the same, summed in half", "#d62728"),
}
MEMORY_LOSSES = {"cross entropy": "cross entropy", "with z-loss": "cross entropy with z-loss"}
FASTER, SLOWER = "#1f77b4", "#ff7f0e"
NARROW = 8  # sizes, at most, in a panel of half the width

styled = style.context(STYLE, after_reset=True)  # whatever the user's own style is


@styled
def speed(rows: Sequence[Row]) -> Figure:
    """A panel for each column beside ours: the speedup over it in each case, ascending."""
    found = speedups(rows)
    figure = Figure(figsize=(10, 3.8))
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for axes, (column, each) in zip(panels, found.items(), strict=True):
        _speedups(axes, each)
        axes.set_title(f"How many times as fast as {COLUMNS[column][0]}?")
    ratios = [ratio for each in found.values() for ratio in each.ratios.values()]
    panels[0].set_ylim(min(ratios) / 1.2, 3 * max(ratios))  # room for text
    panels[0].set_ylabel("times as fast (logarithmic)")
    figure.suptitle(f"Forward and backward together, {rows[-1].gpu}")
    return figure


def _speedups(axes: Axes, found: Speedups) -> None:
    ratios = list(found.ratios.values())
    colors = [FASTER if ratio >= 1 else SLOWER for ratio in ratios]
    axes.bar(range(1, found.count + 1), [ratio - 1 for ratio in ratios], bottom=1, color=colors)
    axes.axhline(1, color="black", linewidth=1)
    axes.axhline(found.mean, color="black", linewidth=1, linestyle="--")
    text = f"geometric mean {found.mean:.2f} (dashed), {found.count} cases\nleast {found.least:.2f}: {found.least_case}"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # over the grid
    axes.text(0.02, 0.98, text, fontsize=8, verticalalignment="top", transform=axes.transAxes, bbox=box)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("cases, ascending")
    axes.grid(visible=False, axis="x")


@styled
def times(rows: Sequence[Row]) -> Figure:
    """The µs of each loss that was measured at one size, a mark for each column."""
    panels = {key: points for key, points in _panels(rows).items() if len(_sizes(points)) == 1}
    found = {f"{case} {points[0].size} {dtype}": points for (case, dtype), points in panels.items()}
    names = sorted(found, key=lambda name: (found[name][0].size, name.lower()), reverse=True)
    figure = Figure(figsize=(10, 1.6 + 0.22 * len(names)))
    axes = figure.subplots()
    for column in _columns(rows):
        label, color = COLUMNS[column]
        marks = [(row.median, place) for place, name in enumerate(names) for row in found[name] if row.column == column]
        axes.scatter([x or 0 for x, _ in marks], [y for _, y in marks], label=label, color=color, zorder=3)
    axes.set_yticks(range(len(names)), names)
    axes.set_xscale("log")
    _number(axes.xaxis)
    axes.set(title="How long does a loss take, forward and backward together?", xlabel="µs (logarithmic)")
    figure.legend(loc="outside lower center", ncols=5)
    figure.suptitle(rows[-1].gpu)
    return figure


@styled
def sizes(rows: Sequence[Row]) -> Figure:
    """A panel for each loss that was measured at several sizes: µs over them."""
    found = {" ".join(key): points for key, points in _panels(rows).items() if len(_sizes(points)) > 1}
    wide = [name for name in found if len(_sizes(found[name])) > NARROW]
    narrow = [name for name in found if name not in wide]
    mosaic: list[HashableList[str]] = [[name, name] for name in wide]
    mosaic += [[name, other] for name, other in zip(narrow[::2], [*narrow[1::2], "."], strict=False)]
    figure = Figure(figsize=(10, 3.2 * len(mosaic)))
    legend: dict[str, Artist] = {}
    for name, axes in figure.subplot_mosaic(mosaic).items():
        _over_sizes(axes, found[name])
        axes.set_title(f"How does the time of {name.replace(' ', ' in ')} grow?")
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=5)
    figure.suptitle(f"Forward and backward together, {rows[-1].gpu}")
    return figure


@styled
def one_panel(title: str, rows: Sequence[Row]) -> Figure:
    """µs over the sizes of one loss."""
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    _over_sizes(axes, rows)
    axes.set_title(title)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _over_sizes(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw µs over the sizes, in the order of their elements: a line for each column."""
    places = {size: place for place, size in enumerate(_sizes(rows))}
    for column in _columns(rows):
        label, color = COLUMNS.get(column, (column, None))
        marks = sorted((places[row.size], row.median or 0) for row in rows if row.column == column)
        axes.plot(*zip(*marks, strict=True), label=label, color=color, marker="o", markersize=4)
    axes.set_xticks(range(len(places)), places, rotation=30, horizontalalignment="right", rotation_mode="anchor")
    axes.set_yscale("log")
    _number(axes.yaxis)
    axes.set(xlabel="size", ylabel="µs (logarithmic)")


def _number(axis: Axis) -> None:
    """Write numbers at a logarithmic axis, and not only powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.9g}"))
    axis.set_minor_formatter(NullFormatter())


def _panels(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """What there is to draw, by loss and dtype."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in latest(rows):
        if row.direction == "both" and row.median is not None:
            found.setdefault((row.case, row.dtype), []).append(row)
    return found


def _sizes(rows: Iterable[Row]) -> list[str]:
    return sorted({row.size for row in rows}, key=lambda size: (math.prod(map(int, size.split("x"))), size))


def _columns(rows: Iterable[Row]) -> list[str]:
    """In the order of the legend, those that it does not know last."""
    order = [*COLUMNS]
    found = dict.fromkeys(row.column for row in rows)
    return sorted(found, key=lambda column: order.index(column) if column in order else len(order))


@styled
def memory_of_heads(device: str, rows: Sequence[memory.Row]) -> Figure:
    """A panel for each loss and dtype: the MiB of each implementation, at the largest size."""
    largest = max((row.size for row in rows), key=lambda size: size.rows * size.classes)
    shape = (largest.rows, largest.width, largest.classes)
    drawn = [row for row in rows if (row.size.rows, row.size.width, row.size.classes) == shape]
    losses = list(dict.fromkeys(row.loss for row in drawn))
    dtypes = list(dict.fromkeys(row.size.dtype for row in drawn))
    figure = Figure(figsize=(10, 2.4 * len(losses)))
    panels = figure.subplots(len(losses), len(dtypes), squeeze=False)
    for loss, of_loss in zip(losses, panels, strict=True):
        for dtype, axes in zip(dtypes, of_loss, strict=True):
            _peaks(axes, [row for row in drawn if (row.loss, row.size.dtype) == (loss, dtype)])
            axes.set_title(f"{MEMORY_LOSSES[loss]}, {str(dtype).removeprefix('torch.')}")
    count, width, classes = shape
    inputs = f"{count} rows, width {width}, {classes} classes"
    question = "How much memory does the loss of a language model's head allocate, forward and backward?"
    figure.suptitle(f"{question}\n{inputs}, {device}")
    return figure


def _peaks(axes: Axes, rows: Sequence[memory.Row]) -> None:
    order = [*MEMORY_COLUMNS]
    rows = sorted(rows, key=lambda row: order.index(row.column))
    names, colors = zip(*(MEMORY_COLUMNS[row.column] for row in rows), strict=True)
    labels = [name.format(chunk=row.size.chunk) for name, row in zip(names, rows, strict=True)]
    bars = axes.barh(labels, [row.peak / 2**20 for row in rows], color=colors)
    axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("MiB at most, beside the inputs")


@styled
def save(figure: Figure, path: Path) -> None:
    """Write SVG that says neither when it was drawn nor by what."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata=NO_METADATA)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.plots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS, help="of a GPU, as bench.run writes them")
    parser.add_argument("--memory", type=Path, default=memory.FILE, help="as bench.memory writes them")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the folder of the figures")
    options = parser.parse_args(arguments)
    rows = read(options.results)
    if not rows:
        print(f"There are no results in {options.results.name}: run bench/gpu_check.sh on a GPU.", file=sys.stderr)
        return 2
    figures = {"speed": speed(rows), "times": times(rows), "sizes": sizes(rows)}
    if options.memory.exists():
        device, _, of_heads = memory.read(options.memory)
        figures["memory"] = memory_of_heads(device, of_heads)
    for name, figure in figures.items():
        save(figure, options.output / f"{name}.svg")
        print(f"{name}.svg")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
