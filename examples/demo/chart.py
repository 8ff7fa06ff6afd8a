"""Charts of lines and of bars as inline SVG; their colours are classes of the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 34

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Line:
    """A line: its class in the style sheet, and its value at every step."""

    style: str
    values: Sequence[float]


def chart(description: str, lines: Sequence[Line], *, logarithmic: bool = False) -> Markup:
    """Draw lines over the steps they share.

    Args:
        description: what the chart shows, for who cannot see it.
        lines: what to draw, the lowest first.
        logarithmic: whether the values' axis is; then every value is positive.
    """
    ticks = _decades(lines) if logarithmic else _even_ticks(lines)
    steps = len(lines[0].values)
    place: Scale = math.log10 if logarithmic else float
    low, high = place(ticks[0]), place(ticks[-1])

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / max(steps - 1, 1)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - place(value)) / (high - low)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{description}">']
    for tick in ticks:
        label = f"1e{math.log10(tick):.0f}" if logarithmic else f"{tick:g}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    for step in sorted({1, steps // 2, steps}):
        anchor = "end" if step == steps else "middle"
        parts.append(f'<text x="{x(step - 1):.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}">{step}</text>')
    for line in lines:
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(line.values))
        parts.append(f'<polyline class="{line.style}" points="{points}"/>')
    return Markup("\n".join([*parts, "</svg>"]))


@dataclass(frozen=True)
class Bar:
    """A bar: its class in the style sheet, what it is of, its length, and that as text."""

    style: str
    name: str
    value: float
    text: str


def bars(description: str, found: Sequence[Bar]) -> Markup:
    """Draw bars below each other, each under its name."""
    longest, height = max(bar.value for bar in found), HEIGHT / len(found)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{description}">']
    for number, bar in enumerate(found):
        top, width = number * height + 40, (WIDTH - 100) * bar.value / longest
        parts.append(f'<text x="0" y="{top - 8:.1f}">{bar.name}</text>')
        parts.append(f'<rect class="{bar.style}" x="0" y="{top:.1f}" width="{width:.1f}" height="{height - 70:.1f}"/>')
        parts.append(f'<text x="{width + 8:.1f}" y="{top + (height - 70) / 2 + 4:.1f}">{bar.text}</text>')
    return Markup("\n".join([*parts, "</svg>"]))


def _even_ticks(lines: Sequence[Line]) -> list[float]:
    """About five round numbers from zero to above the largest value."""
    highest = max(max(line.values) for line in lines)
    step = 10 ** math.floor(math.log10(highest / 2))
    step *= next(factor for factor in (1, 2, 5, 10) if highest / (factor * step) <= 6)
    return [count * step for count in range(math.ceil(highest / step) + 1)]


def _decades(lines: Sequence[Line]) -> list[float]:
    """Powers of ten, from below the smallest value to above the largest."""
    low = math.floor(math.log10(min(min(line.values) for line in lines)))
    high = math.ceil(math.log10(max(max(line.values) for line in lines)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]
