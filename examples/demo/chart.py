"""Charts of lines and of bars as inline SVG, without a background and in colours for light and dark pages."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

TORCH, GENERATED, ROUNDING = "#e08b3e", "#1597a0", "#8a949e"
SIZE = (5, 2.9)  # inches; the page scales it
_TEXT = "#7a828b"
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": _TEXT,
    "axes.grid": True,
    "axes.labelcolor": _TEXT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.color": _TEXT,
    "legend.frameon": False,
    "legend.labelcolor": _TEXT,
    "savefig.transparent": True,
    "svg.fonttype": "none",
    "text.color": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}
_styled = style.context(_STYLE, after_reset=True)


@dataclass(frozen=True)
class Line:
    """A line: its name, its colour, its value at every step, and how thick it is."""

    name: str
    color: str
    values: Sequence[float]
    width: float = 1.5


@_styled
def chart(description: str, lines: Sequence[Line], *, logarithmic: bool = False) -> Markup:
    """Draw lines over the steps they share.

    Args:
        description: what the values are, beside their axis and for who cannot see it.
        lines: what to draw, the lowest first.
        logarithmic: whether the values' axis is; then every value is positive.
    """
    figure = Figure(figsize=SIZE)
    axes = figure.subplots()
    for line in lines:
        steps = range(1, len(line.values) + 1)
        axes.plot(steps, line.values, label=line.name, color=line.color, linewidth=line.width)
    axes.set(xlabel="step", ylabel=description)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * max(max(line.values) for line in lines))
    figure.legend(loc="outside upper center", ncols=len(lines))
    return _inline(figure, f"{description}, at every step")


@dataclass(frozen=True)
class Bar:
    """A bar: what it is of, its colour and its length."""

    name: str
    color: str
    value: float


@_styled
def bars(description: str, found: Sequence[Bar]) -> Markup:
    """Draw bars below each other, each beside its name; the description is that of their axis."""
    figure = Figure(figsize=SIZE)
    axes = figure.subplots()
    drawn = axes.barh([bar.name for bar in found], [bar.value for bar in found], color=[bar.color for bar in found])
    axes.bar_label(drawn, fmt="%.0f", padding=3)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(description)
    return _inline(figure, description)


def _inline(figure: Figure, description: str) -> Markup:
    """An element of a page: without namespaces, and without names of groups, which charts would share."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    text = re.sub(r' (xmlns(:\w+)?="[^"]*"|id="[\w.]+_\d+")', "", file.getvalue().partition("<svg")[2])
    return Markup(f'<svg role="img" aria-label="{escape(description)}"{text}')
